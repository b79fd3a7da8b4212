"""Compresses the sections of a coded vector, and decompresses them up to a limit known beforehand.

Both compressors are general-purpose: zstd where its library is available, and zlib, which every standard
library has (such as Android's ``java.util.zip.Inflater``).
"""

import sys
import zlib
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise

from sedge_protocol.errors import CodecError

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

# Masks and value planes of real updates have runs and uneven byte frequencies, but hardly any repeated
# strings: the matches that level 3 finds often cost more than their literals. These settings search only 64
# places, for matches of at least seven bytes; all other bytes are Huffman-coded literals. Compared with
# level 3, that saves up to 14 % of the bytes (or costs 3 % more at worst) and takes at most the same time,
# at best a third of it.
_ZSTD: dict[int, int] = {
    zstd.CompressionParameter.strategy: zstd.Strategy.fast,
    zstd.CompressionParameter.min_match: 7,
    zstd.CompressionParameter.hash_log: 6,
    zstd.CompressionParameter.chain_log: 6,
    zstd.CompressionParameter.search_log: 1,
    zstd.CompressionParameter.target_length: 0,
    zstd.CompressionParameter.window_log: 18,
    # No checksum: the frame around a coded vector has a MAC, and each chunk has a hash.
    zstd.CompressionParameter.checksum_flag: 0,
}
# RFC 8878 recommends that every decoder support a window of at least 8 MiB.
MAX_WINDOW_BYTES = 8 * 2**20


class Compression(StrEnum):
    """A compression algorithm. Each device announces which ones it can decompress."""

    ZSTD = "zstd"
    ZLIB = "zlib"
    NONE = "none"


def shrink(data: bytes, compression: Compression, cuts: Sequence[int] = ()) -> bytes:
    """Compress ``data``, or return it unchanged if compression does not make it shorter.

    ``cuts`` are the ascending offsets at which the distribution of its bytes changes.
    """
    if compression is Compression.ZSTD:
        packed = _zstd(data, cuts)
    elif compression is Compression.ZLIB:
        # Only runs and Huffman codes: on value planes and masks of real updates, the result is within 15 %
        # of level 6 with matches and often smaller, and takes a sixth to a tenth of the time. Blocks are at
        # most 16 kB, so the codes adapt after a cut without an explicit flush.
        compressor = zlib.compressobj(strategy=zlib.Z_RLE)
        packed = compressor.compress(data) + compressor.flush()
    else:
        return data
    return packed if len(packed) < len(data) else data


def _zstd(data: bytes, cuts: Sequence[int]) -> bytes:
    """Compress ``data`` to one zstd frame. Each part between cuts is a block with its own Huffman code."""
    compressor = zstd.ZstdCompressor(options=_ZSTD)
    compressor.set_pledged_input_size(len(data))
    packed = [
        compressor.compress(data[begin:end], compressor.FLUSH_BLOCK)
        for begin, end in pairwise((0, *cuts))
    ]
    last = data[cuts[-1] :] if cuts else data
    return b"".join((*packed, compressor.compress(last, compressor.FLUSH_FRAME)))


def grow(data: memoryview, compression: Compression, limit: int) -> bytes:
    """Undo ``shrink``. Returns at most ``limit`` bytes.

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
    """Decompress the single zstd frame in ``data`` to at most ``limit`` bytes.

    Raises ``CodecError`` if the frame states no size, size 0 or a size over the limit; if it needs a
    dictionary or a window over 8 MiB; if it is damaged or truncated; or if more bytes follow it.
    """
    try:
        header = zstd.get_frame_info(data)
        size = header.decompressed_size
        if size is None:  # pyright: ignore[reportUnnecessaryComparison] (the stub says int)
            raise CodecError("zstd: the frame does not state its size")
        if not size:
            raise CodecError("zstd: the frame states a size of 0")
        if size > limit:
            raise CodecError(f"zstd: {size} bytes, the limit is {limit}")
        if header.dictionary_id:
            raise CodecError("zstd: the frame needs a dictionary")
        window = _window(data, size)
        if window > max(MAX_WINDOW_BYTES, size):
            raise CodecError(f"zstd: window {window}, the limit is {MAX_WINDOW_BYTES}")
        limits: dict[int, int] = {
            zstd.DecompressionParameter.window_log_max: max(10, (window - 1).bit_length())
        }
        decompressor = zstd.ZstdDecompressor(options=limits)
        result = decompressor.decompress(data, size)
    except zstd.ZstdError as exc:
        raise CodecError(f"zstd: {exc}") from exc
    if not decompressor.eof:
        raise CodecError(f"zstd: more than {size} bytes, or truncated")
    if len(result) != size:
        raise CodecError(f"zstd: {len(result)} bytes, the header states {size}")
    if decompressor.unused_data:
        raise CodecError(f"zstd: {len(decompressor.unused_data)} bytes after the end of the frame")
    return result


def _window(data: bytes | memoryview, size: int) -> int:
    """Return how far back a zstd frame may refer, in bytes (its window size, RFC 8878, 3.1.1.1.2)."""
    single_segment = data[4] & 0x20
    exponent, mantissa = divmod(data[5], 8)
    return size if single_segment else (1024 << exponent) * (8 + mantissa) // 8


def decompress_zlib(data: bytes | memoryview, limit: int) -> bytes:
    """Decompress the single zlib stream in ``data`` to at most ``limit`` bytes.

    Raises ``CodecError`` for a stream that is damaged, truncated or too long, or is followed by more bytes.
    """
    inflater = zlib.decompressobj()
    try:
        # Asking for one byte more than ``limit`` distinguishes a result of exactly ``limit`` bytes from a
        # longer one. It also keeps max_length above 0, which zlib interprets as "no limit".
        result = inflater.decompress(data, limit + 1)
    except zlib.error as exc:
        raise CodecError(f"zlib: {exc}") from exc
    if len(result) > limit:
        raise CodecError(f"zlib: more than the limit of {limit} bytes")
    if not inflater.eof:
        raise CodecError("zlib: the stream is truncated")
    if inflater.unused_data:
        raise CodecError(f"zlib: {len(inflater.unused_data)} bytes after the end of the stream")
    return result
