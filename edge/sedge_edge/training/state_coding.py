"""Encodes training state as MessagePack; a vector (n,) becomes the bytes of its float32 values."""

from typing import TypeVar

import msgspec
import numpy as np

from sedge_edge.training.trainer import Moments
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Theta

T = TypeVar("T")


def encode_state(value: object) -> bytes:
    """Return a struct or dataclass, which may hold vectors, encoded as MessagePack."""
    return _encoder.encode(value)


def decode_state(data: bytes, kind: type[T]) -> T:
    """Decode a value of this type. Raises ``ValueError`` if the data are invalid."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_vector)


def encode_moments(moments: Moments) -> bytes:
    """Return an optimizer's state encoded as MessagePack. A device stores it as one blob per round."""
    return encode_state(moments)


def decode_moments(data: bytes) -> Moments:
    """Decode an optimizer's state. Raises ``StorageError`` if the data are invalid."""
    try:
        return decode_state(data, Moments)
    except ValueError as exc:  # raised by msgspec
        raise StorageError(f"the optimizer's state cannot be read: {exc}") from exc


def _bytes(vector: object) -> bytes:
    return np.asarray(vector, "<f4").tobytes()


def _vector(_: type, data: bytes) -> Theta:
    return np.frombuffer(data, "<f4").astype(np.float32)


_encoder = msgspec.msgpack.Encoder(enc_hook=_bytes)
