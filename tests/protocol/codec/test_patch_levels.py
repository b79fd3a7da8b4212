"""Levels of a patch: what travels comes back, parts lie within each other, and no bytes do harm."""

import numpy as np
import pytest

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.codec.patch_levels import MAX_LEVEL, decode_levels, encode_levels, offered, part
from sedge_protocol.errors import CodecError, Unencodable


def vector(indices: list[int] | None, size: int = 9) -> SparseVector:
    """Values 1, 2, 3 ... at these places."""
    places = None if indices is None else np.array(indices, np.uint32)
    count = size if places is None else places.size
    return SparseVector(size, places, np.arange(1, count + 1, dtype=np.float32))


def levels_of(*levels: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.array(levels, np.uint8)


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("top", [0, MAX_LEVEL])
@pytest.mark.parametrize("count", [0, 1, 300])
def test_levels_come_back(count: int, top: int, compression: Compression) -> None:
    levels = np.random.default_rng(count).integers(0, top + 1, count).astype(np.uint8)
    coded = encode_levels(levels, compression)
    assert bool(coded) == bool(levels.any())
    found = decode_levels(coded, count)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, levels)


def test_a_level_that_is_too_high() -> None:
    with pytest.raises(Unencodable, match="levels: 8, expected 0 to 7"):
        encode_levels(levels_of(0, 8))


def coded(*values: float, size: int | None = None) -> bytes:
    """Any vector as levels would travel."""
    some = np.array(values, np.float32)
    indices = None if size is None else np.arange(some.size, dtype=np.uint32)
    return encode(SparseVector(size or some.size, indices, some), ValueCoding.FP32)


@pytest.mark.parametrize(
    ("packed", "count", "text"),
    [
        (coded(1, 2), 0, "expected none without a patch"),
        (coded(1, 2), 3, "n=2"),
        (coded(1, 2, size=3), 3, "3 whole numbers from 0 to 7"),
        (coded(0.5, 1), 2, "2 whole numbers from 0 to 7"),
        (coded(-1, 1), 2, "2 whole numbers"),
        (coded(8, 1), 2, "2 whole numbers"),
        (coded(2.0**100, 1), 2, "2 whole numbers"),
        (b"junk", 2, "version"),
    ],
)
def test_levels_that_are_none(packed: bytes, count: int, text: str) -> None:
    with pytest.raises(CodecError, match=text):
        decode_levels(packed, count)


def test_what_is_offered() -> None:
    assert offered(levels_of()) == (0,)
    assert offered(levels_of(3, 5, 3)) == (0, 3, 5)
    assert offered(levels_of(0, 0)) == (0,)


@pytest.mark.parametrize("level", [0, 2, MAX_LEVEL])
@pytest.mark.parametrize("levels", [[3], [5, 0, 5, 2, 7]], ids=str)
def test_a_part_has_the_elements_up_to_a_level(levels: list[int], level: int) -> None:
    patch = vector(list(range(3, 3 + 2 * len(levels), 2)), 100)
    found = part(patch, levels_of(*levels), level)
    wanted = [place for place, its in enumerate(levels) if its <= level]
    if not wanted:
        assert found is None
        return
    assert found is not None and found.indices is not None and patch.indices is not None
    assert found.size == 100
    np.testing.assert_array_equal(found.indices, patch.indices[wanted])
    np.testing.assert_array_equal(found.values, patch.values[wanted])
    assert (found is patch) == (len(wanted) == len(levels))
