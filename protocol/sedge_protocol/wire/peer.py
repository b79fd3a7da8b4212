"""One end of a device's control channel: seals outgoing frames, and opens and checks incoming ones.

The coordinator and the agent both use it, with keys and topics swapped.
"""

from collections import Counter
from collections.abc import Sequence

from sedge_protocol.errors import FrameError, VersionError
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import (
    MAX_INCARNATION,
    NO_TRANSFER,
    VERSIONS,
    Frame,
    Kind,
    ReplayWindow,
    open_frame,
    seal,
    start_time,
)
from sedge_protocol.wire.messages import KINDS, Message, Offer, Welcome, decode_body, encode_body


class Peer:
    """The channel to one peer.

    ``incarnation`` is our start count, and ``peer_incarnation`` is the peer's newest start count that we
    have stored. A device sets ``awaited`` to the nonce of its hello until a welcome has answered it. The
    nonce is random and new, so a welcome with this nonce is not a replay, and its start count is the
    coordinator's, even if it is lower than the one we stored. So if the stored count was forged, or the
    coordinator has lost its own, the next connection repairs this. ``sent`` is the last sequence number
    that we used.
    """

    def __init__(
        self,
        send_topic: str,
        send_key: bytes,
        receive_key: bytes,
        incarnation: int,
        peer_incarnation: int,
        versions: Sequence[int] = VERSIONS,
        sent: int = 0,
    ) -> None:
        self.send_topic = send_topic
        self.counters: Counter[str] = Counter()
        self.window = ReplayWindow(peer_incarnation)
        self.awaited: bytes | None = None
        self._greeted = 0, 0  # start count and sequence number of the newest hello
        self._send_key = send_key
        self._receive_key = receive_key
        self.incarnation = incarnation
        self.sent = sent
        self.versions = tuple(versions)
        self._version = min(self.versions)  # used until a version is agreed on

    def change_keys(self, send_key: bytes, receive_key: bytes) -> None:
        """Use these keys from now on. Start counts, sequence numbers and the replay window continue."""
        self._send_key, self._receive_key = send_key, receive_key

    def message(self, message: Message, transfer: bytes = NO_TRANSFER) -> Send:
        """Return the effect that sends a control message."""
        return Send(self.send_topic, self.seal(message, transfer))

    def seal(self, message: Message, transfer: bytes = NO_TRANSFER) -> bytes:
        """Return the bytes of a control frame."""
        self.sent += 1
        kind = KINDS[type(message)]
        frame = Frame(kind, encode_body(message), self.incarnation, self.sent, transfer)
        return seal(frame, self.send_topic, self._send_key, self._version)

    def agree(self, versions: Sequence[int]) -> None:
        """Use the highest version that both sides support. Raises ``VersionError`` if there is none."""
        common = set(self.versions).intersection(versions)
        if not common:
            mine, theirs = (", ".join(map(str, v)) for v in (self.versions, versions))
            raise VersionError(f"protocol versions {theirs}, this side speaks {mine}")
        self._version = max(common)

    def chunk(self, transfer: bytes, index: int, data: bytes) -> Send:
        """Return the effect that sends a chunk. Chunks are idempotent and have no sequence number."""
        frame = Frame(Kind.CHUNK, data, self.incarnation, 0, transfer, index)
        return Send(self.send_topic, seal(frame, self.send_topic, self._send_key))

    def open(
        self, payload: bytes, topic: str, latest: int = MAX_INCARNATION
    ) -> tuple[Frame, Message | None] | None:
        """Open a received frame.

        Returns the frame and its message (None for a chunk), or None for a replay. Raises ``FrameError``
        for anything that is not a frame from our peer, and for a start count above ``latest``. A goodbye is
        sealed when a connection begins and sent when it ends, so the replay window does not apply to it;
        its nonce tells which session it ends.
        """
        frame = open_frame(payload, topic, self._receive_key, self.versions)
        self.counters[frame.kind.name.lower()] += 1
        if frame.kind is Kind.CHUNK:
            return frame, None
        if frame.incarnation > latest:
            raise FrameError(
                f"frame.incarnation: a start at {start_time(frame.incarnation)} by its clock, half "
                "a year or more ahead of ours. Set the wrong clock and restart, or run `device reissue`"
            )
        if frame.kind is not Kind.GOODBYE and not self.window.accept(frame):
            if not self._answers(frame):
                self.counters["replayed"] += 1
                return None
            self.window.restart(frame)
        if frame.kind is Kind.HELLO:  # a newer hello arrived earlier, so this one is out of date
            if (frame.incarnation, frame.seq) < self._greeted:
                self.counters["replayed"] += 1
                return None
            self._greeted = frame.incarnation, frame.seq
        message = decode_body(frame.kind, frame.body)
        if isinstance(message, Offer) and message.manifest.transfer != frame.transfer:
            raise FrameError(
                f"OFFER of transfer {frame.transfer.hex()} with another blob's manifest"
            )
        return frame, message

    def peek(self, payload: bytes, topic: str) -> Frame:
        """Open an authentic frame from our peer, even an old one, without changing state.

        Raises ``FrameError`` for any other frame.
        """
        return open_frame(payload, topic, self._receive_key, self.versions)

    def _answers(self, frame: Frame) -> bool:
        """Return True if a frame with an older start count is the awaited welcome."""
        if (
            frame.kind is not Kind.WELCOME
            or self.awaited is None
            or frame.incarnation >= self.window.incarnation
        ):
            return False
        message = decode_body(frame.kind, frame.body)
        return isinstance(message, Welcome) and message.nonce == self.awaited
