"""Planes in the order of their exponents, against plain Python sorting."""

import numpy as np
import pytest

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.codec.blockwise import BLOCK
from sedge_protocol.codec.exponent_order import Plane, in_place, ordered


def _planes(size: int, exponents: int = 5) -> tuple[Plane, Plane]:
    """A plane that tells where each byte came from, as far as one can, and the highest one."""
    rng = np.random.default_rng(size)
    signs = rng.integers(0, 2, size) << 7
    highest = (rng.integers(60, 60 + exponents, size) | signs).astype(np.uint8)
    return (np.arange(size) % 251).astype(np.uint8), highest


@pytest.mark.parametrize("size", [0, 1, 257, 2 * BLOCK + 1])
@pytest.mark.parametrize("exponents", [5, 40])
def test_bytes_come_exponent_by_exponent_and_go_back(size: int, exponents: int) -> None:
    plane, highest = _planes(size, exponents)
    expected = sorted(range(size), key=lambda i: highest[i] % 128)  # sorted() keeps equals in order
    found, _ = ordered(plane, highest)
    assert found.tolist() == [plane[i] for i in expected]
    assert in_place(found, highest).tolist() == plane.tolist()


def test_cuts_lie_where_the_exponent_changes_and_leave_no_small_part() -> None:
    plane, highest = _planes(3000)
    highest[:20] = 3  # a group too small for a code of its own
    _, cuts = ordered(plane, highest)
    exponents = np.sort(highest & 0x7F)
    assert len(cuts) == 4
    assert all(exponents[cut - 1] < exponents[cut] for cut in cuts)
    assert min(np.diff([0, *cuts])) >= 256


@pytest.mark.parametrize("coding", [ValueCoding.FP32, ValueCoding.BF16])
@pytest.mark.parametrize("compression", [Compression.ZLIB, Compression.ZSTD])
def test_bell_curves_take_fewer_bytes_and_come_back(
    coding: ValueCoding, compression: Compression
) -> None:
    values = np.random.default_rng(0).normal(0, 1e-2, 40_000).astype(np.float32)
    vector = SparseVector(values.size, None, values)
    coded = encode(vector, coding, compression)
    by_position = encode(vector, coding, Compression.NONE)
    assert (coded[3], by_position[3]) == (1, 0)
    found = decode(coded, values.size).values
    assert found.tobytes() == decode(by_position, values.size).values.tobytes()
    lengths = np.frombuffer(coded[12 : 16 + 4 * (4 if coding == "fp32" else 2)], np.uint32)
    assert lengths[-2] < values.size  # by position this plane does not compress at all
