"""Counts the exact bytes on a virtual device's link, up and down: payload, overhead, and resent payload.

Everything on the device's connection is counted as MQTT 5 packets, with the sizes that they would have over
TCP: PUBLISH, SUBSCRIBE, UNSUBSCRIBE, CONNECT and CONNACK. A frame on a blob topic is counted for every
subscribed device. Payload is the content of blobs: models, deltas, bundles, patches, updates. Everything
else is overhead: frame headers, control frames, MQTT's own bytes. Payload that was sent before is
``resent``. Keepalive packets (2 bytes each) are not counted.
"""

from dataclasses import dataclass, field

from sedge_protocol.wire.frame import HEADER, Kind
from sedge_protocol.wire.messages import Offer, Order, decode_body

# Sizes of MQTT 5 packets with fixed content. Mosquitto's CONNACK includes three limits.
SUBACK = 6
CONNACK = 22
# The size of a keepalive packet: PINGREQ going up or PINGRESP coming down.
PING_BYTES = 2
# Cloud brokers bill a message in units of 5 KB, rounded up, both when it is sent and when it is delivered.
UNIT_BYTES = 5 * 1024
# The length of the suffix that the link appends to the client id: "-" and 128 random bits in hex.
CLIENT_ID_END = 33
_KIND, _BOOT_TO_TRANSFER, _INDEX = 3, slice(16, 32), slice(32, 36)
# Chunks are remembered only for this many recent transfers; older transfers are complete.
_REMEMBERED = 8


@dataclass
class OneWayTraffic:
    """Traffic in one direction: bytes, messages, and the ``units`` that a cloud broker bills for them."""

    payload: int = 0
    overhead: int = 0
    resent: int = 0
    messages: int = 0
    units: int = 0

    @property
    def total(self) -> int:
        """The sum of all bytes."""
        return self.payload + self.overhead + self.resent


@dataclass
class Meter:
    """Counts one device's traffic: ``up`` from the device, ``down`` to it."""

    up: OneWayTraffic = field(default_factory=OneWayTraffic)
    down: OneWayTraffic = field(default_factory=OneWayTraffic)
    _seen: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def sent(self, topic: str, frame: bytes) -> None:
        """Count a frame that the device published."""
        self._count(self.up, topic, frame)

    def received(self, topic: str, frame: bytes) -> None:
        """Count a frame that was delivered to the device or lost on the way to it."""
        self._count(self.down, topic, frame)

    def subscribed(self, topic: str) -> None:
        """Count the device's subscription to a topic."""
        self.up.overhead += _packet(2 + 1 + 2 + len(topic) + 1)
        self.down.overhead += SUBACK

    def unsubscribed(self, topic: str) -> None:
        """Count the end of a subscription."""
        self.up.overhead += _packet(2 + 1 + 2 + len(topic))
        self.down.overhead += SUBACK

    def connected(self, device: str, will_topic: str, will: bytes) -> None:
        """Count the device's connection, which carries the GOODBYE frame as its will."""
        session = 1 + 5  # the properties' length, and the maximum packet size property
        client_id = len(device) + CLIENT_ID_END
        will_part = 1 + 2 + len(will_topic) + 2 + len(will)
        self.up.overhead += _packet(10 + session + 2 + client_id + will_part)
        self.down.overhead += CONNACK

    def _count(self, way: OneWayTraffic, topic: str, frame: bytes) -> None:
        size = packet_bytes(topic, frame)
        content, again = self._content(frame)
        if again:
            way.resent += content
        else:
            way.payload += content
        way.overhead += size - content
        way.messages += 1
        way.units += -(-size // UNIT_BYTES)

    def _content(self, frame: bytes) -> tuple[int, bool]:
        """Return the number of blob bytes in a frame, and whether they were sent before."""
        kind = frame[_KIND]
        if kind == Kind.CHUNK:
            index = int.from_bytes(frame[_INDEX], "little")
            return len(frame) - HEADER.size, self._again(frame[_BOOT_TO_TRANSFER], index)
        if kind in (Kind.OFFER, Kind.ORDER):
            message = decode_body(Kind(kind), frame[HEADER.size :])
            if isinstance(message, Offer) and message.data:
                return len(message.data), self._again(message.manifest.transfer, 0)
            if isinstance(message, Order) and message.patch:
                return len(message.patch), self._again(message.patch_hash, 0)
        return 0, False

    def _again(self, transfer: bytes, index: int) -> bool:
        seen = self._seen.pop(transfer, 0)
        self._seen[transfer] = seen | 1 << index
        if len(self._seen) > _REMEMBERED:
            del self._seen[next(iter(self._seen))]
        return bool(seen >> index & 1)


def packet_bytes(topic: str, frame: bytes) -> int:
    """Return the size of the PUBLISH packet that carries a frame."""
    return _packet(2 + len(topic) + 1 + len(frame))


def _packet(remaining: int) -> int:
    """Return the size of an MQTT packet with this many bytes after its fixed header."""
    length_bytes = 1
    while remaining >> 7 * length_bytes:
        length_bytes += 1
    return 1 + length_bytes + remaining
