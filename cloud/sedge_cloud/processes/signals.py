"""Signals that a fleet's coordinators send each other through the broker: changed rows, chunks to send.

A signal may be lost without harm, as every process checks the rows anyway, and devices ask again. A signal
changes nothing by itself. It is authenticated all the same, with a secret that only the fleet's
coordinators know.

    8 bytes   the sender's token, little endian
    16 bytes  HMAC-SHA256(key, topic || token || body)[:16]
    body      of ``wanted`` and ``lacks``: MessagePack of ``Lacking`` or ``LeftOut`` (hints.py)
"""

import hashlib
import hmac
from contextlib import suppress
from typing import TypeAlias

import msgspec

from sedge_cloud.hints import Lacking, LeftOut
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.keys import derive
from sedge_protocol.wire.topics import cloud

CHANGED, WANTED, LACKS = "changed", "wanted", "lacks"
_TOKEN_BYTES, _HEAD_BYTES = 8, 24


class Changed(msgspec.Struct, frozen=True):
    """Rows have changed: there are new orders, an update has arrived, or a device has come or gone."""


Signal: TypeAlias = Changed | Lacking | LeftOut
_BODIES: dict[str, type[Lacking | LeftOut]] = {WANTED: Lacking, LACKS: LeftOut}


class Signals:
    """Seals and opens the signals of one process."""

    def __init__(self, fleet: str, secret: bytes) -> None:
        self._fleet = fleet
        self._key = derive(secret, "coordinators")

    def seal(self, token: int, signal: Signal) -> Send:
        """Encode a signal from the process with this token to all the others."""
        kind, body = CHANGED, b""
        if not isinstance(signal, Changed):
            kind = WANTED if isinstance(signal, Lacking) else LACKS
            body = msgspec.msgpack.encode(signal)
        topic, sender = cloud(self._fleet, kind), token.to_bytes(_TOKEN_BYTES, "little")
        return Send(topic, sender + self._mac(topic, sender, body) + body)

    def open(self, token: int, topic: str, payload: bytes) -> tuple[int, Signal | None]:
        """Return the token of the process that sent a signal, and the signal.

        The signal is None if it is our own, is forged, or has an unknown kind.
        """
        sender, mac = payload[:_TOKEN_BYTES], payload[_TOKEN_BYTES:_HEAD_BYTES]
        body = payload[_HEAD_BYTES:]
        other = int.from_bytes(sender, "little")
        if other == token or not hmac.compare_digest(mac, self._mac(topic, sender, body)):
            return other, None
        if topic == cloud(self._fleet, CHANGED):
            return other, Changed()
        for kind, what in _BODIES.items():
            if topic == cloud(self._fleet, kind):
                with suppress(ValueError):  # raised for a signal from a later version
                    return other, msgspec.msgpack.decode(body, type=what)
        return other, None

    def _mac(self, topic: str, sender: bytes, body: bytes) -> bytes:
        return hmac.digest(self._key, topic.encode() + sender + body, hashlib.sha256)[:16]
