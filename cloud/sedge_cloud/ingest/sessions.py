"""The coordinator's view of a fleet's devices: which are enrolled, revoked, online and capable."""

import logging
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

import msgspec

from sedge_cloud.clocks import Wall, as_it_is
from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.device_cache import DeviceCache
from sedge_cloud.ingest.first_version import FirstVersion
from sedge_cloud.ingest.ignored_welcomes import IgnoredWelcomes
from sedge_cloud.ingest.joining import Joining
from sedge_cloud.ingest.rate_limit import RATE
from sedge_cloud.ingest.refusals import REFUSE_EVERY_S, REVOKED, WARN_EVERY_S, Refusals
from sedge_cloud.runs.asked import Presence
from sedge_cloud.runs.terms import Terms, packet_limit
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_cloud.store.selector import parse
from sedge_protocol import VERSION
from sedge_protocol.errors import RemoteError, VersionError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import (
    HEADER,
    MAX_PACKET_BYTES,
    VERSIONS,
    Frame,
    Kind,
    seal,
    start_time,
)
from sedge_protocol.wire.messages import Cancel, Hello, Order, Refusal, Welcome, decode_body

# A fleet with more devices than this is never listed in full.
MAX_LISTED = 20_000
# The nonce of a welcome that answers no hello, but asks for one: "I have just started; say hello again".
NO_NONCE = bytes(16)
# The progress of an order that has been sent (progress.py defines the other states).
ASKED = "asked"


