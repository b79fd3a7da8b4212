"""The coordinator: dispatches every message. A single-threaded core over a durable store.

It takes frames and the time, and returns effects. Whatever an effect mentions is already in the store,
which is durable when its method returns. So the process can be killed between any two effects and
restarts from the store alone.

    hello     -> welcome, and the open order again if the device still owes an answer
    get       -> chunks of a blob; requests are gathered briefly and served to the whole fleet at once
    offer     -> the stored receipt | busy | have
    chunk     -> written; after the last one: validated, stored with its receipt -> committed
    decline   -> the round no longer waits for this device
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from sedge_cloud.clocks import Wall, as_it_is
from sedge_cloud.config import KeepConfig
from sedge_cloud.events import CloudEffect, RoundClosed, RoundOpened, UpdateReceived
from sedge_cloud.ingest.admission import Admission
from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.downloads import Downloads
from sedge_cloud.ingest.muting import Muting
from sedge_cloud.ingest.progress import Progress
from sedge_cloud.ingest.rate_limit import LogQuota
from sedge_cloud.ingest.sessions import Fleet
from sedge_cloud.ingest.traffic import Traffic
from sedge_cloud.ingest.uploads import RETRY_MS, Answer, Uploads
from sedge_cloud.rounds.accounts import catch_up
from sedge_cloud.rounds.cohort import Draw, draw_cohort
from sedge_cloud.rounds.housekeeping import Housekeeping
from sedge_cloud.rounds.lifecycle import OpenRound, return_s
from sedge_cloud.rounds.loading import Loading
from sedge_cloud.rounds.scheduler import Scheduler
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.cache import Memory
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RoundRow, TrafficRow
from sedge_protocol.errors import RemoteError, StorageError, VersionError
from sedge_protocol.wire import messages
from sedge_protocol.wire.effects import Note, Send
from sedge_protocol.wire.frame import (
    MAX_PACKET_BYTES,
    VERSIONS,
    Frame,
    asks,
    latest_incarnation,
)
from sedge_protocol.wire.messages import Hello, Message
from sedge_protocol.wire.transfer import from_bitmap


class Coordinator:
    """The core of one fleet's coordinator. ``draw`` chooses a round's devices.

    ``versions`` are the protocol versions that it speaks, ``keep`` what it leaves of runs that have ended,
    ``memory`` bounds its caches, and ``wall`` tells the time on the wall clock at a time of the loop.
    """

    def __init__(
        self,
        fleet: str,
        store: Store,
        gather_s: float,
        incarnation: int,
        draw: Draw = draw_cohort,
        versions: Sequence[int] = VERSIONS,
        keep: KeepConfig | None = None,
        memory: Memory | None = None,
        wall: Wall = as_it_is,
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.run_store = RunStore(store, keep, memory)
        self.counters: Counter[str] = Counter()
        self._incarnation = store.next_incarnation(incarnation)
        self.devices = Fleet(fleet, self._incarnation, store, versions, wall)
        self.progress = Progress(self.devices)
        self._housekeeping = Housekeeping(self.run_store, self.counters)
        self._downloads = Downloads(store.blobs, gather_s, self.run_store.memory)
        self._traffic = Traffic()
        self.rounds = Scheduler(
            self.run_store, self.devices, self._downloads.manifest, self._housekeeping, self.counters,
            self._traffic, draw, wall,
        )  # fmt: skip
        self._uploads = Uploads(store, self.run_store, self._open_order)
        self._log = LogQuota()
        self._muting = Muting(fleet, self.devices, self._left)
        self._admission = Admission(self.devices, self._log, self.counters, self._muting)
        self._loading = Loading(store, self.devices, self.rounds, self._housekeeping)
        self._wall = wall
        self._heard_at = store.coordinator().heard  # the last sign of life of the process before
        self._away_since: float | None = None
        self._back_at = math.inf  # when who was away counts as gone

    @property
    def runs(self) -> dict[str, Run]:
        """Every loaded run, by name."""
        return {name: live.run for name, live in self.rounds.live.items()}

    @property
    def open(self) -> dict[str, OpenRound]:
        """The open rounds, by run."""
        return {current.row.run: current for current in self.rounds.open_rounds()}

    def load(self, now: float) -> list[CloudEffect]:
        """Load devices and runs from the store: at the start, and when the command line has changed them.

        Raises ``StorageError`` when the store cannot be read at the start; later it is tried again.
        """
        return self._counted(self._loading.load(now))

    def connected(self, now: float, max_packet: int = MAX_PACKET_BYTES) -> list[CloudEffect]:
        """The link is up: ask every device for a hello, which is answered with its open orders.

        ``max_packet`` is the largest MQTT packet that comes through the broker.
        """
        self.devices.max_packet = max_packet
        away_s = self._wall(now) - (self._heard_at or self._wall(now))
        if self._away_since is not None:
            away_s = now - self._away_since
        self._back_at = now + return_s(max(0.0, away_s), self.devices.num_active)
        self.rounds.connected(self._back_at)
        return self._counted([*self.devices.request_hellos()])

    def disconnected(self, now: float) -> None:
        """The link is down: every device is offline until its next hello."""
        self.devices.disconnected(now)
        if self._away_since is None or now >= self._back_at:  # otherwise the same outage goes on
            self._away_since = now
        self._back_at = math.inf
        self._muting.disconnected()
        self._downloads.clear()
        self._traffic.disconnected()
        self.rounds.disconnected()

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        parts = (
            self._downloads, self._uploads, self._housekeeping, self._log, self._muting, self.rounds,
        )  # fmt: skip
        return min((at for part in parts if (at := part.timer()) is not None), default=None)

    def poll(self, now: float, room: int) -> list[CloudEffect]:
        """Everything that is due; at most ``room`` chunks."""
        committed = self.commit(now)
        effects: list[CloudEffect] = [*self._admission.poll()]
        try:
            for effect in self._poll_devices(now):  # keeps the effects that precede an error
                effects.append(effect)
        except StorageError as exc:
            effects.append(self._housekeeping.storage_failed(exc))
        effects = committed + self._counted(effects)  # before a round closes with its bytes
        effects += self._counted(self.rounds.poll(now))
        if any(isinstance(effect, RoundClosed) for effect in effects):
            self._downloads.clear()  # a device that still needs a blob in the next round asks again
        due = [*self._housekeeping.poll(now), *self._log.poll(now), *self._serve(now, room)]
        return effects + self._counted(due)

    def _poll_devices(self, now: float) -> Iterator[CloudEffect]:
        yield from self._muting.poll(now)
        if self.devices.returning and now >= self._back_at:
            yield from self.devices.give_up_returning()
        for device, transfer, have in self._uploads.poll(now):
            yield self.devices[device].peer.message(have, transfer)

    def admits(self, topic: str, payload: bytes, now: float) -> bool:
        """Whether a frame is to be received (admission.py); asked once about each."""
        return self._admission.admits(topic, payload, now)

    def receive(self, topic: str, payload: bytes, now: float) -> list[CloudEffect]:
        """Process an admitted frame. Bad bytes are counted, logged and answered; they change nothing.

        A frame that the disk refused counts as lost: its sender repeats it.
        """
        try:
            device = self.devices.sender(topic)
            if device is None:
                return [*self.devices.refuse_sender(topic, payload, now)]
        except StorageError as exc:
            return [self._housekeeping.storage_failed(exc)]
        self.devices.note(device, heard=self._wall(now))
        self._traffic.received(device.row.device, payload)
        effects = self._counted(self._open_and_dispatch(device, topic, payload, now))
        effects = self._log.admit(f"device {device.row.device}", effects, now)
        return effects + self.commit(now) if self._uploads.is_turn_full else effects

    def commit(self, now: float) -> list[CloudEffect]:
        """End a turn: store the updates that ``receive`` was given, and only then answer them."""
        effects: list[CloudEffect] = []
        failed: StorageError | None = None
        for name, transfer, answer in self._uploads.commit():
            device = self.devices[name]
            if isinstance(answer, StorageError):
                busy = messages.Busy(RETRY_MS, "storage")
                effects.append(device.peer.message(busy, transfer))
                if answer is not failed:  # one for all if all have failed
                    effects.append(self._housekeeping.storage_failed(answer))
                failed = answer
            else:
                answered = self._answer(device, transfer, answer)
                effects += self._log.admit(f"device {name}", answered, now)
        return self._counted(effects)

    def _counted(self, effects: list[CloudEffect]) -> list[CloudEffect]:
        """The same effects, after every device's bytes were counted."""
        for effect in list(effects):
            match effect:
                case Send():
                    self._traffic.sent(effect)
                case RoundOpened():
                    self._traffic.opened(effect.run, effect.cohort)
                case RoundClosed():
                    self._traffic.closed(effect.summary.run)
                    try:
                        catch_up(self.store, effect.summary.run)
                    except StorageError as exc:  # the round is closed all the same
                        effects.append(self._housekeeping.storage_failed(exc))
                case _:
                    pass
        return effects

    def _open_and_dispatch(
        self, device: Device, topic: str, payload: bytes, now: float
    ) -> list[CloudEffect]:
        try:
            if asks(payload):
                return [*self.devices.answer_doctor(device, payload)]
            # The latest that can be genuine: ours, a clock reading, plus the time since then.
            latest = latest_incarnation(self._incarnation + now - self._loading.started)
            opened = device.peer.open(payload, topic, latest)
            if opened is None:
                return [*self.devices.stale_frame(device, payload, now)]
            return self._dispatch(device, *opened, now)
        except RemoteError as exc:
            self.counters["version" if isinstance(exc, VersionError) else "refused"] += 1
            return [*self.devices.bad_frame(device, exc, now)]
        except StorageError as exc:
            return [self._housekeeping.storage_failed(exc)]

    def _dispatch(
        self, device: Device, frame: Frame, message: Message | None, now: float
    ) -> list[CloudEffect]:
        name = device.row.device
        match message:
            case None:
                return self._chunk(device, frame, now)
            case Hello():
                return self._hello(device, frame, message, now)
            case messages.Goodbye():
                if device.hello is not None and device.hello.nonce == message.nonce:
                    self._left(device, now)
                return []
            case messages.Get():
                return self._get(device, frame.transfer, message, now)
            case messages.Offer():
                return self._offer(device, frame.transfer, message, now)
            case messages.Decline():
                return self._decline(device, message)
            case _:
                raise RemoteError(f"{type(message).__name__} from {name} is not for a coordinator")

    def _left(self, device: Device, now: float) -> None:
        """A device is offline until its next hello."""
        self.devices.leave(device, now)
        self.rounds.leave(device.row.device)

    def _hello(self, device: Device, frame: Frame, hello: Hello, now: float) -> list[CloudEffect]:
        name = device.row.device
        try:
            device.peer.agree(hello.versions)
        except VersionError:  # whatever it spoke before, no order reaches it now
            self._left(device, now)
            raise
        hello, known = self.devices.limited(hello), device.hello
        if device.is_another(hello, frame.incarnation):
            self.rounds.renewed(name)
        has_moved = known is not None and hello.max_packet != known.max_packet
        if frame.incarnation != device.row.incarnation or has_moved or hello.waits != device.waits:
            self.store.save_hello(device.row, frame.incarnation, msgspec.msgpack.encode(hello))
            device.row = msgspec.structs.replace(device.row, incarnation=frame.incarnation)
        effects: list[CloudEffect] = [device.peer.message(self.devices.welcome(hello.nonce))]
        if not device.online:
            effects.append(Note(logging.INFO, f"device {name} is online"))
        self.devices.arrive(device, hello, now)
        for run in self.rounds.running():
            effects += self.devices.refuse_unable(run, [name])
        return effects + self.rounds.arrive(name, now)

    def _get(
        self, device: Device, transfer: bytes, get: messages.Get, now: float
    ) -> list[CloudEffect]:
        current, name = self.rounds.open_round(get.run), device.row.device
        if current is None or name not in current.orders or current.row.round != get.round:
            text = "the round is over"
            return [device.peer.message(messages.Cancel(get.run, get.round, text))]
        served = self.rounds.orders.served(self.runs[get.run], current, name)
        queued, one = self._downloads.request(name, transfer, get.missing, served, now)
        device.bucket.charge(queued)
        self.progress.fetches(device, transfer, get, one.what, one.manifest.count, now)
        self._traffic.asked(name, transfer, from_bitmap(get.missing, 8 * len(get.missing)))
        if transfer == self.rounds.orders.describe(name)(current.row.model).transfer:
            self._whole_model(current, name)
        return []

    def _whole_model(self, current: OpenRound, name: str) -> None:
        """A device fetches the whole model: count it if it had one and the run broadcasts changes.

        That is stored at once: a restart within the round forgets everything else about its bytes.
        """
        run, number = current.row.run, current.row.round
        has_model = current.orders[name].holds and not self.runs[run].config.broadcast.whole
        if has_model and self._traffic.fell_back(run, name):
            self.counters["whole_models"] += 1
            self.store.save_traffic([TrafficRow(run, number, name, 0, 0, True)])

    def _serve(self, now: float, room: int) -> list[CloudEffect]:
        try:
            return [self.devices.chunk(*chunk) for chunk in self._downloads.poll(now, room)]
        except StorageError as exc:  # the device asks again
            return [self._housekeeping.storage_failed(exc)]

    def _offer(
        self, device: Device, transfer: bytes, offer: messages.Offer, now: float
    ) -> list[CloudEffect]:
        effects: list[CloudEffect] = []
        try:
            effects += self._loading.find(offer.run, now)
            name, run = device.row.device, self._run(offer.run)
            answer = self._uploads.offer(name, transfer, offer, run, now)
            if isinstance(answer.reply, messages.Have):
                self.progress.sends(device, offer.run, offer.round, now)
        except StorageError as exc:
            return effects + self._busy(device, transfer, exc)
        return effects + self._answer(device, transfer, answer)

    def _chunk(self, device: Device, frame: Frame, now: float) -> list[CloudEffect]:
        try:
            answer = self._uploads.chunk(device.row.device, frame, self._run, now)
        except StorageError as exc:
            return self._busy(device, frame.transfer, exc)
        return self._answer(device, frame.transfer, answer)

    def _busy(self, device: Device, transfer: bytes, error: StorageError) -> list[CloudEffect]:
        later = messages.Busy(RETRY_MS, "storage")
        return [device.peer.message(later, transfer), self._housekeeping.storage_failed(error)]

    def _answer(self, device: Device, transfer: bytes, answer: Answer) -> list[CloudEffect]:
        effects: list[CloudEffect] = []
        reply, row = answer.reply, answer.row
        if reply is not None:
            effects.append(device.peer.message(reply, transfer))
        if isinstance(reply, messages.Committed | messages.Reject):
            self.devices.keeps(reply.run, device.row.device)
            current = self.rounds.open_round(reply.run)
            if current is not None:
                current.answered(device.row.device, reply)
        if row is None:
            return effects
        if answer.report is not None:
            self.counters["late" if row.late else "updates"] += 1
            effects.append(
                UpdateReceived(
                    row.run, row.round, row.device, answer.report, row.size, row.late > 0
                )
            )
        else:
            self.counters["rejected"] += 1
            text = f"run {row.run}, round {row.round}: rejected the update of {row.device}: "
            effects.append(Note(logging.WARNING, f"{text}{row.rejected}: {row.detail}"))
        return effects

    def _decline(self, device: Device, message: messages.Decline) -> list[CloudEffect]:
        name, current = device.row.device, self.rounds.open_round(message.run)
        if current is None or current.row.round != message.round or not current.waiting_for(name):
            return []
        return [self.rounds.decline(current, name, f"{message.reason}: {message.detail}")]

    def _run(self, name: str) -> Run | None:
        live = self.rounds.live.get(name)
        return None if live is None else live.run

    def _open_order(self, run: str, number: int, device: str) -> tuple[OrderRow, RoundRow] | None:
        current = self.rounds.open_round(run)
        if current is None or current.row.round != number or device not in current.orders:
            return None
        return current.orders[device], current.row
