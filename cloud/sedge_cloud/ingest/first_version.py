"""Tells devices of protocol version 1, which uses other topics, that they must upgrade."""

from collections import Counter
from contextlib import suppress

from sedge_protocol.errors import RemoteError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Send
from sedge_protocol.wire.frame import FIRST_VERSION, VERSIONS, Frame, Kind, open_frame, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Refusal, encode_body

WHY = (
    f"this device speaks protocol version {FIRST_VERSION}, the coordinator {VERSIONS[-1]}: "
    "upgrade Sedge on it"
)


class FirstVersion:
    """Answers frames on the topics of protocol version 1 with a refusal in that version's format."""

    def __init__(self, fleet: str, incarnation: int) -> None:
        self._fleet = fleet
        self._incarnation = incarnation
        self._sent: Counter[str] = Counter()  # by device, the number of the last frame sent to it

    def sender(self, topic: str) -> str | None:
        """Return the id of the device that owns a topic of protocol version 1; None for other topics."""
        *_, device, last = topic.split("/") if topic.count("/") == 5 else ("", "")
        is_up = bool(device) and topic == topics.first_version_up(self._fleet, device)
        return device if is_up and last == "up" else None

    def refuse(self, device: str, secret: bytes, topic: str, payload: bytes) -> list[Effect]:
        """Refuse a frame whose MAC proves that it comes from the device.

        Returns the refusal, or an empty list for any other frame.
        """
        keys = DeviceKeys.of(secret)
        with suppress(RemoteError):
            open_frame(payload, topic, keys.up, (FIRST_VERSION,))
            self._sent[device] += 1
            body = encode_body(Refusal("version", WHY))
            frame = Frame(Kind.REFUSED, body, self._incarnation, self._sent[device])
            down = topics.first_version_down(self._fleet, device)
            return [Send(down, seal(frame, down, keys.down))]
        return []
