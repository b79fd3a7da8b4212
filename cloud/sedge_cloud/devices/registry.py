"""The devices of a fleet as the coordinator sees them: enrolled, revoked, online, able."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from sedge_cloud.devices.capabilities import capable
from sedge_cloud.devices.rate_limit import RATE, TokenBucket
from sedge_cloud.store.rows import DeviceRow
from sedge_cloud.store.runs import Run
from sedge_protocol.errors import RemoteError, VersionError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import HEADER, Frame, Kind, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello, Refusal, Welcome
from sedge_protocol.wire.peer import Peer

VERSION = "0.1.0"
# A device that goes on with an old start count is spoken of once an hour: whoever can publish on its topic
# can repeat its old frames, and is not to fill the log.
WARN_EVERY_S = 3600.0
# A welcome to a hello that nobody sent: "I have just started; say hello again".
WHO_IS_THERE = Welcome(bytes(16), VERSION)


@dataclass
class Device:
    """One enrolled device. ``online`` from its hello until its goodbye, or until our own link fails.

    ``hello`` is the last one heard, perhaps before our own start. From ``warn_at`` on it is worth a line
    in the log that its start count is old.
    """

    row: DeviceRow
    peer: Peer
    hello: Hello | None = None
    online: bool = False
    warn_at: float = 0.0
    bucket: TokenBucket = field(default_factory=TokenBucket)


class Fleet:
    """Every device, by id. ``present`` counts those online; ``changes``, how often one came or went."""

    def __init__(self, name: str, incarnation: int) -> None:
        self._name = name
        self._incarnation = incarnation
        self._devices: dict[str, Device] = {}
        self._heard: dict[str, Device] = {}  # by the topic on which it sends; not the revoked
        self._loaded = False
        self.present = self.changes = 0

    def __getitem__(self, device: str) -> Device:
        return self._devices[device]

    def hello(self, device: str) -> Hello | None:
        """What a device has last said of itself; None for one that has not, or is not enrolled."""
        known = self._devices.get(device)
        return None if known is None else known.hello

    def load(self, rows: Iterable[DeviceRow]) -> list[Effect]:
        """Take over what the store holds; calls devices whose secret is new since the first time."""
        found: list[Effect] = []
        for row in rows:
            known = self._devices.get(row.device)
            if known is None or known.row.secret != row.secret:
                if known is not None:
                    self.leave(known)
                found += self._add(row)
                continue
            known.row = msgspec.structs.replace(row, incarnation=known.row.incarnation)
            if row.revoked and self._heard.pop(topics.up(self._name, row.device), None) is not None:
                self.leave(known)
                found.append(Note(logging.WARNING, f"device {row.device} is revoked"))
        self._loaded = True
        return found

    def call(self) -> list[Send]:
        """Ask every device for a hello."""
        return [d.peer.message(WHO_IS_THERE) for d in self._devices.values() if not d.row.revoked]

    def chunk(self, device: str | None, transfer: bytes, index: int, data: bytes) -> Send:
        """A chunk for a device or, with None, for whoever in the fleet misses it."""
        if device is not None:
            return self._devices[device].peer.chunk(transfer, index, data)
        topic = topics.blob(self._name, transfer)
        frame = Frame(Kind.CHUNK, data, self._incarnation, 0, transfer, index)
        return Send(topic, seal(frame, topic, None))

    def lose(self) -> None:
        """Our link is down: nobody can be reached until their next hello."""
        for device in self._devices.values():
            self.leave(device)

    def arrive(self, device: Device, hello: Hello) -> None:
        """A device has said hello."""
        self.present += not device.online
        self.changes += 1
        device.hello, device.online = hello, True

    def leave(self, device: Device) -> None:
        """A device cannot be reached until its next hello."""
        self.present -= device.online
        self.changes += device.online
        device.online = False

    def sender(self, topic: str) -> Device | None:
        """Whose topic this is; None when it is no enrolled device's, or a revoked one's."""
        return self._heard.get(topic)

    def unheard(self, device: Device, payload: bytes, now: float) -> list[Effect]:
        """A sound control frame that the replay window refused: said, if a device may wait in vain."""
        known, incarnation = device.peer.window.incarnation, HEADER.unpack_from(payload)[5]
        if (
            incarnation >= known or now < device.warn_at
        ):  # the same start: a broker has repeated a frame
            return []
        device.warn_at = now + WARN_EVERY_S
        name = device.row.device
        text = (
            f"device {name} is not heard: its start count {incarnation} is below {known}, "
            "which it had before. If its state was wiped, set its clock and restart it, or "
            "`device reissue` it; otherwise somebody repeats old frames"
        )
        return [Note(logging.WARNING, text)]

    def refuse(self, device: Device, error: RemoteError) -> list[Effect]:
        """A frame that is no use to us: noted, and a device of another version is told."""
        note = Note(logging.WARNING, f"dropped a frame of {device.row.device}: {error}")
        if isinstance(error, VersionError):
            return [device.peer.message(Refusal("version", str(error))), note]
        return [note]

    def too_many(self, device: Device, now: float) -> list[Effect]:
        """A message above what one device is given: dropped, which is said now and then."""
        if not device.bucket.warns(now):
            return []
        text = (
            f"device {device.row.device} says more than {RATE:.0f} messages a second: what is above that "
            "is dropped. Is it broken, or has somebody its key (`sedge-cloud device revoke`)?"
        )
        return [Note(logging.WARNING, text)]

    def able(self, run: Run) -> list[str]:
        """Ids of the devices that are online and can do the run's work, sorted."""
        able = capable(run)
        return sorted(
            name
            for name, device in self._devices.items()
            if device.online and device.hello is not None and able(device.hello)
        )

    def _add(self, row: DeviceRow) -> list[Effect]:
        keys = DeviceKeys.of(row.secret)
        down = topics.down(self._name, row.device)
        peer = Peer(down, keys.down, keys.up, self._incarnation, row.incarnation)
        device = self._devices[row.device] = Device(row, peer, _stored_hello(row))
        if row.revoked:
            return []
        self._heard[topics.up(self._name, row.device)] = device
        if not self._loaded:
            return []
        return [peer.message(WHO_IS_THERE)]


def _stored_hello(row: DeviceRow) -> Hello | None:
    """The hello of a device's last start; None where there is none that can be read."""
    try:
        return None if row.hello is None else msgspec.msgpack.decode(row.hello, type=Hello)
    except ValueError:  # msgspec's errors: of another version
        return None
