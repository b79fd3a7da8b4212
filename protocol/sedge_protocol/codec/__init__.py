"""The codec: encodes sparse float32 vectors compactly, and identically on every machine.

WIRE.md specifies every byte.

vector       the coded vector: header, mask section, value planes
masks        which elements are kept, by bitmaps or gaps
values       byte planes in six precisions; exponent_order makes one of them compress better
compression  zstd and zlib, with a limit on the decompressed size
top_k        selects the elements that are worth sending
grid         rounds the selected elements when error feedback compensates for the rounding
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
