"""Who acts on lifecycle.py: opens the rounds of every run, asks their devices, collects, folds.

It sends and stores through others. Who is drawn is decided in cohort.py, what a device is asked in plans.py
and orders.py, how updates are folded in closing.py.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from sedge_cloud.devices.downloads import Describe, Served
from sedge_cloud.devices.registry import Fleet
from sedge_cloud.events import CloudEffect, RoundClosed, RoundOpened, RunEnded
from sedge_cloud.rounds.closing import close_round, closed_already
from sedge_cloud.rounds.cohort import Draw, coming_round, plan_cohort
from sedge_cloud.rounds.housekeeping import DISK_RETRY_S, Housekeeping
from sedge_cloud.rounds.lifecycle import (
    FAILED,
    ROUND,
    RUNNING,
    Event,
    LiveRun,
    OpenRound,
    Phase,
    counted_updates,
    new_round,
    next_state,
    resume,
)
from sedge_cloud.rounds.orders import make_order, require_sendable, with_step
from sedge_cloud.rounds.summary import Summary
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RunRow
from sedge_cloud.store.runs import Run, RunStore
from sedge_protocol.errors import ConfigError, LocalError, StorageError
from sedge_protocol.wire.effects import Note, Send
from sedge_protocol.wire.messages import Cancel, Order


class Scheduler:
    """Every run of a fleet and its rounds. ``draw`` chooses the devices of a round."""

    def __init__(
        self,
        run_store: RunStore,
        devices: Fleet,
        describe: Describe,
        house: Housekeeping,
        counters: Counter[str],
        draw: Draw,
    ) -> None:
        self.live: dict[str, LiveRun] = {}
        self._run_store = run_store
        self._store: Store = run_store.store
        self._devices = devices
        self._describe = describe
        self._house = house
        self._counters = counters
        self._draw = draw

    def open_round(self, run: str) -> OpenRound | None:
        """The open round of a run."""
        live = self.live.get(run)
        return None if live is None else live.round

    def open_rounds(self) -> list[OpenRound]:
        """Every open round."""
        return [live.round for live in self.live.values() if live.round is not None]

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = (live.timer() for live in self.live.values())
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> list[CloudEffect]:
        """Everything that is due. A run whose disk refuses is tried again later; the others go on."""
        found: list[CloudEffect] = []
        for live in list(self.live.values()):
            if now < live.retry_at:
                continue
            try:
                for effect in self._advance(live, now):  # what was done before an error has effects
                    found.append(effect)
            except StorageError as exc:
                live.retry_at = now + DISK_RETRY_S
                found.append(self._house.trouble(exc, live.run.name))
        return found

    def _advance(self, live: LiveRun, now: float) -> Iterator[CloudEffect]:
        """Take a run as far as it can go: open a round, ask its devices, collect, fold."""
        had_trouble, live.retry_at = live.retry_at > 0, 0.0
        if live.round is not None:
            yield from self._collect(live, live.round, now, had_trouble)
        if live.round is None and live.run.status == RUNNING:
            yield from self._open(live, now)

    def _collect(
        self, live: LiveRun, current: OpenRound, now: float, had_trouble: bool
    ) -> Iterator[CloudEffect]:
        config = live.run.config
        if had_trouble and current.due(config, now) is not None:
            summary = closed_already(live, self._run_store, current)
            if summary is not None:
                yield from self._closed(live, current, summary)
                return
            yield from self._reject_lost(live.run, current)
        while (event := current.due(config, now)) is not None:
            if next_state(ROUND, current.phase, event) == Phase.CLOSED:
                yield from self._closed(live, current, close_round(live, self._run_store, current))
                return
            current.enter(event, config, now)
            if event is Event.SHORTAGE:
                self._counters["extended"] += 1
                yield _told(
                    current, f"fewer than {config.min_updates} updates at the deadline; extended"
                )
                yield from self._ask(live, current, current.waiting, now)
        if now >= current.resend_at:
            yield from self._ask(live, current, current.waiting, now)

    def _open(self, live: LiveRun, now: float) -> Iterator[CloudEffect]:
        run, devices = live.run, self._devices
        coming = coming_round(run)
        enough = devices.present >= run.config.min_available_devices
        if coming is None or not enough or live.drawn_at == devices.changes:
            return
        number, task = coming
        # One that is open already was written by a commit that the disk then reported as failed.
        current, orders = resume(run, self._store, now), dict[str, Order]()
        if current is None:
            try:
                planned = plan_cohort(run, self._run_store, number, task, devices, self._draw)
                if planned.left_out:
                    where = f"run {run.name}, round {number}"
                    yield Note(logging.WARNING, f"{where}: {planned.lacking}")
                if len(planned.orders) < run.config.min_updates:
                    live.drawn_at = devices.changes
                    return
                current = new_round(run, number, task, planned.orders, now)
                orders = self._orders(run, current, planned.orders, now)
            except LocalError as exc:  # no retry helps
                yield from self._fail(live, f"round {number} cannot be planned: {exc}")
                return
            self._store.open_round(current.row, planned.orders)
        yield from self._begin(live, current, now)
        yield RoundOpened(run.name, number, task, tuple(current.orders))
        yield from self._ask(live, current, current.waiting, now, orders)

    def _orders(
        self, run: Run, current: OpenRound, given: Iterable[OrderRow], now: float
    ) -> dict[str, Order]:
        """The orders of a new round as they go on the wire. Raises ``LocalError`` for one too large.

        Before the round is stored: one with such an order could only end with its run. A small step is
        inside them this once: who has lost the order asks for it.
        """
        read, found = self._store.blobs.read, dict[str, Order]()
        for row in given:
            order = require_sendable(run, self._order(run, current, row, now), row.device)
            found[row.device] = with_step(order, read)
        return found

    def _order(self, run: Run, current: OpenRound, given: OrderRow, now: float) -> Order:
        hello = self._devices.hello(given.device)
        left_s = current.deadline - now
        return make_order(run, current.row, current.steps, given, hello, self._describe, left_s)

    def _begin(self, live: LiveRun, current: OpenRound, now: float) -> list[Note]:
        """A round is open: who of its devices is online is known from here on, and kept up to date."""
        live.round = current
        current.asked(now)
        return self.look_for(current)

    def look_for(self, current: OpenRound) -> list[Note]:
        """Find out which devices of a round are online; the revoked owe nothing."""
        waiting = current.waiting
        current.present = {name for name in waiting if self._devices[name].online}
        revoked = (name for name in waiting if self._devices[name].row.revoked)
        return [self.decline(current, name, "revoked") for name in revoked]

    def arrive(self, device: str, now: float) -> list[CloudEffect]:
        """A device has said hello: it is sent the orders that it owes an answer to."""
        found: list[CloudEffect] = []
        for live in list(self.live.values()):  # a run whose order cannot be sent ends
            if live.round is not None and live.round.waiting_for(device):
                live.round.arrive(device)
                found += self._send(live, live.round, [device], now)
        return found

    def leave(self, device: str) -> None:
        """A device is gone until its next hello."""
        for current in self.open_rounds():
            current.present.discard(device)

    def disconnected(self) -> None:
        """Our own link is down: nobody can be reached until their next hello."""
        for current in self.open_rounds():
            current.present.clear()

    def decline(self, current: OpenRound, device: str, reason: str) -> Note:
        """A device will not do its order: the round does not wait for it."""
        row = current.row
        self._store.decline(row.run, row.round, device, reason)
        current.decline(device, reason)
        self._counters["declined"] += 1
        return _told(current, f"{device} declines: {reason!r}")

    def served(self, current: OpenRound, device: str) -> Iterator[Served]:
        """The blobs that a device of the round may ask for: those in common, then its own."""
        run, row = self.live[current.row.run].run, current.row
        given, waiting = current.orders[device], max(1, len(current.present))
        yield Served(run.bundles[given.width], min(waiting, current.widths[given.width]))
        if not given.model:
            users = min(waiting, current.users[row.model])
            for blob in (row.model, *(step.blob for step in current.steps)):
                yield Served(self._describe(blob), users)
        own = (given.model, given.patch_blob, given.patch_context, given.correction, given.step)
        for blob in own:
            if blob:
                users = current.users[blob]
                yield Served(self._describe(blob), min(users, waiting) if users > 1 else 0)

    def begins_anew(self, current: OpenRound, device: str, transfer: bytes) -> list[Note]:
        """Count a device that asks for the model whole though it had one: lost, or too far behind."""
        given, model = current.orders[device], self._describe(current.row.model)
        coded = not self.live[current.row.run].run.config.broadcast.whole
        first = device not in current.anew
        if not (coded and first and given.holds and transfer == model.transfer):
            return []
        current.anew.add(device)
        self._counters["fetched_anew"] += 1
        return [_told(current, f"{device} has lost its model, or was away too long: gets it whole")]

    def _ask(
        self,
        live: LiveRun,
        current: OpenRound,
        names: Sequence[str],
        now: float,
        orders: Mapping[str, Order] | None = None,
    ) -> list[CloudEffect]:
        """Send orders, new or again; ``orders`` has those that are made already."""
        current.asked(now)
        return self._send(live, current, names, now, orders)

    def _send(
        self,
        live: LiveRun,
        current: OpenRound,
        names: Sequence[str],
        now: float,
        made: Mapping[str, Order] | None = None,
    ) -> list[CloudEffect]:
        found: list[CloudEffect] = []
        for name in names:
            device = self._devices[name]
            if not device.online:
                continue
            try:
                order = (made or {}).get(name)
                order = order or self._order(live.run, current, current.orders[name], now)
                found.append(device.peer.message(order))
            except StorageError as exc:
                found.append(self._house.trouble(exc, live.run.name))
            except LocalError as exc:  # no retry helps
                why = f"round {current.row.round}: the order of {name} cannot be sent: {exc}"
                return found + self._fail(live, why)
        return found

    def _reject_lost(self, run: Run, current: OpenRound) -> Iterator[Note]:
        """Reject the updates that would count in the round, and that the disk has lost."""
        rows = counted_updates(run, self._store, current.row)
        accepted = self._run_store.with_orders(run, current.row.round, rows)
        for lost in self._house.reject_lost(accepted):
            if lost.round == current.row.round:
                current.received.discard(lost.device)
            yield _told(current, f"rejected the update of {lost.device}: {lost.detail}")

    def _closed(self, live: LiveRun, current: OpenRound, summary: Summary) -> Iterator[CloudEffect]:
        """A round has been folded into the next global model: the run goes on, or ends."""
        yield RoundClosed(summary)
        if summary.failure:
            text = f"run {summary.run} has failed in round {summary.round}: {summary.failure}"
            yield Note(logging.ERROR, text)
        if summary.whole:
            self._counters["whole_models"] += 1
            text = "the next model travels whole: the broadcast's coding does not serve it"
            yield Note(logging.INFO, f"run {summary.run}, round {summary.round}: {text}")
        if live.run.status != RUNNING:
            yield RunEnded(live.run.name, live.run.status)
        yield from self._house.closed(len(current.orders))

    def take_over(self, row: RunRow, now: float) -> list[CloudEffect]:
        """A run of the store, with its open round if it is running."""
        live, found = LiveRun(Run(row, self._store)), list[CloudEffect]()
        if live.run.status == RUNNING:
            try:
                _ = live.run.strategy  # before devices work for a round that could not be closed
                current = resume(live.run, self._store, now)
                if current is not None:
                    found += self._begin(live, current, now)
            except ConfigError as exc:
                found += self._fail(live, f"its strategy cannot be loaded: {exc}")
        self.live[live.run.name] = live
        return found

    def stop(self, live: LiveRun) -> list[CloudEffect]:
        """The operator has stopped a run: its open round ends without an aggregate."""
        void = self._void(live, "the run was stopped")
        live.end(Event.STOP)
        return [*void, RunEnded(live.run.name, live.run.status)]

    def _fail(self, live: LiveRun, why: str) -> list[CloudEffect]:
        """A run cannot go on, and the others do; one that was stopped meanwhile stays stopped."""
        void = self._void(live, "the run has failed")
        with suppress(ConfigError):
            self._store.set_status(live.run.name, FAILED)
        live.end(Event.FAILURE)
        text = f"run {live.run.name} has failed: {why}"
        return [*void, Note(logging.ERROR, text), RunEnded(live.run.name, live.run.status, why)]

    def _void(self, live: LiveRun, why: str) -> list[Send]:
        """Tell the devices that still work for a run's open round that it is void."""
        waiting = live.round.waiting if live.round is not None else []
        void = Cancel(live.run.name, 0, why)
        return [self._devices[name].peer.message(void) for name in waiting]


def _told(current: OpenRound, text: str) -> Note:
    return Note(logging.WARNING, f"run {current.row.run}, round {current.row.round}: {text}")
