"""Gaps and their varints: round trips, exact bytes, and every way in which they can be broken."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.codec.blockwise import BLOCK
from sedge_protocol.codec.gaps import from_gaps, from_varints, to_gaps, to_varints
from sedge_protocol.errors import CodecError

Gaps = NDArray[np.uint32]
EDGES = [0, 1, 127, 128, 129, 2**14 - 1, 2**14, 2**21 - 1, 2**21, 2**28 - 1]


def _ints(*values: int) -> Gaps:
    return np.array(values, np.uint32)


def _gaps_in(data: bytes) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *from_varints(data)])


def _many() -> list[Gaps]:
    rng = np.random.default_rng(1)
    found = [_ints(edge) for edge in EDGES] + [_ints(*EDGES), _ints(*reversed(EDGES))]
    found += [rng.geometric(p, 500).astype(np.uint32) - 1 for p in (0.9, 0.5, 0.1, 1e-3, 1e-5)]
    found += [rng.choice(EDGES, 300).astype(np.uint32), np.zeros(100, np.uint32)]
    return found


def _leb128(gap: int) -> bytes:
    data = b""
    while gap >= 128:
        data += bytes([gap & 127 | 128])
        gap >>= 7
    return data + bytes([gap])


def test_gaps_of_positions_and_back() -> None:
    positions = _ints(0, 1, 5, 6, 2**28 - 1)
    assert to_gaps(positions).tolist() == [0, 0, 3, 0, 2**28 - 8]
    assert positions.tolist() == [0, 1, 5, 6, 2**28 - 1]  # its argument is left alone
    gaps = to_gaps(positions).astype(np.int64)
    for cut in range(6):  # in two blocks, one of them perhaps empty
        found = from_gaps(iter((gaps[:cut], gaps[cut:])), 2**28)
        assert found.dtype == np.uint32
        assert found.tolist() == positions.tolist()
    assert from_gaps([], 1).size == 0


@pytest.mark.parametrize(
    ("gaps", "size", "where"),
    [([5], 5, r"index\[0\]: 5"), ([0, 3, 0], 5, r"index\[2\]: 5"), ([2**56] * 3, 9, r"index\[0\]")],
)
def test_a_position_out_of_range_is_named(gaps: list[int], size: int, where: str) -> None:
    with pytest.raises(CodecError, match=where):
        from_gaps(np.array(gaps, np.int64).reshape(-1, 1), size)  # every gap a block


@pytest.mark.parametrize("gaps", _many(), ids=lambda gaps: f"{gaps.size} from {gaps[0]}")
def test_varints_are_leb128(gaps: Gaps) -> None:
    data = to_varints(gaps)
    assert data == b"".join(_leb128(gap) for gap in gaps.tolist())
    assert _gaps_in(data).tolist() == gaps.tolist()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x80", "cut off"),
        (b"\x01\x80\x80", "cut off"),
        (b"\x01\x80\x00", r"gap\[1\]: not the shortest"),
        (b"\xff\x7f\xff\x80\x00", r"gap\[1\]: not the shortest"),
        (b"\x80\x80\x80\x80\x01", r"gap\[0\]: 5 bytes, the limit is 4"),
        (b"\x05" + b"\xff" * 9 + b"\x01", r"gap\[1\]: 10 bytes"),
    ],
)
def test_broken_varints_are_refused(data: bytes, what: str) -> None:
    with pytest.raises(CodecError, match=what):
        _gaps_in(data)


def test_varints_lie_across_the_blocks_that_they_are_read_in() -> None:
    for first in range(4):  # bytes before the varints of four, of which BLOCK is a multiple
        gaps = np.array([0] * first + [2**28 - 1] * (BLOCK // 2), np.uint32)
        data = to_varints(gaps)
        assert _gaps_in(data).tolist() == gaps.tolist()
        with pytest.raises(CodecError, match=rf"gap\[{gaps.size - 1}\]: its varint is cut off"):
            _gaps_in(data[:-1])
        with pytest.raises(CodecError, match=rf"gap\[{gaps.size}\]: 5 bytes"):
            _gaps_in(data + b"\x80\x80\x80\x80\x01")
