"""Coded vectors: round trips, what a vector can do, what an encoder must refuse."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError, LocalError
from sedge_protocol.sparse import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    decoded_values,
    encode,
    top_k,
)

CODINGS = list(itertools.product(ValueCoding, Compression))
SIZES = [1, 2, 7, 8, 9, 63, 64, 65, 1000, 20_000]


def _vector(size: int, count: int, seed: int = 0) -> SparseVector:
    rng = np.random.default_rng([size, count, seed])
    values = rng.normal(0, 1e-2, count).astype(np.float32)
    if count == size:
        return SparseVector(size, None, values)
    return SparseVector(size, _chosen(rng, size, count), values)


def _chosen(rng: np.random.Generator, size: int, count: int) -> NDArray[np.uint32]:
    return np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("values", "compression"), CODINGS)
def test_round_trip(size: int, values: ValueCoding, compression: Compression) -> None:
    shares = {0, 1, size - 1, size, size // 2, size // 10, size // 100, size * 9 // 10}
    for count in shares:
        vector = _vector(size, count)
        data = encode(vector, values, compression)
        for found in (decode(data, size), decode(memoryview(data), size)):
            assert found.size == size
            assert found.count == count
            expected = decoded_values(vector.values, values)
            assert found.values.tobytes() == expected.tobytes()
            if vector.indices is None:
                assert found.indices is None
            else:
                assert found.indices is not None
                assert found.indices.dtype == np.uint32
                assert np.array_equal(found.indices, vector.indices)
        planes = 4 if values is ValueCoding.FP32 else 3
        assert len(data) <= 16 + 4 * planes + -(-size // 8) + 4 * count


@pytest.mark.parametrize("compression", Compression)
def test_fp32_is_bit_exact(compression: Compression) -> None:
    bits = np.random.default_rng(1).integers(0, 2**32, 4000, np.uint32)
    values = bits.view(np.float32)
    values = values[np.isfinite(values)]
    values[:4] = [0.0, -0.0, 1e-45, -1e-45]
    vector = SparseVector(values.size, None, values)
    found = decode(encode(vector, ValueCoding.FP32, compression), values.size)
    assert found.values.tobytes() == values.tobytes()


def test_the_defaults_are_bf16_and_zstd() -> None:
    vector = _vector(1000, 500)
    assert encode(vector) == encode(vector, ValueCoding.BF16, Compression.ZSTD)


def test_all_indices_are_coded_as_dense() -> None:
    values = np.arange(1, 6, dtype=np.float32)
    listed = SparseVector(5, np.arange(5, dtype=np.uint32), values)
    assert encode(listed) == encode(SparseVector(5, None, values))
    assert decode(encode(listed), 5).indices is None


def test_strided_values_are_coded_like_their_copy() -> None:
    values = np.arange(1, 21, dtype=np.float32)
    strided = SparseVector(10, None, values[::2])
    for coding in ValueCoding:
        assert encode(strided, coding) == encode(SparseVector(10, None, values[::2].copy()), coding)


def test_decoded_arrays_are_the_receivers_own() -> None:
    for coding, compression in CODINGS:
        found = decode(encode(_vector(100, 50), coding, compression), 100)
        found.values[0] = 1
        assert found.indices is not None
        found.indices[0] = 0


@pytest.mark.parametrize(("values", "compression"), CODINGS)
@pytest.mark.parametrize(("size", "count"), [(1, 0), (1, 1), (65, 20), (900, 30), (300, 270)])
def test_every_prefix_and_extension_is_refused(
    size: int, count: int, values: ValueCoding, compression: Compression
) -> None:
    data = encode(_vector(size, count), values, compression)
    for length in range(len(data)):
        with pytest.raises(CodecError):
            decode(data[:length], size)
    for tail in (b"\x00", b"\xff", data):
        with pytest.raises(CodecError):
            decode(data + tail, size)


def test_another_size_is_refused() -> None:
    data = encode(_vector(64, 20))
    for size in (-1, 0, 1, 63, 65, 2**28, 2**32 + 64):
        with pytest.raises(CodecError, match="n=64"):
            decode(data, size)


def test_another_version_is_refused_before_anything_else() -> None:
    with pytest.raises(CodecError, match="version 2, this codec reads 1"):
        decode(b"\x02", 64)


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
    with pytest.raises(LocalError, match=where):
        encode(SparseVector(9, indices, np.ones(3, np.float32)))


@pytest.mark.parametrize(
    ("value", "coding"),
    [(v, c) for v in (np.nan, np.inf, -np.inf) for c in ValueCoding]
    + [(7e4, ValueCoding.FP16), (-65520, ValueCoding.FP16), (3.4e38, ValueCoding.BF16)],
)
def test_values_that_would_not_arrive_are_the_encoders_error(
    value: float, coding: ValueCoding
) -> None:
    values = np.array([1, -2, value, 3], np.float32)
    with pytest.raises(LocalError, match=r"value\[2\]"):
        encode(SparseVector(9, _ints(1, 2, 4, 6), values), coding)


def test_error_feedback_needs_no_decoder() -> None:
    """What a device adds to its next delta: the part of this one that did not arrive."""
    delta = np.random.default_rng(3).normal(0, 1e-3, 5000).astype(np.float32)
    for coding in ValueCoding:
        chosen = top_k(delta, 500)
        arrived = SparseVector(5000, chosen.indices, decoded_values(chosen.values, coding))
        assert np.array_equal(arrived.dense(), decode(encode(chosen, coding), 5000).dense())
