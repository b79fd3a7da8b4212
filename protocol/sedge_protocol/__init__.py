"""Shared by both sides of Sedge: layouts and vectors, the codec, frames, transfer, the link.

The names here are those that a user's own code meets. Every error is a ``SedgeError``; the tree is in
errors.py.
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

# The version of the distribution, and so of every package.
VERSION = "0.2.0"
