"""Decompression that cannot be made to take more memory than it was allowed.

python-zstandard's ``max_output_size`` is ignored when a frame states its own size (32 kB can then
allocate 1 GiB), so the header is read first; the library then never writes past the stated size. It
does not look at a frame that states no bytes at all: such a frame is refused, as nothing is sent empty.
"""

import zstandard

from sedge_protocol.errors import CodecError

# 8 MiB is the window that RFC 8878 asks every decoder to support.
MAX_WINDOW_BYTES = 8 * 2**20


def decompress(data: bytes | memoryview, limit: int) -> bytes:
    """The one zstd frame in ``data``, at most ``limit`` bytes long.

    Raises ``CodecError`` for a frame that states no size, size 0 or one over the limit, needs a
    dictionary or a window over 8 MiB, is damaged or truncated, or is followed by more bytes.
    """
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
