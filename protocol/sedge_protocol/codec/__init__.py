"""The codec: sparse float32 vectors in few bytes, identical on every machine. Byte for byte: WIRE.md.

vector       the coded vector: header, mask section, value planes
masks        which elements are kept, by bitmaps or gaps
values       byte planes in six precisions; exponent_order makes one of them compress better
compression  zstd and zlib, under a limit
top_k        which elements are worth sending
grid         how those are rounded if error feedback compensates for the rounding
"""

from sedge_protocol.codec.compression import Compression
from sedge_protocol.codec.top_k import above, top_k
from sedge_protocol.codec.values import ValueCoding, decoded_values
from sedge_protocol.codec.vector import SparseVector, decode, encode, mask_bitmap, mask_needed

__all__ = [
    "Compression",
    "SparseVector",
    "ValueCoding",
    "above",
    "decode",
    "decoded_values",
    "encode",
    "mask_bitmap",
    "mask_needed",
    "top_k",
]
