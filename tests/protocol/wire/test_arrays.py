"""Settings and named arrays of an order: what is refused, by either side, and in which words."""

import re
import struct

import pytest

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.arrays import check_exchange, unpack_arrays
from sedge_protocol.wire.work import MAX_ARRAY_BYTES, Work

NAN = float("nan")
HALF = bytes(MAX_ARRAY_BYTES // 2)


def test_what_may_travel() -> None:
    largest = Work(
        settings={"rate": 0.5, "_on": True, "N" * 64: "text", "count": -3},
        arrays={"a": HALF, "b": HALF, "none": b""},
        returns={"all": MAX_ARRAY_BYTES // 4},
    )
    check_exchange(largest)
    assert {name: array.shape for name, array in unpack_arrays(largest).items()} == {
        "a": (4096,), "b": (4096,), "none": (0,),
    }  # fmt: skip


WRONG: list[tuple[Work, str]] = [
    (Work(settings={"rate": NAN}), "work.settings.rate: nan, expected a finite number"),
    (Work(settings={"a b": 1}), "work.settings: 'a b', expected an identifier of at most 64 chara"),
    (Work(returns={"N" * 65: 1}), "work.returns: 'NNNNNN"),
    (Work(arrays={"1st": b""}), "work.arrays: '1st', expected an identifier"),
    (Work(arrays={"m": b"abc"}), "work.arrays.m: 3 bytes, expected a multiple of 4"),
    (
        Work(arrays={"m": struct.pack("<2f", 1, NAN)}),
        "work.arrays.m[1]: nan, expected a finite number",
    ),
    (
        Work(arrays={"a": HALF, "b": HALF, "c": bytes(4)}),
        "work.arrays: 32772 bytes, expected at mo",
    ),
    (Work(returns={"a": 8192, "b": 1}), "work.returns: 32772 bytes, expected at most 32768"),
]


@pytest.mark.parametrize(("work", "text"), WRONG, ids=lambda value: str(value)[:40])
def test_what_may_not(work: Work, text: str) -> None:
    with pytest.raises(CodecError, match=f"^{re.escape(text)}"):
        check_exchange(work)
