"""Caches devices after reading them from their rows: all devices online and some that are offline.

A device is read when it is first needed. Of the offline devices, the most recently used ones stay in the
cache, so memory use depends on the number of devices online, even in a fleet of a million. A device that is
evicted and read again is in the same state as after a restart of the coordinator: with a full token bucket,
and an empty replay window for its last start.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

import msgspec

from sedge_cloud.ingest.device import Device
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_protocol.errors import FrameError, VersionError
from sedge_protocol.wire import topics
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.peer import Peer

# The number of offline devices to keep, and the number of unknown sender ids to keep.
KEPT = 4096


class DeviceCache:
    """The devices of a fleet, by id and by topic.

    Frames to them carry this ``incarnation``. ``unsaved`` holds the sessions that have changed but are not
    stored yet. Methods raise ``StorageError`` if a row cannot be read.

    The devices in ``shards`` belong to this process. No other device can be found here, so this process
    cannot send it a frame. That matters because a device that saw the start counts of two processes would
    accept frames only from the newer one, and might ignore frames from its own process.
    """

    def __init__(
        self,
        fleet: str,
        incarnation: int,
        versions: Sequence[int],
        store: Rows,
        unsaved: Mapping[str, SessionRow],
    ) -> None:
        self.shards = frozenset(topics.SHARD_NAMES)
        self.online: dict[str, Device] = {}
        self._fleet = fleet
        self.incarnation, self._versions = incarnation, versions
        self._store = store
        self._unsaved = unsaved
        self._devices: dict[str, Device] = {}
        # The same devices, by the topic on which each publishes.
        self._by_topic: dict[str, Device] = {}
        # the ids of offline devices, the most recently used last
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._strangers: OrderedDict[str, None] = OrderedDict()  # ids for which no device was found
        self._sent = 0  # the highest frame number sent to any device that was evicted

    def find(self, name: str) -> Device | None:
        """Return a device, revoked or not.

        Returns None for a device that is not enrolled or belongs to another process.
        """
        device = self._devices.get(name)
        if device is not None:
            if name in self._idle:
                self._idle.move_to_end(name)
            return device
        self._read([name])
        return self._devices.get(name)

    def find_all(self, names: Sequence[str]) -> Iterator[Device]:
        """Yield the devices that ``find`` would return. A batch of them takes only two SQL statements.

        Use each device before taking the next, as it may be evicted afterwards.
        """
        for start in range(0, len(names), KEPT):
            some = names[start : start + KEPT]
            for name in some:
                if name in self._idle:  # keeps the device from being evicted for another one
                    self._idle.move_to_end(name)
            self._read([name for name in some if name not in self._devices])
            yield from [self._devices[name] for name in some if name in self._devices]

    def _read(self, names: Iterable[str]) -> None:
        """Cache whichever of these devices are enrolled and belong to this process.

        None of them may be in the cache yet.
        """
        unknown = [name for name in names if name not in self._strangers]
        ours = [name for name in unknown if topics.shard_of(name) in self.shards]
        if not ours:
            return
        rows = self._store.devices_named(ours)
        stored = self._store.sessions_named([name for name in rows if name not in self._unsaved])
        sessions = {session.device: session for session in stored}
        for name in ours:
            if name in rows:
                session = self._unsaved.get(name) or sessions.get(name, SessionRow())
                self.keep(rows[name], msgspec.structs.replace(session, online=False))
                continue
            self._strangers[name] = None
            if len(self._strangers) > KEPT:
                self._strangers.popitem(last=False)

    def sender(self, topic: str) -> Device | None:
        """Return the device that owns a topic, revoked or not. Returns None for any other topic."""
        device = self._by_topic.get(topic)
        name = _sender_on(topic, self._fleet) if device is None else device.row.device
        return None if name is None else self.find(name)

    def changed(self) -> list[tuple[Device | None, DeviceRow]]:
        """Reread the rows of cached devices and strangers.

        Returns each row with its cached device, or with None for a stranger that has been enrolled since.
        """
        rows = self._store.devices_named([*self._devices, *self._strangers])
        return [(self._devices.get(name), row) for name, row in rows.items()]

    def keep(self, row: DeviceRow, session: SessionRow) -> Device:
        """Cache a device that is not online, replacing any with the same name."""
        name, keys = row.device, DeviceKeys.of(row.secret)
        self._strangers.pop(name, None)
        down = topics.down(self._fleet, name)
        before = self._devices.get(name)
        sent = self._sent if before is None else max(self._sent, before.peer.sent)
        known = self.incarnation, row.incarnation, self._versions, sent
        device = Device(row, Peer(down, keys.down, keys.up, *known), row.read_hello(), session)
        if device.hello is not None:
            with suppress(VersionError):  # the device's next hello will be refused
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
        """Drop every device in these shards, online or not, because they now belong to another process."""
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
    """Store a device's hello, unless its row already has the same contents. Raises ``StorageError``."""
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
    """Return the id of the device that may publish to a topic, or None if no device may."""
    try:
        name = topics.device_of(topic)
    except FrameError:
        return None
    return name if topic == topics.up(fleet, name) else None
