"""Code shared by coordinator and devices: layouts and vectors, the codec, frames, transfer, the link.

This module exports the names that user code needs. Every error is a ``SedgeError``; errors.py shows the
tree.
"""

from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, top_k
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Layout, Role, Tensor, Theta
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import Codec

__all__ = [
    "VERSION",
    "Codec",
    "Compression",
    "Layout",
    "Metrics",
    "Role",
    "SedgeError",
    "SparseVector",
    "Tensor",
    "Theta",
    "Training",
    "ValueCoding",
    "decode",
    "encode",
    "top_k",
]

# All packages share the version of the distribution.
VERSION = "0.2.0"
