"""Frames, the units of everything on the wire: a 64-byte header with a MAC, and a body.

    offset  size  field      little endian
    0       2     magic      "SG"
    2       1     version    1 for the kinds in ``FROZEN``; the agreed version for the others
    3       1     kind       ``Kind``
    4       2     flags      bit 0 UNKEYED: no MAC, allowed only for chunks on a blob topic
    6       2     head_len   64; a later minor version may append fields and raise it
    8       4     incarnation       the sender's start count; increases with every start
    12      4     seq        increases with every frame of one start
    16      16    transfer   transfer id, or zeros
    32      4     index      chunk index, or 0
    36      4     body_len
    40      8     reserved   zero when sent, ignored when received
    48      16    mac        HMAC-SHA256(key, topic || header[0:48] || body)[:16]

The MAC covers the topic, so a frame cannot be replayed to another device or in the other direction.
"""

import hashlib
import hmac
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from sedge_protocol.errors import FrameError, LocalError, VersionError

MAGIC = b"SG"
# The protocol versions that this code speaks. HELLO and WELCOME list the versions of the two sides, which
# then use the highest common one.
VERSIONS: tuple[int, ...] = (2,)
# The version of frames that may be sent before the two sides agree on one. The format of such frames never
# changes.
FIRST_VERSION = 1
HEADER = struct.Struct("<2sBBHHII16sIIQ16s")
MAC_OFFSET = 48
UNKEYED = 1
NO_TRANSFER = bytes(16)

# 256 KiB is enough for the largest chunk, or for an order with three full manifests (3 x 64 KiB) and an
# inline patch. With the header it stays under 400,000 bytes, the max_packet_size of Sedge's brokers, which
# is far below the defaults of EMQX (1 MB) and Mosquitto 2.1 (2 MB).
MAX_BODY_BYTES = 2**18
# The largest MQTT packet: the largest frame, its topic and the packet's properties.
MAX_PACKET_BYTES = MAX_BODY_BYTES + HEADER.size + 4096
# The smallest packet limit that we support in a broker. Many cloud brokers accept 65,536 bytes.
LEAST_PACKET_BYTES = 16_000
# The maximum number of bytes that a packet has in addition to topic and payload.
PUBLISH_BYTES = 64
# ``incarnation`` has 32 bits, which Unix time will exceed in 2106. A clock set to the last half year before
# that is wrong, or leaves too few start counts, because every start uses up one.
MAX_INCARNATION = 2**32 - 1
LATEST_CLOCK_S = MAX_INCARNATION - 2**24
# The start count in the hello of a device's doctor, which only checks that the coordinator receives it. No
# agent uses this count.
ASKING = 0
# A clock that shows a time before this software existed (2026-01-01) has not been set since power-on.
EARLIEST_CLOCK_S = 1_767_225_600
# How far a device's start count may be ahead of our clock: half a year. Clocks that have been set differ by
# less, and a count that grows by less than one per second falls behind the clock. So even an attacker who
# has a device's key cannot exhaust its start counts.
MAX_AHEAD_S = 2**24


class Kind(IntEnum):
    """The type of a frame, one byte."""

    HELLO = 1
    WELCOME = 2
    ORDER = 3
    CANCEL = 4
    GOODBYE = 5
    OFFER = 6
    HAVE = 7
    CHUNK = 8
    COMMITTED = 9
    REJECT = 10
    BUSY = 11
    GET = 12
    DECLINE = 13
    REFUSED = 14
    JOIN = 15
    JOINED = 16
    RENEW = 17


# Frames of these kinds have the format of version 1 in every version, because they are sent before the two
# sides agree on a version.
FROZEN = frozenset(
    (Kind.HELLO, Kind.WELCOME, Kind.GOODBYE, Kind.REFUSED, Kind.CHUNK, Kind.JOIN, Kind.JOINED)
)


def packet_bytes(topic: str, payload: bytes) -> int:
    """Return the maximum size of a message as an MQTT packet, in bytes."""
    return len(payload) + len(topic) + PUBLISH_BYTES


@dataclass(frozen=True)
class Frame:
    """A frame: the header's fields and the body."""

    kind: Kind
    body: bytes
    incarnation: int = 0
    seq: int = 0
    transfer: bytes = NO_TRANSFER
    index: int = 0


def seal(frame: Frame, topic: str, key: bytes | None, version: int = VERSIONS[-1]) -> bytes:
    """Encode and authenticate a frame for one topic, in ``version`` or, for a frozen kind, in version 1.

    Without a ``key`` the result is an UNKEYED chunk.
    """
    if len(frame.body) > MAX_BODY_BYTES:
        raise LocalError(
            f"{frame.kind.name} body of {len(frame.body)} bytes, limit {MAX_BODY_BYTES}"
        )
    if key is None and frame.kind is not Kind.CHUNK:
        raise LocalError(f"a {frame.kind.name} frame needs a key")
    head = HEADER.pack(
        MAGIC,
        FIRST_VERSION if frame.kind in FROZEN else version,
        frame.kind,
        UNKEYED if key is None else 0,
        HEADER.size,
        frame.incarnation,
        frame.seq,
        frame.transfer,
        frame.index,
        len(frame.body),
        0,
        bytes(16),
    )[:MAC_OFFSET]
    mac = bytes(16) if key is None else _mac(key, topic, head, frame.body)
    return head + mac + frame.body


