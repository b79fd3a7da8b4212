"""Caches devices, which are read from their rows when first needed: all that are online, and some others.

Of the devices that are offline, the most recently used are kept, so memory depends on the number of devices
online, even in a fleet of a million. A device that is evicted and read again is in the same state as after
a restart of the coordinator: with a full token bucket, and an empty replay window for its last start.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from sedge_cloud.ingest.device import UNSEEN, Device
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_protocol.errors import FrameError, VersionError
from sedge_protocol.wire import topics
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.peer import Peer

# The number of offline devices to keep, and also of unknown sender ids.
KEPT = 4096


class Kept:
    """The devices of a fleet, by id and by topic.

    Frames to them carry this ``incarnation``. ``stirred`` holds the sessions that have changed but are not
    stored yet. Methods raise ``StorageError`` if a row cannot be read.

    The devices of ``shards`` belong to this process. No other device is found here, so this process cannot
    send it a frame. That matters: a device that saw the start counts of two processes would accept only
    frames of the newer one, and perhaps ignore those of its own process.
    """

    def __init__(
        self,
        fleet: str,
        incarnation: int,
        versions: Sequence[int],
        store: Rows,
        stirred: Mapping[str, SessionRow],
    ) -> None:
        self.shards = frozenset(topics.SHARD_NAMES)
        self.online: dict[str, Device] = {}
        self._fleet = fleet
        self.incarnation, self._versions = incarnation, versions
        self._store = store
        self._stirred = stirred
        self._devices: dict[str, Device] = {}
        self._by_topic: dict[
            str, Device
        ] = {}  # the same devices, by the topic to which each publishes
        # Ids of offline devices, most recently used last.
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._strangers: OrderedDict[str, None] = OrderedDict()  # ids that were not found
        self._sent = 0  # the highest frame number sent to any device that was evicted

    def find(self, name: str) -> Device | None:
        """Return a device, revoked or not; None if it is not enrolled or belongs to another process."""
        device = self._devices.get(name)
        if device is not None:
            if name in self._idle:
                self._idle.move_to_end(name)
            return device
        self._read([name])
        return self._devices.get(name)

    def find_all(self, names: Sequence[str]) -> Iterator[Device]:
        """Yield the devices that ``find`` would return; many are read with only two statements.

        Use each device before taking the next, as it may be evicted afterwards.
        """
        for start in range(0, len(names), KEPT):
            some = names[start : start + KEPT]
            for name in some:
                if name in self._idle:  # keeps it from being evicted to make room for another
                    self._idle.move_to_end(name)
            self._read([name for name in some if name not in self._devices])
            yield from [self._devices[name] for name in some if name in self._devices]

    def _read(self, names: Iterable[str]) -> None:
        """Cache those of these devices that are enrolled and belong to this process.

        None may be cached already.
        """
        unknown = [name for name in names if name not in self._strangers]
        ours = [name for name in unknown if topics.shard_of(name) in self.shards]
        if not ours:
            return
        rows = self._store.devices_named(ours)
        stored = self._store.sessions_named([name for name in rows if name not in self._stirred])
        sessions = {session.device: session for session in stored}
        for name in ours:
            if name in rows:
                session = self._stirred.get(name) or sessions.get(name, UNSEEN)
                self.keep(rows[name], msgspec.structs.replace(session, online=False))
                continue
            self._strangers[name] = None
            if len(self._strangers) > KEPT:
                self._strangers.popitem(last=False)

    def sender(self, topic: str) -> Device | None:
        """Return the device that owns a topic, revoked or not; None for any other topic."""
        device = self._by_topic.get(topic)
        name = _sender_on(topic, self._fleet) if device is None else device.row.device
        return None if name is None else self.find(name)

    def changed(self) -> list[tuple[Device | None, DeviceRow]]:
        """Reread the rows of all cached devices, and (with None) of strangers that were enrolled since."""
        rows = self._store.devices_named([*self._devices, *self._strangers])
        return [(self._devices.get(name), row) for name, row in rows.items()]

    def keep(self, row: DeviceRow, session: SessionRow) -> Device:
        """Cache a device that is not online, replacing one of the same name."""
        name, keys = row.device, DeviceKeys.of(row.secret)
        self._strangers.pop(name, None)
        down = topics.down(self._fleet, name)
        before = self._devices.get(name)
        sent = self._sent if before is None else max(self._sent, before.peer.sent)
        known = self.incarnation, row.incarnation, self._versions, sent
        device = Device(row, Peer(down, keys.down, keys.up, *known), row.read_hello(), session)
        if device.hello is not None:
            with suppress(VersionError):  # its next hello will be refused
                device.peer.agree(device.hello.versions)
        self._devices[name] = device
        self._by_topic[topics.up(self._fleet, name)] = device
        self._idle[name] = None
        self._make_room()
        return device

    def arrive(self, device: Device) -> None:
        """Mark a device online, so that it is not evicted until it leaves."""
        self.online[device.row.device] = device
        self._idle.pop(device.row.device, None)

    def leave(self, device: Device) -> None:
        """Mark a device offline."""
        del self.online[device.row.device]
        self._idle[device.row.device] = None
        self._make_room()

    def lose(self, shards: Collection[str]) -> None:
        """Drop every device of these shards, online or not, as they now belong to another process."""
        self.shards = self.shards.difference(shards)
        for name in [*self._devices, *self._strangers]:
            if topics.shard_of(name) in shards:
                self._strangers.pop(name, None)
                self._idle.pop(name, None)
                self.online.pop(name, None)
                if self._devices.pop(name, None) is not None:
                    del self._by_topic[topics.up(self._fleet, name)]

    def _make_room(self) -> None:
        while len(self._idle) > KEPT:
            name, _ = self._idle.popitem(last=False)
            device = self._devices.pop(name)
            del self._by_topic[topics.up(self._fleet, name)]
            # A device accepts no frame number twice, so later frames must have higher numbers.
            self._sent = max(self._sent, device.peer.sent)


def save_hello(store: Rows, device: Device, hello: Hello, incarnation: int) -> None:
    """Store a device's hello, unless its row has the same contents already. Raises ``StorageError``."""
    is_new, stored = incarnation != device.row.incarnation, device.row.read_hello()
    if not is_new and stored and msgspec.structs.replace(stored, nonce=hello.nonce) == hello:
        return
    coded = msgspec.msgpack.encode(hello)
    # Start counts distinguish old frames from new ones, so they must be durable; the next hello repeats the
    # other contents.
    with store.transaction(flush=is_new):
        store.save_hello(device.row, incarnation, coded)
    device.row = msgspec.structs.replace(device.row, incarnation=incarnation, hello=coded)


def save_hellos(store: Rows, devices: Collection[Device]) -> None:
    """Store these devices' cached hellos. Raises ``StorageError``."""
    if not devices:
        return
    coded = [(device, msgspec.msgpack.encode(device.hello)) for device in devices]
    with store.transaction(flush=False):
        for device, hello in coded:
            store.save_hello(device.row, device.row.incarnation, hello)
    for device, hello in coded:
        device.row = msgspec.structs.replace(device.row, hello=hello)


def _sender_on(topic: str, fleet: str) -> str | None:
    """Return the id of the device that may publish to a topic; None for a topic to which none may."""
    try:
        name = topics.device_of(topic)
    except FrameError:
        return None
    return name if topic == topics.up(fleet, name) else None
