"""Compression of a coded vector's sections, and decompression to a limit known beforehand.

Both compressors are general ones: zstd where its library is available, and zlib, which every standard
library has (such as Android's ``java.util.zip.Inflater``).
"""

import zlib
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

import zstandard

from sedge_protocol.errors import CodecError

# Masks and value planes of real updates have runs and uneven byte frequencies, but hardly any repeated
# strings: the matches that level 3 finds often cost more than their literals. Only matches of seven bytes
# and more are sought, in 64 places, and the rest is left to the Huffman code: up to 14 % fewer bytes than
# level 3, 3 % more at worst, in a third to all of its time.
_ZSTD = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    min_match=7,
    hash_log=6,
    chain_log=6,
    search_log=1,
    target_length=0,
    window_log=18,
    # No checksum: the frame around a coded vector has a MAC and each chunk a hash.
    write_checksum=False,
)
# RFC 8878 asks every decoder to support a window of 8 MiB.
MAX_WINDOW_BYTES = 8 * 2**20


class Compression(StrEnum):
    """A compression; each device announces which ones it can decompress."""

    ZSTD = "zstd"
    ZLIB = "zlib"
    NONE = "none"


def shrink(data: bytes, compression: Compression, cuts: Sequence[int] = ()) -> bytes:
    """``data`` compressed, or as it is if that is not longer.

    At ``cuts``, ascending and within the data, the distribution of its bytes changes.
    """
    if compression is Compression.ZSTD:
        packed = _zstd(data, cuts)
    elif compression is Compression.ZLIB:
        # Only runs and Huffman codes: on value planes and masks of real updates within 15 % of level 6
        # with matches, often smaller, in a sixth to a tenth of its time. Blocks are at most 16 kB, so
        # they adapt to cuts without being told.
        compressor = zlib.compressobj(strategy=zlib.Z_RLE)
        packed = compressor.compress(data) + compressor.flush()
    else:
        return data
    return packed if len(packed) < len(data) else data


def _zstd(data: bytes, cuts: Sequence[int]) -> bytes:
    """One frame; each part between cuts is a block of its own, with its own Huffman code."""
    compressor = zstandard.ZstdCompressor(compression_params=_ZSTD)
    if not cuts:
        return compressor.compress(data)
    blocks = compressor.compressobj(size=len(data))
    packed: list[bytes] = []
    for begin, end in pairwise((0, *cuts)):
        packed.append(blocks.compress(data[begin:end]))
        packed.append(blocks.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
    return b"".join((*packed, blocks.compress(data[cuts[-1] :]), blocks.flush()))


def grow(data: memoryview, compression: Compression, limit: int) -> bytes:
    """The bytes that ``shrink`` compressed, never more than ``limit``.

    Raises ``CodecError`` for damaged, truncated or trailing bytes and for a result over the limit.
    """
    if compression is Compression.ZSTD:
        return decompress_zstd(data, limit)
    if compression is Compression.ZLIB:
        return decompress_zlib(data, limit)
    if len(data) > limit:
        raise CodecError(f"section: {len(data)} bytes, the limit is {limit}")
    return bytes(data)


def decompress_zstd(data: bytes | memoryview, limit: int) -> bytes:
    """The one zstd frame in ``data``, at most ``limit`` bytes long.

    Raises ``CodecError`` for a frame that states no size, size 0 or one over the limit, needs a
    dictionary or a window over 8 MiB, is damaged or truncated, or is followed by more bytes.
    """
    # python-zstandard ignores ``max_output_size`` when a frame states its own size (32 kB can then allocate
    # 1 GiB), so the header is read first; the library then never writes past the stated size. It does not
    # look at a frame that states no bytes at all: such a frame is refused, as nothing is sent empty.
    try:
        header = zstandard.get_frame_parameters(data)
        if header.content_size == zstandard.CONTENTSIZE_UNKNOWN:
            raise CodecError("zstd: the frame does not state its size")
        if not header.content_size:
            raise CodecError("zstd: the frame states that it is empty")
        if header.content_size > limit:
            raise CodecError(f"zstd: {header.content_size} bytes, the limit is {limit}")
        if header.window_size > MAX_WINDOW_BYTES and header.window_size > header.content_size:
            raise CodecError(f"zstd: window {header.window_size}, the limit is {MAX_WINDOW_BYTES}")
        if header.dict_id:
            raise CodecError("zstd: the frame needs a dictionary")
        decompressor = zstandard.ZstdDecompressor(max_window_size=max(limit, MAX_WINDOW_BYTES))
        result = decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as exc:
        raise CodecError(f"zstd: {exc}") from exc
    if len(result) != header.content_size:
        raise CodecError(f"zstd: {len(result)} bytes, the header states {header.content_size}")
    return result


def decompress_zlib(data: bytes | memoryview, limit: int) -> bytes:
    """The one zlib stream in ``data``, at most ``limit`` bytes long.

    Raises ``CodecError`` for a stream that is damaged, truncated or too long, or is followed by more bytes.
    """
    inflater = zlib.decompressobj()
    try:
        # One byte more than allowed tells a result of exactly ``limit`` bytes from a longer one, and
        # keeps max_length from being 0, which zlib takes for "no limit".
        result = inflater.decompress(data, limit + 1)
    except zlib.error as exc:
        raise CodecError(f"zlib: {exc}") from exc
    if len(result) > limit:
        raise CodecError(f"zlib: over {limit} bytes, the limit")
    if not inflater.eof:
        raise CodecError("zlib: the stream is truncated")
    if inflater.unused_data:
        raise CodecError(f"zlib: {len(inflater.unused_data)} bytes after the end of the stream")
    return result
