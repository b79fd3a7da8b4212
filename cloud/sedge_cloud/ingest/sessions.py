"""The devices of a fleet as the coordinator sees them: enrolled, revoked, online, capable."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

import msgspec

from sedge_cloud.clocks import Wall, as_it_is
from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.first_version import WHY, FirstVersion
from sedge_cloud.ingest.rate_limit import RATE, cost
from sedge_cloud.runs.capabilities import lacking
from sedge_cloud.runs.run import Run
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_protocol.errors import RemoteError, VersionError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import (
    HEADER,
    MAX_PACKET_BYTES,
    VERSIONS,
    Frame,
    Kind,
    asks,
    seal,
    start_time,
)
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Cancel, Hello, Order, Refusal, Welcome, decode_body
from sedge_protocol.wire.peer import Peer

VERSION = "0.1.0"
# A device with an old start count is logged once an hour: anybody who can publish on its topic can repeat
# its old frames, and must not fill the log.
WARN_EVERY_S = 3600.0
# A frame's version is read before its MAC: whoever can publish on a device's topic can have it refused.
REFUSE_EVERY_S = 60.0
# So many devices are asked one by one for a hello.
MAX_ASKED = 1000
# The nonce of a welcome to no hello in particular: "I have just started; say hello again".
NO_NONCE = bytes(16)
# The state of an order that was sent (progress.py has the others).
ASKED = "asked"
REVOKED = Refusal("revoked", "this device takes part no longer, until `sedge-cloud device reissue`")


class Fleet:
    """Every device, by id.

    ``present`` is the number online, and ``changes`` how often one came or went. ``versions`` are the
    protocol versions that the coordinator speaks, and ``max_packet`` is the largest MQTT packet that comes
    through its broker.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        versions: Sequence[int] = VERSIONS,
        wall: Wall = as_it_is,
    ) -> None:
        self.wall = wall
        self._stirred: dict[str, None] = {}  # whose sessions have changed, the longest ago first
        self.returning: set[str] = set()  # online before the last outage, and not since
        self._versions = tuple(versions)
        self._name = name
        self._incarnation = incarnation
        self._devices: dict[str, Device] = {}
        self._by_topic: dict[
            str, Device
        ] = {}  # by the topic on which it sends; without revoked ones
        self._revoked: dict[str, Device] = {}  # these, by the same
        self._first_version = FirstVersion(name, incarnation)
        self._loaded = False
        self.present = self.changes = 0
        self.max_packet = MAX_PACKET_BYTES

    def __getitem__(self, device: str) -> Device:
        return self._devices[device]

    def items(self) -> Iterable[tuple[str, Device]]:
        """Every device with its id."""
        return self._devices.items()

    def hello(self, device: str) -> Hello | None:
        """A device's last hello; None for a device without one, or one that is not enrolled."""
        entry = self._devices.get(device)
        return None if entry is None else entry.hello

    def load(self, rows: Iterable[DeviceRow], now: float) -> list[Effect]:
        """Take the store's devices over; those added or reissued since the start are asked for a hello."""
        effects: list[Effect] = []
        for row in rows:
            device = self._devices.get(row.device)
            if device is None or device.row.secret != row.secret:
                if device is not None:
                    self.leave(device, now)
                    self.returning.discard(row.device)
                effects += self._add(row)
                if device is not None:
                    self.note(self._devices[row.device])  # what was seen of the one before is over
                continue
            device.row = msgspec.structs.replace(row, incarnation=device.row.incarnation)
            topic = topics.up(self._name, row.device)
            if row.revoked and self._by_topic.pop(topic, None) is not None:
                self._revoked[topic] = device
                self.leave(device, now)
                self.returning.discard(row.device)
                effects.append(device.peer.message(REVOKED))
                effects.append(Note(logging.WARNING, f"device {row.device} is revoked"))
        self._loaded = True
        return effects

    def resume(self, sessions: Iterable[SessionRow], now: float) -> None:
        """What the process before has seen; who was online then is not until its next hello."""
        for row in sessions:
            device = self._devices.get(row.device)
            if device is not None:
                device.session = row
                if row.online:
                    self.returning.add(row.device)
                    self.note(device, online=False, since=self.wall(now))

    def note(self, device: Device, **changes: bool | int | float | str) -> None:
        """Change what is known of a device."""
        name = device.row.device
        device.session = msgspec.structs.replace(device.session, device=name, **changes)
        self._stirred[name] = None

    def stirred(self, most: int) -> list[SessionRow]:
        """Sessions that have changed since they were last taken, at most so many; these count as taken."""
        names = list(islice(self._stirred, most))
        for name in names:
            del self._stirred[name]
        return [self._devices[name].session for name in names]

    def stir(self, names: Iterable[str]) -> None:
        """These have changed after all: they could not be stored."""
        self._stirred.update(dict.fromkeys(names))

    def online(self, device: str) -> bool:
        """Whether a device has said hello, and no goodbye since."""
        return self._devices[device].online

    def is_revoked(self, device: str) -> bool:
        """Whether a device takes part no longer."""
        return self._devices[device].row.revoked

    def ask(self, device: str, order: Order, now: float) -> Send:
        """A device's order, as a frame."""
        entry = self._devices[device]
        if (entry.session.run, entry.session.round) != (order.run, order.round):
            at = self.wall(now)
            self.note(entry, run=order.run, round=order.round, state=ASKED, state_since=at)
            self.note(entry, done=0, total=0)
        return entry.peer.message(order)

    def cancel(self, device: str, cancel: Cancel) -> Send:
        """The end of a device's order, as a frame."""
        return self._devices[device].peer.message(cancel)

    @property
    def num_active(self) -> int:
        """How many are enrolled and not revoked."""
        return len(self._by_topic)

    def request_hellos(self) -> list[Send]:
        """Ask every device for a hello, by one message for all that share a shard."""
        shards = sorted({topics.shard_of(d.row.device) for d in self._by_topic.values()})
        return [Send(topics.hint(self._name, shard), b"") for shard in shards]

    def request_hello(self, names: Iterable[str]) -> list[Send]:
        """Ask these devices for a hello, if they are still here."""
        request = self.welcome(NO_NONCE)
        known = [self._devices[name] for name in names if name in self._devices]
        return [device.peer.message(request) for device in known if not device.row.revoked]

    def welcome(self, nonce: bytes, padding: bytes = b"") -> Welcome:
        """The answer to a hello."""
        limit = self.max_packet if self.max_packet < MAX_PACKET_BYTES else 0
        return Welcome(nonce, VERSION, self._versions, len(self._by_topic), limit, padding)

    def limited(self, hello: Hello) -> Hello:
        """The hello, with the smaller of the device's limit and ours; 0: there is none."""
        limit = min(hello.max_packet or MAX_PACKET_BYTES, self.max_packet)
        return msgspec.structs.replace(
            hello, max_packet=limit if limit < MAX_PACKET_BYTES else 0, padding=b""
        )

    def keeps(self, run: str, device: str) -> None:
        """A device keeps a model of a run from now on: its update is here."""
        self._devices[device].keep(run)

    def max_packet_of(self, device: str) -> int:
        """The largest MQTT packet that comes through to a device, as far as is known."""
        hello = self.hello(device)
        return MAX_PACKET_BYTES if hello is None or not hello.max_packet else hello.max_packet

    def chunk(self, device: str | None, transfer: bytes, index: int, data: bytes) -> Send:
        """A chunk for a device or, with None, for every device that lacks it."""
        if device is not None:
            return self._devices[device].peer.chunk(transfer, index, data)
        topic = topics.blob(self._name, transfer)
        frame = Frame(Kind.CHUNK, data, self._incarnation, 0, transfer, index)
        return Send(topic, seal(frame, topic, None))

    def disconnected(self, now: float) -> None:
        """The coordinator's link is down: every device is offline until its next hello."""
        for name, device in self._devices.items():
            if device.online:
                self.returning.add(name)
                self.leave(device, now)

    def give_up_returning(self) -> list[Send]:
        """Who has not come back counts as away; each is asked once more, as the first call may be lost."""
        names = sorted(islice(self.returning, MAX_ASKED))
        self.returning.clear()
        return self.request_hello(names)

    def arrive(self, device: Device, hello: Hello, now: float) -> None:
        """A device has said hello."""
        device.hello, at = hello, self.wall(now)
        self.changes += 1
        self.returning.discard(device.row.device)
        if not device.online:
            self.present += 1
            self.note(device, online=True, since=at)
        if hello.waits != device.session.waits:
            self.note(device, waits=hello.waits, waits_since=at)

    def leave(self, device: Device, now: float) -> None:
        """A device is offline until its next hello."""
        if device.online:
            self.present -= 1
            self.changes += 1
            self.note(device, online=False, since=self.wall(now))

    def sender(self, topic: str) -> Device | None:
        """The device that sends on this topic; None for a revoked device's and for any other topic."""
        return self._by_topic.get(topic)

    def answer_doctor(self, device: Device, payload: bytes) -> list[Effect]:
        """The welcome to a doctor's hello, which changes nothing here; nothing to any other frame.

        Raises ``RemoteError`` when the frame is not the device's own.
        """
        if not asks(payload):
            return []
        frame = device.peer.peek(payload, topics.up(self._name, device.row.device))
        hello = decode_body(frame.kind, frame.body)
        if not isinstance(hello, Hello):
            return []
        return [device.peer.message(self.welcome(hello.nonce, hello.padding))]

    def may_refuse(self, topic: str, payload: bytes, now: float) -> bool:
        """Whether ``refuse_sender`` may have an answer to a frame that no device in force has sent."""
        outdated = self._outdated(topic)
        device = self._revoked.get(topic) or outdated
        is_doctor = outdated is None and asks(payload)
        if device is None or (now < device.refuse_at and not is_doctor):
            return False
        return device.bucket.spend(now, cost(payload))

    def refuse_sender(self, topic: str, payload: bytes, now: float) -> list[Effect]:
        """Tell a device that is revoked, or speaks protocol version 1, now and then; a doctor at once."""
        outdated = self._outdated(topic)
        if outdated is not None:
            row = outdated.row
            effects = self._first_version.refuse(row.device, row.secret, topic, payload)
            if not effects:
                return []
            outdated.refuse_at = now + REFUSE_EVERY_S
            self._failed(outdated, WHY, now)
            if now >= outdated.warn_at:
                outdated.warn_at = now + WARN_EVERY_S
                effects.append(Note(logging.WARNING, f"device {row.device} is refused: {WHY}"))
            return effects
        device = self._revoked.get(topic)
        if device is None:
            return []
        with suppress(RemoteError):
            device.peer.peek(payload, topic)
            device.refuse_at = now + REFUSE_EVERY_S
            return [device.peer.message(REVOKED)]
        return []

    def is_outdated(self, topic: str) -> bool:
        """Whether a device of ours sends on this topic, by protocol version 1."""
        return self._outdated(topic) is not None

    def _outdated(self, topic: str) -> Device | None:
        """The device that sends on this topic of protocol version 1."""
        name = self._first_version.sender(topic)
        return None if name is None else self._devices.get(name)

    def _failed(self, device: Device, text: str, now: float) -> None:
        self.note(device, error=text, error_at=self.wall(now))

    def stale_frame(self, device: Device, payload: bytes, now: float) -> list[Effect]:
        """Log a genuine control frame that the replay window refused, if the device may wait in vain."""
        latest, incarnation = device.peer.window.incarnation, HEADER.unpack_from(payload)[5]
        if incarnation >= latest:  # of the same start: a broker has repeated a frame
            return []
        why = (
            f"its start at {start_time(incarnation)} by its clock is before the one at "
            f"{start_time(latest)} that was heard already"
        )
        self._failed(device, why, now)
        if now < device.warn_at:
            return []
        device.warn_at = now + WARN_EVERY_S
        name = device.row.device
        text = (
            f"device {name} is not heard: {why}. If its state was wiped, set its clock and restart "
            "it, or `device reissue` it; otherwise somebody repeats old frames"
        )
        return [device.peer.message(Refusal("incarnation", why)), Note(logging.WARNING, text)]

    def bad_frame(self, device: Device, error: RemoteError, now: float) -> list[Effect]:
        """Log a frame that cannot be used; a device of another version gets a REFUSED now and then."""
        note = Note(logging.WARNING, f"dropped a frame of {device.row.device}: {error}")
        self._failed(device, str(error), now)
        if not isinstance(error, VersionError) or now < device.refuse_at:
            return [note]
        device.refuse_at = now + REFUSE_EVERY_S
        return [device.peer.message(Refusal("version", str(error))), note]

    def rate_limited(self, device: Device, now: float) -> list[Note]:
        """A message above a device's rate limit was dropped; log it now and then."""
        if not device.bucket.warns(now):
            return []
        text = (
            f"device {device.row.device} sends more than {RATE:.0f} messages a second: the excess is "
            "dropped. Is it broken, or has somebody stolen its key (`sedge-cloud device revoke`)?"
        )
        self._failed(device, f"sends more than {RATE:.0f} messages a second", now)
        return [Note(logging.WARNING, text)]

    def able(self, run: Run) -> list[str]:
        """Ids, sorted, of the devices that are online, do not wait, and can do the run's work."""
        missing = lacking(run)
        return sorted(
            name
            for name, device in self._devices.items()
            if device.online
            and device.hello is not None
            and not device.waits
            and not missing(device.hello)
        )

    def refuse_unable(self, run: Run, devices: Iterable[str] | None = None) -> list[Effect]:
        """Refuse those of the devices, or of all, that are online and cannot do the run's work."""
        effects: list[Effect] = []
        missing = lacking(run)
        for name in sorted(self._devices if devices is None else devices):
            device = self._devices[name]
            what = missing(device.hello) if device.online and device.hello is not None else ()
            if what:
                effects += self.refuse(name, run.name, what)
        return effects

    def refuse(self, name: str, run: str, what: Iterable[str]) -> list[Effect]:
        """Tell a device, and the log, what it lacks for a run's work."""
        text = f"run {run} has no work for {name}: it lacks {', '.join(sorted(what))}"
        refusal = self._devices[name].peer.message(Refusal("unable", text))
        return [refusal, Note(logging.WARNING, text)]

    def _add(self, row: DeviceRow) -> list[Effect]:
        keys = DeviceKeys.of(row.secret)
        down = topics.down(self._name, row.device)
        peer = Peer(down, keys.down, keys.up, self._incarnation, row.incarnation, self._versions)
        device = self._devices[row.device] = Device(row, peer, row.read_hello())
        if device.hello is not None:
            with suppress(VersionError):  # its next hello is refused
                peer.agree(device.hello.versions)
        if row.revoked:
            self._revoked[topics.up(self._name, row.device)] = device
            return []
        self._revoked.pop(topics.up(self._name, row.device), None)
        self._by_topic[topics.up(self._name, row.device)] = device
        if not self._loaded:
            return []
        return [peer.message(self.welcome(NO_NONCE))]