def open_frame(
    data: bytes, topic: str, key: bytes | None, versions: Sequence[int] = VERSIONS
) -> Frame:
    """Decode and verify a frame. Without a ``key`` only UNKEYED chunks are accepted.

    Raises ``VersionError`` for a version not in ``versions``, and ``FrameError`` for any other fault.
    Limits and lengths are checked before the MAC, and the MAC before the body is used.
    """
    if len(data) < HEADER.size:
        raise FrameError(f"frame of {len(data)} bytes, the header alone has {HEADER.size}")
    (magic, version, kind, flags, head_len, incarnation, seq, transfer, index, body_len, _, mac) = (
        HEADER.unpack_from(data)
    )
    if magic != MAGIC:
        raise FrameError(f"frame begins with {magic!r}, expected {MAGIC!r}")
    if version not in ((FIRST_VERSION,) if kind in FROZEN else versions):
        spoken = ", ".join(map(str, versions))
        raise VersionError(f"frame of protocol version {version}, this side speaks {spoken}")
    if body_len > MAX_BODY_BYTES:
        raise FrameError(f"frame.body_len: {body_len}, limit {MAX_BODY_BYTES}")
    if head_len < HEADER.size or head_len + body_len != len(data):
        raise FrameError(f"frame of {len(data)} bytes, its header says {head_len} + {body_len}")
    body = data[head_len:]
    _check_mac(data, topic, key, flags, mac, body)
    try:
        return Frame(Kind(kind), body, incarnation, seq, transfer, index)
    except ValueError:
        raise FrameError(f"frame.kind: {kind} is unknown") from None


def asks(data: bytes) -> bool:
    """Return True if ``data`` looks like a doctor's hello. Nothing is verified."""
    if len(data) < HEADER.size:
        return False
    _, _, kind, _, _, incarnation, *_ = HEADER.unpack_from(data)
    return bool(kind == Kind.HELLO and incarnation == ASKING)


def _check_mac(
    data: bytes, topic: str, key: bytes | None, flags: int, mac: bytes, body: bytes
) -> None:
    if key is None:
        if not flags & UNKEYED or data[3] != Kind.CHUNK:
            raise FrameError(f"only unkeyed chunks are accepted on {topic}")
        return
    extra = data[HEADER.size : len(data) - len(body)]
    if not hmac.compare_digest(mac, _mac(key, topic, data[:MAC_OFFSET], extra + body)):
        raise FrameError(f"frame on {topic}: the MAC does not match")


def _mac(key: bytes, topic: str, head: bytes, body: bytes) -> bytes:
    state = hmac.new(key, topic.encode(), hashlib.sha256)
    state.update(head)
    state.update(body)
    return state.digest()[:16]


def next_incarnation(last: int, clock_s: int) -> int:
    """Return a new start count: above ``last``, and at least the Unix time if the clock is plausible.

    It is at most ``MAX_INCARNATION``. A ``last`` above that would not fit a frame, so it counts as 0.
    """
    valid = last if last <= MAX_INCARNATION else 0
    return min(max(valid + 1, clock_s if clock_s <= LATEST_CLOCK_S else 0), MAX_INCARNATION)


def latest_incarnation(clock_s: float) -> int:
    """Return the highest start count that a coordinator accepts from a device at this Unix time."""
    is_set = EARLIEST_CLOCK_S <= clock_s <= LATEST_CLOCK_S
    return int(clock_s) + MAX_AHEAD_S if is_set else LATEST_CLOCK_S


def start_time(incarnation: int) -> str:
    """Format the time at which the sender started, by its own clock.

    A start count is usually the Unix time of that start.
    """
    return str(np.datetime64(incarnation, "s")).replace("T", " ") + " UTC"


class ReplayWindow:
    """Accepts each control frame from one sender once. (incarnation, seq) identifies a frame.

    The window has 64 frames, as in IPsec (RFC 4303), because a broker may slightly reorder frames. Chunks
    are idempotent and need no window. Frames of older starts are refused until ``restart``.
    """

    WIDTH = 64

    def __init__(self, incarnation: int = 0) -> None:
        self.incarnation = incarnation
        self.top = 0  # the highest sequence number seen in this start
        self._seen = 0

    def restart(self, frame: Frame) -> None:
        """Accept this frame, whatever its start count, and start a new window with it."""
        self.incarnation, self.top, self._seen = frame.incarnation, frame.seq, 1

    def accept(self, frame: Frame) -> bool:
        """Return True if the frame is new, and remember it."""
        if frame.incarnation < self.incarnation:
            return False
        if frame.incarnation > self.incarnation:
            self.incarnation, self.top, self._seen = frame.incarnation, 0, 0
        ahead = frame.seq - self.top
        if ahead > 0:
            self._seen = (self._seen << ahead | 1) & ((1 << self.WIDTH) - 1) if ahead < 64 else 1
            self.top = frame.seq
            return True
        if -ahead >= self.WIDTH or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
