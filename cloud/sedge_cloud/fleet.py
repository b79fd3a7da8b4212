"""The devices of a fleet as the coordinator sees them: enrolled, revoked, online, able."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from sedge_cloud.ledger import Run
from sedge_cloud.store import DeviceRow
from sedge_protocol import topics
from sedge_protocol.effects import Effect, Note, Send
from sedge_protocol.errors import RemoteError
from sedge_protocol.keys import DeviceKeys
from sedge_protocol.messages import Hello, Welcome
from sedge_protocol.peer import Peer

VERSION = "0.1.0"
# A welcome to a hello that nobody sent: "I have just started; say hello again".
WHO_IS_THERE = Welcome(bytes(16), VERSION)


@dataclass
class Device:
    """One enrolled device. ``online`` from its hello until its goodbye, or until our own link fails."""

    row: DeviceRow
    peer: Peer
    hello: Hello | None = None
    online: bool = False


class Fleet:
    """Every device, by id."""

    def __init__(self, name: str, boot: int) -> None:
        self._name = name
        self._boot = boot
        self._devices: dict[str, Device] = {}
        self._loaded = False

    def __getitem__(self, device: str) -> Device:
        return self._devices[device]

    def load(self, rows: Iterable[DeviceRow]) -> list[Effect]:
        """Take over what the store holds; calls the devices that are new since the first time."""
        found: list[Effect] = []
        for row in rows:
            known = self._devices.get(row.device)
            if known is None:
                found += self._add(row)
                continue
            known.row = msgspec.structs.replace(row, boot=known.row.boot)
            if row.revoked and known.online:
                known.online = False
                found.append(Note(logging.WARNING, f"device {row.device} is revoked"))
        self._loaded = True
        return found

    def call(self) -> list[Send]:
        """Ask every device for a hello."""
        return [d.peer.message(WHO_IS_THERE) for d in self._devices.values() if not d.row.revoked]

    def lose(self) -> None:
        """Our link is down: nobody can be reached until their next hello."""
        for device in self._devices.values():
            device.online = False

    def sender(self, topic: str) -> Device:
        """Whose topic this is. Raises ``RemoteError`` when no enrolled device's."""
        name = topics.device_of(topic)
        device = self._devices.get(name)
        if device is None or device.row.revoked:
            raise RemoteError(f"device {name!r} is {'revoked' if device else 'not enrolled'}")
        return device

    def able(self, run: Run) -> list[str]:
        """Ids of the devices that are online and can do the run's work, sorted."""
        backends = {program.backend for program in run.manifest.programs}
        compression = run.config.codec.compression
        return sorted(
            name
            for name, device in self._devices.items()
            if device.online
            and device.hello is not None
            and backends.intersection(device.hello.backends)
            and compression in device.hello.compressions
        )

    def _add(self, row: DeviceRow) -> list[Effect]:
        keys = DeviceKeys.of(row.secret)
        down = topics.down(self._name, row.device)
        peer = Peer(down, keys.down, keys.up, self._boot, row.boot)
        self._devices[row.device] = Device(row, peer)
        if not self._loaded or row.revoked:
            return []
        return [peer.message(WHO_IS_THERE)]
