"""Coded vectors: round trips, what a vector can do, what an encoder must refuse."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    decoded_values,
    encode,
    mask_bitmap,
    mask_needed,
)
from sedge_protocol.errors import CodecError, LocalError, Unencodable

CODINGS = list(itertools.product(ValueCoding, Compression))
SIZES = [1, 9, 65, 1000]


def _vector(size: int, count: int, seed: int = 0) -> SparseVector:
    rng = np.random.default_rng([size, count, seed])
    values = rng.normal(0, 1e-2, count).astype(np.float32)
    if count == size:
        return SparseVector(size, None, values)
    return SparseVector(size, _chosen(rng, size, count), values)


def _moved(vector: SparseVector, changes: int, seed: int = 0) -> bytes:
    """The mask of ``vector``, as a bitmap, with about so many positions dropped or added."""
    rng = np.random.default_rng([changes, seed])
    bits = np.unpackbits(np.frombuffer(mask_bitmap(vector), np.uint8), bitorder="little")
    bits[rng.integers(0, vector.size, changes)] ^= 1
    return np.packbits(bits, bitorder="little").tobytes()


def _chosen(rng: np.random.Generator, size: int, count: int) -> NDArray[np.uint32]:
    return np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("values", "compression"), CODINGS)
def test_round_trip(size: int, values: ValueCoding, compression: Compression) -> None:
    for count in {0, 1, size - 1, size, size // 2, size // 10, size // 100, size * 9 // 10}:
        vector = _vector(size, count)
        data = encode(vector, values, compression)
        for found in (decode(data, size), decode(memoryview(data), size)):
            assert found.size == size
            assert found.count == count
            assert found.values.tobytes() == decoded_values(vector.values, values).tobytes()
            if vector.indices is None:
                assert found.indices is None
            else:
                assert found.indices is not None
                assert found.indices.dtype == np.uint32
                assert np.array_equal(found.indices, vector.indices)
        planes = 4 if values is ValueCoding.FP32 else 3
        assert len(data) <= 16 + 4 * planes + -(-size // 8) + 4 * count


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("values", "compression"), CODINGS)
def test_round_trip_with_a_context(
    size: int, values: ValueCoding, compression: Compression
) -> None:
    for count in {0, 1, size, size // 2, size // 10, size * 9 // 10}:
        vector = _vector(size, count)
        alone = encode(vector, values, compression)
        expected = decoded_values(vector.values, values)
        for changes in (0, 1, size // 10, size):
            context = _moved(vector, changes)
            data = encode(vector, values, compression, context)
            assert len(data) <= len(alone)
            found = decode(data, size, context)
            assert found.values.tobytes() == expected.tobytes()
            assert mask_bitmap(found) == mask_bitmap(vector)
            if data == alone:
                decode(data, size)  # what does not say that it needs the context does not


@pytest.mark.parametrize("context", [b"", bytes(12), bytes(14), bytes(12) + b"\x10"])
def test_a_context_that_is_no_bitmap_of_n_is_the_encoders_error(context: bytes) -> None:
    for count in (0, 50, 100):
        with pytest.raises(LocalError, match="does not match a bitmap of n=100"):
            encode(_vector(100, count), context=context)


@pytest.mark.parametrize("size", SIZES)
def test_mask_bitmap_has_the_kept_bits_and_no_others(size: int) -> None:
    for count in {0, 1, size // 3, size - 1, size}:
        vector = _vector(size, count)
        kept = range(size) if vector.indices is None else vector.indices.tolist()
        expected = sum(1 << position for position in kept)
        assert mask_bitmap(vector) == expected.to_bytes(-(-size // 8), "little")


def test_all_indices_are_coded_as_dense() -> None:
    values = np.arange(1, 6, dtype=np.float32)
    listed = SparseVector(5, np.arange(5, dtype=np.uint32), values)
    assert encode(listed) == encode(SparseVector(5, None, values))
    assert decode(encode(listed), 5).indices is None


@pytest.mark.parametrize(("values", "compression"), CODINGS[1::4])
@pytest.mark.parametrize(("size", "count"), [(1, 1), (65, 20), (900, 30)])
def test_every_prefix_and_extension_is_refused(
    size: int, count: int, values: ValueCoding, compression: Compression
) -> None:
    vector = _vector(size, count)
    context = _moved(vector, 3)
    data = encode(vector, values, compression, context if size == 900 else None)
    for length in range(len(data)):
        with pytest.raises(CodecError):
            decode(data[:length], size, context)
    for tail in (b"\x00", b"\xff", data):
        with pytest.raises(CodecError):
            decode(data + tail, size, context)


def test_another_size_is_refused() -> None:
    data = encode(_vector(64, 20))
    for size in (-1, 0, 1, 63, 65, 2**28, 2**32 + 64):
        with pytest.raises(CodecError, match="n=64"):
            decode(data, size)


def test_dense_add_and_scatter() -> None:
    vector = SparseVector(5, np.array([1, 4], np.uint32), np.array([2, -3], np.float32))
    assert vector.dense().tolist() == [0, 2, 0, 0, -3]
    theta = np.ones(5, np.float32)
    vector.add_to(theta)
    assert theta.tolist() == [1, 3, 1, 1, -2]
    vector.scatter_into(theta)
    assert theta.tolist() == [1, 2, 1, 1, -3]
    full = SparseVector(2, None, np.array([7, 8], np.float32))
    theta = np.ones(2, np.float32)
    full.add_to(theta)
    assert theta.tolist() == [8, 9]
    full.scatter_into(theta)
    assert theta.tolist() == [7, 8]
    full.dense()[:] = 0
    assert full.values.tolist() == [7, 8]


def test_theta_of_another_shape_or_type_is_refused() -> None:
    vector = _vector(5, 2)
    for theta in (np.zeros(4, np.float32), np.zeros((5, 1), np.float32)):
        with pytest.raises(LocalError, match="theta"):
            vector.add_to(theta)
        with pytest.raises(LocalError, match="theta"):
            vector.scatter_into(theta)


def _ints(*values: int) -> NDArray[np.uint32]:
    return np.array(values, np.uint32)


@pytest.mark.parametrize(
    ("size", "indices", "count"),
    [
        (0, None, 0),
        (2**28 + 1, _ints(), 0),
        (3, None, 2),
        (3, _ints(1, 2), 1),
        (3, _ints(0, 1, 2, 2), 4),
        (3, _ints(1, 2).reshape(2, 1), 2),
    ],
)
def test_a_vector_whose_parts_do_not_fit_is_refused(
    size: int, indices: NDArray[np.uint32] | None, count: int
) -> None:
    with pytest.raises(LocalError, match="sparse"):
        SparseVector(size, indices, np.zeros(count, np.float32))


@pytest.mark.parametrize(
    ("indices", "where"),
    [
        (_ints(2, 1, 3), r"index\[1\]: 1 is not above 2"),
        (_ints(1, 2, 2), r"index\[2\]: 2 is not above 2"),
        (_ints(1, 2, 9), "9 is not below n=9"),
    ],
)
def test_indices_that_do_not_rise_are_the_encoders_error(
    indices: NDArray[np.uint32], where: str
) -> None:
    with pytest.raises(Unencodable, match=where):
        encode(SparseVector(9, indices, np.ones(3, np.float32)))


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("count", [0, 5, 4000, 20_000])
def test_a_vector_says_whether_its_mask_is_needed(compression: Compression, count: int) -> None:
    """It is needed exactly where nothing decodes without it."""
    vector = _vector(20_000, count)
    needed: list[bool] = []
    for changes in (0, 20, 20_000):
        coded = encode(vector, ValueCoding.FP32, compression, _moved(vector, changes))
        needed.append(mask_needed(coded))
        if needed[-1]:
            with pytest.raises(CodecError, match="context"):
                decode(coded, 20_000)
        else:
            assert decode(coded, 20_000).count == count
    assert needed[0] is (0 < count < 20_000)
    assert not mask_needed(encode(vector, ValueCoding.FP32, compression))