class DeviceRegistry:
    """All devices that belong to this process, by id, read from ``store`` on demand.

    Methods raise ``StorageError`` if a row cannot be read. ``num_active`` is the number of devices that are
    enrolled and not revoked, and ``changes`` counts how often a device has come or gone. ``versions`` are
    the protocol versions that the coordinator speaks, and ``max_packet`` is the size of the largest MQTT
    packet that its broker relays.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        store: Rows,
        versions: Sequence[int] = VERSIONS,
        wall: Wall = as_it_is,
    ) -> None:
        self.wall = wall
        self.returning: set[str] = set()  # online before the last outage, but not back yet
        self._inherited: set[str] = set()  # online according to their previous process
        self.num_active = self.changes = 0
        self.max_packet = MAX_PACKET_BYTES
        self._store = store
        self._versions = tuple(versions)
        self._name = name
        # Sessions with unsaved changes, oldest change first.
        self._unsaved: dict[str, SessionRow] = {}
        self._cache = DeviceCache(name, incarnation, self._versions, store, self._unsaved)
        first, joining = FirstVersion(name, incarnation), Joining(name, self._cache, store, wall)
        self.refusals = Refusals(first, self._cache, self._failed, joining)
        self.ignored_welcomes = IgnoredWelcomes(self._cache, store, wall)
        self._enrolment: int | None = None  # the store's enrolment counter, as last read

    def __getitem__(self, device: str) -> Device:
        entry = self._cache.find(device)
        if entry is None:
            raise KeyError(device)
        return entry

    @property
    def shards(self) -> frozenset[str]:
        """Return the shards whose devices belong to this process."""
        return self._cache.shards

    @property
    def present(self) -> int:
        """Return the number of devices that are online."""
        return len(self._cache.online)

    def __contains__(self, device: str) -> bool:
        return self._cache.find(device) is not None

    def hello(self, device: str) -> Hello | None:
        """Return a device's last hello; None if it has sent none or is not enrolled."""
        entry = self._cache.find(device)
        return None if entry is None else entry.hello

    def load(self, now: float) -> list[Effect]:
        """Load the enrolled devices: at startup, and whenever they have changed.

        Devices that were newly enrolled or reissued are asked for a hello. At startup no device is online;
        the ones that were online before have yet to return.
        """
        enrolment = self._store.enrolment()
        if enrolment == self._enrolment:
            return []
        effects: list[Effect] = []
        self.refusals.joining.load()
        rows, active = self._cache.changed(), self._store.enrolled()
        if self._enrolment is None and not self.is_shared:
            self.returning.update(self._store.end_sessions(self.wall(now)))
        self._enrolment, self.num_active = enrolment, active
        self.changes += 1  # runs may now select other devices
        for device, row in rows:
            effects += self.changed(device, row, now)
        return effects

    def changed(self, device: Device | None, row: DeviceRow, now: float) -> list[Effect]:
        """Apply a row that may enrol, reissue or revoke a device; ``device`` is None if not cached."""
        name = row.device
        if device is None or device.row.secret != row.secret:
            if device is not None:
                self.leave(device, now)
                self.returning.discard(name)
            fresh = self._cache.keep(row, SessionRow())
            if device is not None:
                self.note(fresh)  # what was observed under the old secret no longer applies
            return [] if row.revoked else [fresh.peer.message(self.welcome(NO_NONCE))]
        is_new = row.revoked and not device.row.revoked
        device.row = msgspec.structs.replace(row, incarnation=device.row.incarnation)
        if not is_new:
            return []
        self.leave(device, now)
        self.returning.discard(name)
        return [
            device.peer.message(REVOKED),
            Note(logging.WARNING, f"device {name} is revoked"),
        ]

    def revoke(self, device: str, now: float) -> list[Effect]:
        """Expel a device from the fleet: notify it, and ignore its messages from now on."""
        self._store.revoke_device(device)
        return [Note(logging.INFO, f"device {device} leaves the fleet"), *self.load(now)]

    def lose(self, shards: Collection[str]) -> None:
        """Give up these shards, which now belong to another process."""
        self._cache.lose(shards)
        for name in [name for name in self._unsaved if topics.shard_of(name) in shards]:
            del self._unsaved[name]
        for names in (self.returning, self._inherited):
            names.difference_update([name for name in names if topics.shard_of(name) in shards])

    def gain(self, shards: frozenset[str], incarnation: int) -> list[Effect]:
        """Take over these shards as well. Frames to their devices carry this ``incarnation``.

        Devices that their previous process saw online are asked for a hello. Their rows say that they are
        online until it is clear that they do not answer.
        """
        online = {name for name in self._store.online() if topics.shard_of(name) in shards}
        # This must not happen before all reads have succeeded: a retry must start from the old shards.
        self._cache.shards |= shards
        self._cache.incarnation = incarnation
        self._inherited |= online
        self.returning |= online
        return [*self._request_hellos(shards)]

    def note(self, device: Device, **changes: bool | int | float | str) -> None:
        """Change fields in a device's session, which then counts as unsaved."""
        name = device.row.device
        device.session = msgspec.structs.replace(device.session, device=name, **changes)
        if topics.shard_of(name) in self.shards:
            self._unsaved[name] = device.session

    def take_unsaved(self, most: int) -> list[SessionRow]:
        """Remove and return at most ``most`` sessions that have unsaved changes."""
        rows = list(islice(self._unsaved.values(), most))
        for row in rows:
            del self._unsaved[row.device]
        return rows

    def put_back(self, rows: Iterable[SessionRow]) -> None:
        """Put back sessions that could not be stored, except any that have changed again since."""
        for row in rows:
            self._unsaved.setdefault(row.device, row)

    def online(self, device: str) -> bool:
        """Return True if a device has said hello, and no goodbye since, to this process."""
        return device in self._cache.online

    def presence(self, device: str) -> Presence:
        """Return a device's presence: all False if it is not enrolled or belongs to another process."""
        entry = self._cache.find(device)
        if entry is None:
            return Presence(False, False, False)
        waits = entry.hello is not None and bool(entry.hello.waits)
        return Presence(entry.session.online, waits, entry.row.revoked)

    def give_order(self, device: str, order: Order, now: float) -> Send:
        """Note that a device is asked to carry out an order. Returns the frame that sends it."""
        entry = self[device]
        if (entry.session.run, entry.session.round) != (order.run, order.round):
            at = self.wall(now)
            self.note(
                entry, run=order.run, round=order.round, state=ASKED, state_since=at, done=0, total=0
            )  # fmt: skip
        return entry.peer.message(order)

    def cancel(self, device: str, cancel: Cancel) -> Send:
        """Return the frame that cancels a device's order."""
        return self[device].peer.message(cancel)

    def request_hellos(self) -> list[Send]:
        """Ask every device for a hello, with one message per shard."""
        return self._request_hellos(self.shards)

    def _request_hellos(self, shards: Collection[str]) -> list[Send]:
        return [Send(topics.hint(self._name, shard), b"") for shard in sorted(shards)]

    def request_hello(self, names: Sequence[str]) -> list[Send]:
        """Ask for a hello from whichever of these devices belong to this process and are not revoked."""
        request, known = self.welcome(NO_NONCE), self._cache.find_all(names)
        return [device.peer.message(request) for device in known if not device.row.revoked]

    def listed(self) -> Collection[str]:
        """Return the ids of all devices or, in a large fleet, of those that are online."""
        is_large = self.num_active > MAX_LISTED
        return self._cache.online if is_large else self._store.names(MAX_LISTED)

    def welcome(self, nonce: bytes, padding: bytes = b"", settings: bytes = b"") -> Welcome:
        """Return the answer to a hello."""
        limit = self.max_packet if self.max_packet < MAX_PACKET_BYTES else 0
        return Welcome(nonce, VERSION, self._versions, self.num_active, limit, padding, settings)

    def limited(self, hello: Hello) -> Hello:
        """Return the hello with the lower of its own packet limit and our broker's; 0 means no limit."""
        limit = min(packet_limit(hello), self.max_packet)
        return msgspec.structs.replace(
            hello, max_packet=limit if limit < MAX_PACKET_BYTES else 0, padding=b""
        )

    def chunk(self, device: str | None, transfer: bytes, index: int, data: bytes) -> Send:
        """Return the frame with a chunk, for one device or (None) for all devices that lack the chunk."""
        if device is not None:
            return self[device].peer.chunk(transfer, index, data)
        topic = topics.blob(self._name, transfer)
        frame = Frame(Kind.CHUNK, data, self._cache.incarnation, 0, transfer, index)
        return Send(topic, seal(frame, topic, None))

    def disconnected(self, now: float) -> None:
        """Handle the loss of the connection: every device is offline until its next hello."""
        self.returning.update(self._cache.online)
        for device in list(self._cache.online.values()):
            self.leave(device, now)

    def give_up_returning(self) -> list[str]:
        """Stop waiting for devices that have not come back. Returns their ids, sorted."""
        names = sorted(self.returning)
        self.returning.clear()
        return names

    def end_inherited(self, now: float) -> None:
        """Mark offline the devices that were online only according to their previous process."""
        for device in self._cache.find_all(sorted(self._inherited)):
            self.note(device, online=False, since=self.wall(now))
        self._inherited.clear()

    def away(self, names: Iterable[str]) -> list[str]:
        """Return whichever of these devices belong to this process and are not online."""
        online, shards = self._cache.online, self.shards
        return [n for n in names if n not in online and topics.shard_of(n) in shards]

    def arrive(self, device: Device, hello: Hello, now: float) -> None:
        """Mark a device online after its hello."""
        device.hello, at = hello, self.wall(now)
        self.changes += 1
        self.returning.discard(device.row.device)
        self._inherited.discard(device.row.device)
        if not device.online:
            self._cache.arrive(device)
            self.note(device, online=True, since=at)
        if hello.waits != device.session.waits:
            self.note(device, waits=hello.waits, waits_since=at)

    def leave(self, device: Device, now: float) -> None:
        """Mark a device offline until its next hello."""
        if device.online:
            self.changes += 1
            self.note(device, online=False, since=self.wall(now))
            self._cache.leave(device)

    def sender(self, topic: str) -> Device | None:
        """Return the active device that owns this topic; None for revoked devices and other topics."""
        device = self._cache.sender(topic)
        return None if device is None or device.row.revoked else device

    @property
    def is_shared(self) -> bool:
        """Return True if some of the fleet's devices belong to other processes."""
        return len(self.shards) < topics.SHARDS

    def has_shard_of(self, topic: str) -> bool:
        """Return True if a device with this topic belongs to this process."""
        return not self.is_shared or topics.shard_in(topic) in self.shards

    def answer_doctor(self, device: Device, payload: bytes) -> list[Effect]:
        """Answer a doctor's hello with a welcome, without changing any state; other messages get no answer.

        Raises ``RemoteError`` when the frame is not the device's own.
        """
        frame = device.peer.peek(payload, topics.up(self._name, device.row.device))
        hello = decode_body(frame.kind, frame.body)
        if not isinstance(hello, Hello):
            return []
        return [device.peer.message(self.welcome(hello.nonce, hello.padding))]

    def _failed(self, device: Device, text: str, now: float) -> None:
        self.note(device, error=text, error_at=self.wall(now))

    def stale_frame(self, device: Device, payload: bytes, now: float) -> list[Effect]:
        """Log a genuine frame from before the device's latest start, as the device may await an answer."""
        latest, incarnation = device.peer.window.incarnation, HEADER.unpack_from(payload)[5]
        if incarnation >= latest:  # it is from the current start, so a broker repeated it
            return []
        why = (
            f"its start at {start_time(incarnation)} by its clock is before the one at "
            f"{start_time(latest)} that was heard earlier"
        )
        self._failed(device, why, now)
        if now < device.warn_at:
            return []
        device.warn_at = now + WARN_EVERY_S
        name = device.row.device
        text = (
            f"device {name} is ignored: {why}. If its state was wiped, set its clock and restart "
            "it, or `device reissue` it; otherwise somebody is replaying old frames"
        )
        return [device.peer.message(Refusal("incarnation", why)), Note(logging.WARNING, text)]

    def bad_frame(self, device: Device, error: RemoteError, now: float) -> list[Effect]:
        """Log an unusable frame. A device with another protocol version occasionally gets a REFUSED."""
        note = Note(logging.WARNING, f"dropped a frame of {device.row.device}: {error}")
        self._failed(device, str(error), now)
        if not isinstance(error, VersionError) or now < device.refuse_at:
            return [note]
        device.refuse_at = now + REFUSE_EVERY_S
        return [device.peer.message(Refusal("version", str(error))), note]

    def rate_limited(self, device: Device, now: float) -> list[Note]:
        """Log that a message above a device's rate limit was dropped. Only some of these are logged."""
        if not device.bucket.warns(now):
            return []
        text = (
            f"device {device.row.device} sends more than {RATE:.0f} messages per second: the excess is "
            "dropped. Is it broken, or has somebody stolen its key (`sedge-cloud device revoke`)?"
        )
        self._failed(device, f"sends more than {RATE:.0f} messages per second", now)
        return [Note(logging.WARNING, text)]

    def able(self, terms: Terms, among: Sequence[str] = ()) -> list[str]:
        """Return the sorted ids of devices that are online, are not waiting, and meet a run's terms.

        Only devices that the run selects are considered; if ``among`` is not empty, only the ones it lists.
        """
        online = self._cache.online
        names: Iterable[str] = among or online
        if terms.select:  # only the store knows tags, so save sessions first
            self._store.save_sessions([*self._unsaved.values()])
            self._unsaved.clear()
            names = self._store.online_matching(parse(terms.select), among)
        found = [online[name] for name in names if name in online]
        heard = ((d.row.device, d.hello) for d in found if d.hello is not None and not d.waits)
        return sorted(name for name, hello in heard if not terms.missing(hello))

    def refuse_unable(
        self, run: str, terms: Terms, devices: Iterable[str] | None = None
    ) -> list[Effect]:
        """Tell devices, by default all that are online, which features they lack to do a run's work."""
        effects: list[Effect] = []
        for name in sorted(self._cache.online if devices is None else devices):
            device = self._cache.online.get(name)
            what = () if device is None or device.hello is None else terms.missing(device.hello)
            if what:
                effects += self.refuse(name, run, what)
        return effects

    def refuse(self, name: str, run: str, what: Iterable[str]) -> list[Effect]:
        """Tell a device which features it lacks to do a run's work, and log it."""
        text = f"run {run} has no work for {name}: it lacks {', '.join(sorted(what))}"
        refusal = self[name].peer.message(Refusal("unable", text))
        return [refusal, Note(logging.WARNING, text)]
