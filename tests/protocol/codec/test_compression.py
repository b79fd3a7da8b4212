"""Sections: shrink and grow, what a hostile one may cost, and how a frame of zstd can lie."""

import tracemalloc
import zlib

import pytest

from sedge_protocol.codec import Compression
from sedge_protocol.codec.compression import decompress_zstd, grow, shrink, zstd
from sedge_protocol.errors import CodecError

BOTH = [Compression.ZSTD, Compression.ZLIB]
DATA, LONG = b"sedge " * 100, 300_000


@pytest.mark.parametrize("compression", BOTH)
def test_the_limit_is_exact(compression: Compression) -> None:
    packed = memoryview(shrink(DATA, compression))
    assert grow(packed, compression, len(DATA)) == DATA
    for limit in (len(DATA) - 1, 0):
        with pytest.raises(CodecError, match=rf"limit (is|of) {limit}\b"):
            grow(packed, compression, limit)


@pytest.mark.parametrize("compression", BOTH)
def test_every_prefix_and_every_extension_is_refused(compression: Compression) -> None:
    packed = shrink(DATA, compression)
    for length in range(len(packed)):
        with pytest.raises(CodecError):
            grow(memoryview(packed)[:length], compression, len(DATA))
    for tail in (b"\x00", packed, b"\xff" * 40):
        with pytest.raises(CodecError):
            grow(memoryview(packed + tail), compression, 10_000)


def test_a_bomb_takes_no_memory() -> None:
    zeros = bytes(2**26)
    sized = zstd.compress(zeros)
    streamed = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    unsized = streamed.compress(zeros) + streamed.flush()
    bombs = [
        ("zstd that states its size", Compression.ZSTD, sized),
        ("zstd without a size, window 128 MiB", Compression.ZSTD, unsized),
        ("two zstd frames", Compression.ZSTD, sized + sized),
        ("zlib", Compression.ZLIB, zlib.compress(zeros)),
        ("zlib twice", Compression.ZLIB, zlib.compress(zlib.compress(zeros))),
    ]
    for name, compression, bomb in bombs:
        tracemalloc.start()
        try:
            with pytest.raises(CodecError):
                grow(memoryview(bomb), compression, 10_000)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 200_000, name


SIZED = zstd.compress(DATA)
UNSIZED = zstd.compress(DATA, options={zstd.CompressionParameter.content_size_flag: 0})
WITH_DICTIONARY = SIZED[:4] + bytes([SIZED[4] | 1, 7]) + SIZED[5:]


@pytest.mark.parametrize(
    ("coded", "why"),
    [
        (zstd.compress(b""), "states a size of 0"),
        (UNSIZED, "does not state its size"),
        (WITH_DICTIONARY, "needs a dictionary"),
    ],
)
def test_a_frame_that_we_do_not_write_is_refused(coded: bytes, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        decompress_zstd(coded, 2**20)


@pytest.mark.parametrize("stated", [0, 1, LONG - 1, LONG + 1, 2**20])
def test_a_frame_that_lies_about_its_size_is_refused(stated: int) -> None:
    stream = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 10})
    stream.set_pledged_input_size(LONG)
    # With a window descriptor, and a size of 4 bytes behind it.
    coded = bytearray(stream.compress(bytes(LONG)) + stream.flush())
    assert zstd.get_frame_info(bytes(coded)).decompressed_size == LONG
    coded[6:10] = stated.to_bytes(4, "little")
    assert zstd.get_frame_info(bytes(coded)).decompressed_size == stated
    with pytest.raises(CodecError, match="zstd"):
        decompress_zstd(bytes(coded), 2**20)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ((23, 0), "corruption"),  # the limit, in a frame that has no 256 bytes
        ((23, 1), "window 9437184, the limit is 8388608"),
        ((24, 3), "window 23068672, the limit is 8388608"),
    ],
)
def test_a_window_over_the_limit_is_refused(window: tuple[int, int], message: str) -> None:
    # Magic, a size of 2 bytes (256 + 0), a power of 2 and eighths of it, and a raw block of nothing.
    exponent, eighths = window
    coded = bytes([exponent - 10 << 3 | eighths])
    raw = b"\x28\xb5\x2f\xfd\x40" + coded + b"\x00\x00" + b"\x01\x00\x00"
    with pytest.raises(CodecError, match=message):
        decompress_zstd(raw, 2**20)
