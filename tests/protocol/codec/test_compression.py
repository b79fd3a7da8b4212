"""Sections: shrink and grow, and what a hostile section may cost."""

import tracemalloc
import zlib

import pytest

from sedge_protocol.codec import Compression
from sedge_protocol.codec.compression import grow, shrink, zstd
from sedge_protocol.errors import CodecError

BOTH = [Compression.ZSTD, Compression.ZLIB]


def _text(size: int) -> bytes:
    return (b"sedge " * (size // 6 + 1))[:size]


@pytest.mark.parametrize("compression", BOTH)
def test_one_byte_over_the_limit_is_refused(compression: Compression) -> None:
    packed = memoryview(shrink(_text(1000), compression))
    with pytest.raises(CodecError, match="limit"):
        grow(packed, compression, 999)
    with pytest.raises(CodecError):
        grow(packed, compression, 0)


@pytest.mark.parametrize("compression", BOTH)
def test_every_prefix_and_every_extension_is_refused(compression: Compression) -> None:
    packed = shrink(_text(500), compression)
    for length in range(len(packed)):
        with pytest.raises(CodecError):
            grow(memoryview(packed)[:length], compression, 500)
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
