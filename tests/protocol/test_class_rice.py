"""Rice codes with a parameter for each class: round trips, bytes by hand, and what is refused."""

import dataclasses
import math

import numpy as np
import pytest

from sedge_protocol.class_rice import ClassRice, Integers, from_class_rice, to_class_rice, to_places
from sedge_protocol.errors import CodecError


def _ints(*numbers: int) -> Integers:
    return np.array(numbers, np.int64)


def _decoded(coded: ClassRice, ends: Integers) -> Integers:
    return to_places(from_class_rice(coded), coded.counts, ends)


def test_ones_come_back_from_classes_of_every_density() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        sizes = rng.choice([0, 1, 2, 7, 100, 3000], int(rng.integers(1, 8)))
        ends = np.cumsum(sizes)
        chance = np.repeat(rng.choice([0.0, 0.001, 0.1, 0.5, 0.95, 1.0], sizes.size), sizes)
        ones = np.flatnonzero(rng.random(chance.size) < chance)
        coded = to_class_rice(ones, ends)
        assert coded.counts.sum() == ones.size
        assert _decoded(coded, ends).tolist() == ones.tolist()


def test_bytes_by_hand() -> None:
    """Class 0 has 2 and 3 of 5 elements, class 1 none of 2, class 2 the last of 9: gaps 2, 0 and 8."""
    coded = to_class_rice(_ints(2, 3, 15), _ints(5, 7, 16))
    assert coded.counts.tolist() == [2, 0, 1]
    assert coded.bits.tolist() == [0, 0, 2]
    # 001 1 001, the first of each string on the right, then the two low bits of 8.
    assert coded.code == bytes([0b1001100, 0b00])
    swapped = to_class_rice(_ints(1, 8, 13), _ints(4, 16))
    assert (swapped.counts.tolist(), swapped.bits.tolist()) == ([1, 2], [0, 1])
    # Gaps 1, 4 and 4: 01 001 001, and a low bit of the last two.
    assert swapped.code == bytes([0b10010010, 0b00])


def test_each_class_is_within_five_percent_of_its_entropy() -> None:
    rng = np.random.default_rng(3)
    size = 200_000
    for share in (0.5, 0.38, 0.25, 0.1, 0.03, 0.002):
        ones = np.flatnonzero(rng.random(size) < share)
        coded = to_class_rice(ones, _ints(size))
        bits = -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) * size
        assert 8 * len(coded.code) < 1.05 * bits


def test_no_ones_take_no_bytes() -> None:
    coded = to_class_rice(_ints(), _ints(0, 10, 10))
    assert coded.code == b""
    assert _decoded(coded, _ints(0, 10, 10)).size == 0
    with pytest.raises(CodecError, match="0 Rice codes in 1 bytes"):
        from_class_rice(dataclasses.replace(coded, code=b"\x00"))


@pytest.mark.parametrize(
    ("counts", "bits", "code", "error"),
    [
        ((6, 0), (0, 0), b"\x3f", r"class\[0\]: 6 ones, 5 elements"),
        ((2**32 - 1, 0), (27, 0), b"", "bytes for 115964116965 low bits of 4294967295 codes"),
        ((2**32 - 1, 0), (0, 0), b"\xff", "8 Rice codes in 1 bytes, expected 4294967295"),
        ((1, 1), (0, 28), bytes(8), r"class\[1\]: 1 ones with b=28"),
        ((0, 1), (1, 0), b"\x01", r"class\[0\]: 0 ones with b=1"),
        ((1, 1), (0, 0), b"", "0 Rice codes in 0 bytes, expected 2"),
        ((1, 1), (0, 0), b"\x07", "3 Rice codes"),
        ((1, 1), (0, 0), b"\x03\x00", "2 Rice codes in 2 bytes"),
        ((1, 1), (4, 5), b"\x00", "1 bytes for 9 low bits of 2 codes"),
        ((1, 1), (1, 1), b"\x03\x04", "bits past the last Rice code"),
        ((1, 1), (0, 0), b"\xa0", "one 0 lies outside its class"),
        ((1, 1), (0, 3), b"\x03\x07", "one 1 lies outside its class"),
    ],
)
def test_what_is_not_a_code_is_refused(
    counts: tuple[int, int], bits: tuple[int, int], code: bytes, error: str
) -> None:
    with pytest.raises(CodecError, match=error):
        _decoded(ClassRice(_ints(*counts), _ints(*bits), code), _ints(5, 12))


def test_any_bytes_are_refused_or_ones_within_their_classes() -> None:
    rng = np.random.default_rng(4)
    ends, accepted = _ints(40, 40, 100), 0
    for _ in range(20_000):
        counts = rng.integers(0, 4, 3)
        bits = np.where(counts > 0, rng.integers(0, 4, 3), 0)
        coded = ClassRice(counts, bits, rng.bytes(int(rng.integers(0, 5))))
        try:
            ones = _decoded(coded, ends)
        except CodecError:
            continue
        accepted += 1
        assert (np.diff(ones) > 0).all()
        assert np.searchsorted(ones, ends).tolist() == np.cumsum(counts).tolist()
    assert accepted > 100
