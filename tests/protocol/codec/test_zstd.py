"""Decompression under a limit: what it takes, and every way in which a frame can lie."""

import pytest

from sedge_protocol.codec.compression import decompress_zstd, zstd
from sedge_protocol.errors import CodecError

DATA = bytes(range(256)) * 40


def compress(data: bytes, level: int = 3, sized: bool = True, checksum: bool = True) -> bytes:
    parameters = zstd.CompressionParameter
    options: dict[int, int] = {
        parameters.compression_level: level,
        parameters.content_size_flag: sized,
        parameters.checksum_flag: checksum,
    }
    return zstd.compress(data, options=options)


def with_window(data: bytes, window_log: int) -> bytes:
    """A frame with a window descriptor, which a frame in a single segment lacks."""
    stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: window_log})
    stream.set_pledged_input_size(len(data))
    return stream.compress(data) + stream.flush()


def test_the_limit_is_exact() -> None:
    assert decompress_zstd(compress(DATA), len(DATA)) == DATA
    with pytest.raises(CodecError, match=f"{len(DATA)} bytes, the limit is {len(DATA) - 1}"):
        decompress_zstd(compress(DATA), len(DATA) - 1)


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(CodecError, match="states a size of 0"):
        decompress_zstd(compress(b""), 2**20)


def test_a_frame_without_a_size_is_refused() -> None:
    with pytest.raises(CodecError, match="does not state its size"):
        decompress_zstd(compress(DATA, sized=False), 2**20)


@pytest.mark.parametrize("stated", [0, 1, len(DATA) - 1, len(DATA) + 1, 2**20])
def test_a_frame_that_lies_about_its_size_is_refused(stated: int) -> None:
    coded = bytearray(with_window(DATA * 30, 10))  # a size of 4 bytes behind the window's
    assert zstd.get_frame_info(bytes(coded)).decompressed_size == 30 * len(DATA)
    coded[6:10] = stated.to_bytes(4, "little")
    assert zstd.get_frame_info(bytes(coded)).decompressed_size == stated
    with pytest.raises(CodecError, match="zstd"):
        decompress_zstd(bytes(coded), 2**20)


@pytest.mark.parametrize(("eighths", "window"), [(0, 16_777_216), (3, 23_068_672)])
def test_a_window_over_the_limit_is_refused(eighths: int, window: int) -> None:
    # Magic, a size of 2 bytes (256 + 0), a window of 2**24 and eighths of it, and a raw block of nothing.
    coded = bytes([24 - 10 << 3 | eighths])
    raw = b"\x28\xb5\x2f\xfd\x40" + coded + b"\x00\x00" + b"\x01\x00\x00"
    with pytest.raises(CodecError, match=f"window {window}, the limit is 8388608"):
        decompress_zstd(raw, 2**20)


def test_a_frame_that_needs_a_dictionary_is_refused() -> None:
    coded = bytearray(compress(DATA))
    coded[4:5] = bytes([coded[4] | 1]) + b"\x07"
    with pytest.raises(CodecError, match="dictionary"):
        decompress_zstd(bytes(coded), 2**20)


@pytest.mark.parametrize("extra", [b"\x00", compress(DATA), b"\x50\x2a\x4d\x18\x00\x00\x00\x00"])
def test_whatever_follows_the_frame_is_refused(extra: bytes) -> None:
    with pytest.raises(CodecError, match="zstd"):
        decompress_zstd(compress(DATA) + extra, 2**20)


def test_a_skippable_frame_is_refused() -> None:
    with pytest.raises(CodecError, match="zstd"):
        decompress_zstd(b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd", 2**20)
