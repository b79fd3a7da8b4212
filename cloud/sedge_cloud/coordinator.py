"""The coordinator: the cloud's side of every message and round, as a state machine without I/O.

It is given frames and the time, and gives back effects. Whatever an effect speaks of is already in
the store (``Store`` is durable when a method returns), so it can be killed between any two effects
and starts again from the store alone.

    hello     -> welcome, and the open order again if the device still owes an answer
    get       -> chunks of a blob, gathered over a short window and sent once to the whole fleet
    offer     -> the stored receipt | busy | have
    chunk     -> written; when the last one is: validated, stored with its receipt -> committed
    decline   -> the round does not wait for this device any more
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator

import msgspec

from sedge_cloud.devices.downloads import Downloads
from sedge_cloud.devices.rate_limit import Allowance
from sedge_cloud.devices.registry import VERSION, Device, Fleet
from sedge_cloud.devices.uploads import RETRY_MS, Answer, Inbox
from sedge_cloud.events import CloudEffect, RoundClosed, RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.rounds import lifecycle as rounds
from sedge_cloud.rounds.cohort import plan_cohort
from sedge_cloud.rounds.housekeeping import DISK_RETRY_S, Housekeeping
from sedge_cloud.rounds.lifecycle import RUNNING, Draw, OpenRound
from sedge_cloud.rounds.orders import make_order, require_sendable, served
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RunRow
from sedge_cloud.store.runs import Ledger, Run
from sedge_protocol.errors import ConfigError, LocalError, RemoteError, StorageError, VersionError
from sedge_protocol.wire import messages
from sedge_protocol.wire.effects import Note, Send
from sedge_protocol.wire.frame import Frame, latest_boot
from sedge_protocol.wire.messages import Hello, Message

# An order that went unanswered this long is sent again: a broker may have dropped it.
RESEND_S = 60.0


class Coordinator:
    """The cloud's core for one fleet. ``draw`` chooses the devices of a round."""

    def __init__(
        self, fleet: str, store: Store, gather_s: float, boot: int, draw: Draw = rounds.cohort
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.ledger = Ledger(store)
        self.counters: Counter[str] = Counter()
        self.runs: dict[str, Run] = {}
        self.open: dict[str, OpenRound] = {}
        self._boot = store.next_boot(boot)
        self.devices = Fleet(fleet, self._boot)
        self._draw = draw
        self._house = Housekeeping(self.ledger, self.counters)
        self._inbox = Inbox(store, self.ledger, self.open)
        self._downloads = Downloads(store.blobs, gather_s)
        self._strangers = Allowance()
        self._resend_at: dict[str, float] = {}
        self._not_before: dict[str, float] = {}
        self._drawn_at: dict[str, int] = {}
        self._started = 0.0
        self._load_at = 0.0
        self._reload_at = math.inf  # a run could not be read
        self._version: int | None = None

    def load(self, now: float) -> list[CloudEffect]:
        """Take over what the store holds: at the start, and whenever the command line changed it.

        Raises ``StorageError`` when the store cannot be read at the start; later on it tries again.
        """
        found: list[CloudEffect] = []
        if now < self._load_at:
            return found
        try:
            version = self.store.version()
            if version != self._version or now >= self._reload_at:
                self._reload_at = math.inf
                found += self.devices.load(self.store.devices())
                for row in self.store.runs():
                    found += self._load_run(row, now)
                if self._version is None:
                    self._started = now
                    found += self._house.started()
                for current in self.open.values():
                    found += self._look_for(current)
                self._version = version
        except StorageError as exc:
            if self._version is None:
                raise
            self._load_at = now + DISK_RETRY_S
            found.append(self._house.trouble(exc))
        return found

    def connected(self, now: float) -> list[CloudEffect]:
        """The link is up: ask every device for a hello; their answers bring the orders out again."""
        return [*self.devices.call()]

    def disconnected(self) -> None:
        """The link is down: nobody can be reached until their next hello."""
        self.devices.lose()
        self._downloads.clear()
        for current in self.open.values():
            current.present.clear()

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = [self._downloads.timer(), self._inbox.timer(), self._house.timer()]
        for name, current in self.open.items():
            at = min(current.deadline, self._resend_at[name])
            due.append(max(at, self._not_before.get(name, 0.0)))
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float, room: int) -> list[CloudEffect]:
        """Everything that is due; at most ``room`` chunks."""
        found: list[CloudEffect] = []
        for device, transfer, have in self._inbox.poll(now):
            found.append(self.devices[device].peer.message(have, transfer))
        for run in list(self.runs.values()):
            if now < self._not_before.get(run.name, 0.0):
                continue
            try:
                for effect in self._advance(run, now):  # what was done before an error has effects
                    found.append(effect)
            except StorageError as exc:
                self._not_before[run.name] = now + DISK_RETRY_S
                found.append(self._house.trouble(exc, run.name))
        return [*found, *self._house.poll(now), *self._serve(now, room)]

    def receive(self, topic: str, payload: bytes, now: float) -> list[CloudEffect]:
        """A frame from the broker. Bad bytes are counted, noted and answered; they change nothing.

        A frame that the disk would not let us act on is as good as lost: its sender says it again.
        """
        try:
            device = self.devices.sender(topic)
        except RemoteError as exc:
            self.counters["foreign"] += 1
            heard = self._strangers.spend(now)
            return [Note(logging.WARNING, f"dropped a frame on {topic}: {exc}")] if heard else []
        try:
            opened = device.peer.open(payload, topic, self._latest_boot(now))
            if opened is None:
                return [*self.devices.unheard(device, payload, now)]
            if opened[1] is not None and not device.allowance.spend(now):
                self.counters["flood"] += 1
                return [*self.devices.too_many(device, now)]
            return self._dispatch(device, *opened, now)
        except RemoteError as exc:
            self.counters["version" if isinstance(exc, VersionError) else "refused"] += 1
            return [*self.devices.refuse(device, exc, now)]
        except StorageError as exc:
            return [self._house.trouble(exc)]

    def _latest_boot(self, now: float) -> int:
        """By our own start count, which our clock has set, and the time since."""
        return latest_boot(self._boot + now - self._started)

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
                    self.devices.leave(device)
                    for current in self.open.values():
                        current.present.discard(name)
                return []
            case messages.Get():
                return self._get(device, frame.transfer, message, now)
            case messages.Offer():
                return self._offer(device, frame.transfer, message, now)
            case messages.Decline():
                return self._decline(device, message, now)
            case _:
                raise RemoteError(f"{type(message).__name__} from {name} is not for a coordinator")

    def _hello(self, device: Device, frame: Frame, hello: Hello, now: float) -> list[CloudEffect]:
        name = device.row.device
        if frame.boot != device.row.boot:
            self.store.heard(device.row, frame.boot, msgspec.msgpack.encode(hello))
            device.row = msgspec.structs.replace(device.row, boot=frame.boot)
        found: list[CloudEffect] = [device.peer.message(messages.Welcome(hello.nonce, VERSION))]
        if not device.online:
            found.append(Note(logging.INFO, f"device {name} is online"))
        self.devices.arrive(device, hello)
        for current in list(self.open.values()):  # a run whose order cannot be sent ends
            current.arrive(name)
            found += self._send_orders(current, [name], now)
        return found

    def _get(
        self, device: Device, transfer: bytes, get: messages.Get, now: float
    ) -> list[CloudEffect]:
        current, name = self.open.get(get.run), device.row.device
        if current is None or name not in current.orders or current.row.round != get.round:
            text = "the round is over"
            return [device.peer.message(messages.Cancel(get.run, get.round, text))]
        offered = served(self.runs[get.run], current, name, self._downloads.manifest)
        self._downloads.request(name, transfer, get.missing, offered, now)
        return []

    def _serve(self, now: float, room: int) -> list[CloudEffect]:
        try:
            return [self.devices.chunk(*chunk) for chunk in self._downloads.poll(now, room)]
        except StorageError as exc:  # who asked asks again
            return [self._house.trouble(exc)]

    def _offer(
        self, device: Device, transfer: bytes, offer: messages.Offer, now: float
    ) -> list[CloudEffect]:
        found: list[CloudEffect] = []
        try:
            found += self._find_run(offer.run, now)
            name, run = device.row.device, self.runs.get(offer.run)
            answer = self._inbox.offer(name, transfer, offer, run, now)
        except StorageError as exc:
            return found + self._busy(device, transfer, exc)
        return found + self._answer(device, transfer, answer)

    def _chunk(self, device: Device, frame: Frame, now: float) -> list[CloudEffect]:
        try:
            answer = self._inbox.chunk(device.row.device, frame, self.runs, now)
        except StorageError as exc:
            return self._busy(device, frame.transfer, exc)
        return self._answer(device, frame.transfer, answer)

    def _busy(self, device: Device, transfer: bytes, error: StorageError) -> list[CloudEffect]:
        later = messages.Busy(RETRY_MS, "storage")
        return [device.peer.message(later, transfer), self._house.trouble(error)]

    def _answer(self, device: Device, transfer: bytes, answer: Answer) -> list[CloudEffect]:
        found: list[CloudEffect] = []
        reply, row = answer.reply, answer.row
        if reply is not None:
            found.append(device.peer.message(reply, transfer))
        if isinstance(reply, messages.Committed | messages.Reject) and reply.run in self.open:
            self.open[reply.run].answered(device.row.device, reply)
        if row is None:
            return found
        if answer.report is not None:
            self.counters["late" if row.late else "updates"] += 1
            found.append(
                UpdateReceived(row.run, row.round, row.device, answer.report, row.size, row.late)
            )
        else:
            self.counters["rejected"] += 1
            text = f"run {row.run}, round {row.round}: rejected the update of {row.device}: "
            found.append(Note(logging.WARNING, f"{text}{row.rejected}: {row.detail}"))
        return found

    def _decline(self, device: Device, message: messages.Decline, now: float) -> list[CloudEffect]:
        name = device.row.device
        current = self.open.get(message.run)
        if current is None or current.row.round != message.round or not current.waiting_for(name):
            return []
        return [self._declined(current, name, f"{message.reason}: {message.detail}")]

    def _declined(self, current: OpenRound, name: str, reason: str) -> Note:
        """A device will not do its order: the round does not wait for it."""
        row = current.row
        self.store.decline(row.run, row.round, name, reason)
        current.decline(name, reason)
        self.counters["declined"] += 1
        text = f"run {row.run}, round {row.round}: {name} declines: {reason!r}"
        return Note(logging.WARNING, text)

    def _advance(self, run: Run, now: float) -> Iterator[CloudEffect]:
        """Open a round that can open, close one that can close, repeat orders left unanswered."""
        current = self.open.get(run.name)
        had_trouble = self._not_before.pop(run.name, None) is not None
        if current is not None:
            if had_trouble and rounds.complete(run, current, now):
                yield from self._house.reject_lost(current)
            if rounds.complete(run, current, now):
                yield from self._close(run, current)
            elif now >= current.deadline:
                yield from self._extend(run, current, now)
            elif now >= self._resend_at[run.name]:
                yield from self._repeat_orders(current, now)
        if run.status == RUNNING and run.name not in self.open:
            yield from self._open_next(run, now)

    def _open_next(self, run: Run, now: float) -> Iterator[CloudEffect]:
        coming = rounds.due(run)
        enough = self.devices.present >= run.config.min_available_devices
        if coming is None or not enough or self._drawn_at.get(run.name) == self.devices.changes:
            return
        number, task = coming
        # One that is open already was written by a commit that the disk then reported as failed.
        current = rounds.resume(run, self.store, now)
        if current is None:
            try:
                planned = plan_cohort(run, self.ledger, number, task, self.devices, self._draw)
                made = rounds.make_round(run, number, task, planned.orders, now)
                require_sendable(run, made, self.devices.hello, self._downloads.manifest)
            except LocalError as exc:  # no retry helps
                yield from self._fail(run, f"round {number} cannot be planned: {exc}")
                return
            if planned.left_out:
                yield Note(logging.WARNING, f"run {run.name}, round {number}: {planned.lacking}")
            if len(planned.orders) < run.config.min_updates:
                self._drawn_at[run.name] = self.devices.changes  # no use before someone comes
                return
            current = rounds.open_round(run, self.store, number, task, planned.orders, now)
        yield from self._begin(run, current, now)
        yield RoundOpened(run.name, number, task, tuple(current.orders))
        yield from self._repeat_orders(current, now)

    def _begin(self, run: Run, current: OpenRound, now: float) -> list[CloudEffect]:
        found = self._look_for(current)
        self.open[run.name], self._resend_at[run.name] = current, now + RESEND_S
        return found

    def _fail(self, run: Run, why: str) -> list[CloudEffect]:
        """A run cannot go on, and the others do."""
        rounds.fail(run, self.store)
        text = f"run {run.name} has failed: {why}"
        void = self._void(run, "the run has failed")
        return [*void, Note(logging.ERROR, text), RunEnded(run.name, run.status, why)]

    def _look_for(self, current: OpenRound) -> list[CloudEffect]:
        """Which devices of a round are there, kept up to date with hellos; the revoked owe nothing."""
        waiting = [name for name in current.orders if current.waiting_for(name)]
        current.present = {name for name in waiting if self.devices[name].online}
        revoked = (name for name in waiting if self.devices[name].row.revoked)
        return [self._declined(current, name, "revoked") for name in revoked]

    def _repeat_orders(self, current: OpenRound, now: float) -> list[CloudEffect]:
        self._resend_at[current.row.run] = now + RESEND_S
        return self._send_orders(current, list(current.orders), now)

    def _send_orders(self, current: OpenRound, names: list[str], now: float) -> list[CloudEffect]:
        """The order of each of these devices that is there and still owes an answer, new or again."""
        found: list[CloudEffect] = []
        run = self.runs[current.row.run]
        for name in names:
            device = self.devices[name]
            if not (current.waiting_for(name) and device.online):
                continue
            try:
                order = make_order(run, current, name, device.hello, self._downloads.manifest, now)
                found.append(device.peer.message(order))
            except StorageError as exc:
                found.append(self._house.trouble(exc, run.name))
            except LocalError as exc:  # no retry helps
                why = f"round {current.row.round}: the order of {name} cannot be sent: {exc}"
                return found + self._fail(run, why)
        return found

    def _extend(self, run: Run, current: OpenRound, now: float) -> list[CloudEffect]:
        """Too few updates at the deadline: wait another one, and ask again."""
        current.deadline = now + run.config.deadline_s
        self.counters["extended"] += 1
        text = f"run {run.name}, round {current.row.round}: fewer than {run.config.min_updates} updates"
        return [
            Note(logging.WARNING, f"{text} at the deadline; extended"),
            *self._repeat_orders(current, now),
        ]

    def _close(self, run: Run, current: OpenRound) -> Iterator[CloudEffect]:
        summary = rounds.close_round(run, self.ledger, current)
        del self.open[run.name], self._resend_at[run.name]
        self._downloads.clear()
        yield RoundClosed(summary)
        if summary.failure:
            text = f"run {run.name} has failed in round {summary.round}: {summary.failure}"
            yield Note(logging.ERROR, text)
        if run.status != RUNNING:
            yield RunEnded(run.name, run.status)
        yield from self._house.closed(len(current.orders))

    def _load_run(self, row: RunRow, now: float) -> list[CloudEffect]:
        known = self.runs.get(row.run)
        if known is None and row.status == RUNNING:
            try:
                return self._take_over(row, now)
            except StorageError as exc:  # the other runs go on
                self._reload_at = now + DISK_RETRY_S
                return [self._house.trouble(exc, row.run)]
        if known is not None and row.status != RUNNING and known.status == RUNNING:
            return self._stop(known, row.status)
        return []

    def _take_over(self, row: RunRow, now: float) -> list[CloudEffect]:
        """A run of the store, with its open round if it is running."""
        run, found = Run(row, self.store), list[CloudEffect]()
        if run.status == RUNNING:
            try:
                _ = run.strategy  # now, before devices work for a round that could not be closed
                current = rounds.resume(run, self.store, now)
            except ConfigError as exc:
                found, current = self._fail(run, f"its strategy cannot be loaded: {exc}"), None
            if current is not None:
                found += self._begin(run, current, now)
        self.runs[run.name] = run
        return found

    def _stop(self, run: Run, status: str) -> list[CloudEffect]:
        """The operator stopped a run: its open round ends without an aggregate."""
        run.status = status
        return [*self._void(run, "the run was stopped"), RunEnded(run.name, status)]

    def _void(self, run: Run, why: str) -> list[Send]:
        """A run's open round, if it has one, ends without an aggregate: who still works for it is told."""
        current = self.open.pop(run.name, None)
        self._resend_at.pop(run.name, None)
        if current is None:
            return []
        void = messages.Cancel(run.name, 0, why)
        waiting = [name for name in current.orders if current.waiting_for(name)]
        return [self.devices[name].peer.message(void) for name in waiting]

    def _find_run(self, name: str, now: float) -> list[CloudEffect]:
        """Take over a run that is asked for, also one that ended before this process began."""
        if name in self.runs:
            return []
        row = next((row for row in self.store.runs() if row.run == name), None)
        return [] if row is None else self._take_over(row, now)
