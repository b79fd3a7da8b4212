"""Gaps and their varints: round trips, exact bytes, and every way in which they can be broken."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_protocol.codec.blockwise import BLOCK
from sedge_protocol.codec.gaps import from_gaps, from_varints, to_gaps, to_varints
from sedge_protocol.errors import CodecError

Gaps = NDArray[np.uint32]


def _ints(*values: int) -> Gaps:
    return np.array(values, np.uint32)


def _gaps_in(data: bytes) -> NDArray[np.int64]:
    return np.concatenate([np.empty(0, np.int64), *from_varints(data)])


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


def test_varints_lie_across_the_blocks_that_they_are_read_in() -> None:
    for first in range(4):  # bytes before the varints of four, of which BLOCK is a multiple
        gaps = np.array([0] * first + [2**28 - 1] * (BLOCK // 2), np.uint32)
        data = to_varints(gaps)
        assert _gaps_in(data).tolist() == gaps.tolist()
        with pytest.raises(CodecError, match=rf"gap\[{gaps.size - 1}\]: its varint is cut off"):
            _gaps_in(data[:-1])
        with pytest.raises(CodecError, match=rf"gap\[{gaps.size}\]: 5 bytes"):
            _gaps_in(data + b"\x80\x80\x80\x80\x01")
