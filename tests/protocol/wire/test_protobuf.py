"""The wire format, by the examples of its own documentation, and what is none."""

import pytest

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.protobuf import again, field, fields, numbers


def read(hexadecimal: str) -> list[tuple[int, int, int, bytes]]:
    return [
        (f.number, f.wire, f.value, bytes(f.data))
        for f in fields(memoryview(bytes.fromhex(hexadecimal)))
    ]


def test_the_documentations_examples() -> None:
    assert read("08 96 01") == [(1, 0, 150, b"")]
    assert read("12 07 74 65 73 74 69 6e 67") == [(2, 2, 0, b"testing")]
    assert read("1a 03 08 96 01") == [(3, 2, 0, bytes.fromhex("089601"))]
    assert read("08" + "ff" * 9 + "01") == [(1, 0, 2**64 - 1, b"")]
    assert read("0d 00 00 80 3f 11" + "00" * 8) == [
        (1, 5, 0, bytes.fromhex("0000803f")),
        (2, 1, 0, bytes(8)),
    ]
    assert list(numbers(memoryview(bytes.fromhex("03 8e 02 9e a7 05")))) == [3, 270, 86942]
    assert read("") == []


def test_what_was_read_is_written_again() -> None:
    for text in ("08 96 01", "12 07 74 65 73 74 69 6e 67", "0d 00 00 80 3f", "09" + "01" * 8):
        (known,) = fields(memoryview(bytes.fromhex(text)))
        assert again(known) == bytes.fromhex(text)
    assert field(1, 2**64 - 1) == bytes.fromhex("08" + "ff" * 9 + "01")
    assert field(1, 0) == bytes.fromhex("0800")
    assert field(300, b"") == bytes.fromhex("e2 12 00")
    assert field(2, bytes(200))[:4] == bytes.fromhex("12 c8 01 00")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("08", "byte 1: not a varint"),
        ("08 96", "byte 1: not a varint"),
        ("08" + "ff" * 10 + "01", "byte 1: not a varint"),
        ("08" + "ff" * 9 + "02", "byte 1: not a varint"),
        ("12 07 74 65", "byte 2: 7 bytes expected, 2 left"),
        ("12" + "ff" * 9 + "01", "byte 11: 18446744073709551615 bytes expected, 0 left"),
        ("0d 00 00 80", "byte 1: 4 bytes expected, 3 left"),
        ("0b", "byte 1: wire type 3"),
        ("0f", "byte 1: wire type 7"),
        ("80", "byte 0: not a varint"),
    ],
)
def test_malformed_bytes(message: str, said: str) -> None:
    with pytest.raises(CodecError, match=said):
        read(message)
    with pytest.raises(CodecError, match="byte 0: not a varint"):
        list(numbers(memoryview(b"\x80")))
