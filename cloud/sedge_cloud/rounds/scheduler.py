"""Drives the state machines in lifecycle.py: opens each run's rounds, records answers, closes the rounds.

cohort.py draws the devices, plans.py plans their orders, and closing.py aggregates their updates.
"""

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress

from sedge_cloud.clocks import Wall
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.events import CloudEffect, RoundClosed, RoundOpened, RunEnded
from sedge_cloud.hints import (
    WHY_OVER,
    Answered,
    Begun,
    Declined,
    DeviceOnline,
    DiskFailed,
    Hint,
    Left,
    LeftOut,
    Ordered,
    Over,
    ToLeader,
)
from sedge_cloud.rounds.closing import aggregate_and_close, already_closed
from sedge_cloud.rounds.cohort import Draw, next_round, plan_cohort
from sedge_cloud.rounds.housekeeping import Housekeeping
from sedge_cloud.rounds.lifecycle import (
    FINISHED,
    ROUND,
    RUN,
    RUNNING,
    STOPPED,
    LiveRun,
    OpenRound,
    Phase,
    Trigger,
    counted_updates,
    counts_late_since,
    new_round,
    next_state,
    resume,
)
from sedge_cloud.rounds.plans import save_terms
from sedge_cloud.rounds.private import exhausted
from sedge_cloud.rounds.reach import Reach, TrafficMeter
from sedge_cloud.rounds.resting import MAX_ROUNDS, Resting
from sedge_cloud.rounds.rollouts import advance
from sedge_cloud.rounds.serving import resume_serving, serving_run, with_newcomer
from sedge_cloud.runs.asked import read_answers
from sedge_cloud.runs.named_blobs import Cut
from sedge_cloud.runs.orders import OrderBuilder
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import RunRow
from sedge_protocol.errors import ConfigError, StorageError, StrategyError
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.messages import TRAIN, Order


class Scheduler:
    """Schedules all runs of a fleet and their rounds. ``draw`` selects the devices of a round.

    ``serving`` is the finished run whose model newcomers get, and ``wall`` is the clock used in rows.
    """

    def __init__(
        self,
        run_store: RunStore,
        devices: Reach,
        cut: Cut,
        housekeeping: Housekeeping,
        counters: Counter[str],
        traffic: TrafficMeter,
        draw: Draw,
        wall: Wall,
    ) -> None:
        self.live: dict[str, LiveRun] = {}
        self.serving: RunRow | None = None
        self._run_store, self._store = run_store, run_store.store
        self._devices = devices
        self._order_builder = OrderBuilder(devices.hello, cut, run_store.store.public)
        self._housekeeping = housekeeping
        self._counters, self._traffic = counters, traffic
        self._draw, self._wall = draw, wall
        self._has_declines = False  # a device has declined since the last poll
        self._back_at = math.inf  # until then, devices may return from an outage

    def open_round(self, run: str) -> OpenRound | None:
        """Return the open round of a run, or None."""
        live = self.live.get(run)
        return None if live is None else live.round

    def open_rounds(self) -> list[OpenRound]:
        """Return all open rounds."""
        return [live.round for live in self.live.values() if live.round is not None]

    def running(self) -> list[Run]:
        """Return all runs that have not ended."""
        return [live.run for live in self.live.values() if live.run.status == RUNNING]

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        if self._has_declines:
            return -math.inf
        due = [live.timer() for live in self.live.values()]
        if self._devices.returning and self._back_at < math.inf:  # the first draw waits for them
            due.append(self._back_at)
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> list[CloudEffect | Hint]:
        """Do everything that is due. After a disk error a run is retried later; the other runs continue."""
        effects: list[CloudEffect | Hint] = []
        self._has_declines = False
        for live in list(self.live.values()):
            if now < live.retry_at:
                continue
            try:
                for effect in self._advance(live, now):  # effects from before an error are kept
                    effects.append(effect)
            except StorageError as exc:
                live.retry_at = now + DISK_RETRY_S
                effects.append(self._housekeeping.storage_failed(exc, live.run.name))
        return effects

    def _advance(self, live: LiveRun, now: float) -> Iterator[CloudEffect | Hint]:
        """Advance a run as far as possible: collect and close its round, then open the next one."""
        disk_failed, live.retry_at = live.retry_at > 0, 0.0
        if live.round is not None:
            yield from self._collect(live, live.round, now, disk_failed)
        if live.round is None and live.run.status == RUNNING:
            yield from self._open(live, now)

    def _collect(
        self, live: LiveRun, current: OpenRound, now: float, disk_failed: bool
    ) -> Iterator[CloudEffect | Hint]:
        config = live.run.config
        if disk_failed and current.due(config, now) is not None:
            summary = already_closed(live, self._run_store, current)
            if summary is not None:
                yield from self._closed(live, current, summary)
                return
            yield from self._reject_lost(live.run, current)
        while (event := current.due(config, now)) is not None:
            if next_state(ROUND, current.phase, event) == Phase.CLOSED:
                at, why = self._wall(now), current.closed_by(event)
                given = live, self._run_store, current, self._traffic, at, why
                summary = aggregate_and_close(*given)
                yield from self._closed(live, current, summary)
                return
            current.enter(event, config, now)
            if event is Trigger.SHORTAGE:
                self._counters["extended"] += 1
                yield _warning(
                    current, f"fewer than {config.min_updates} updates at the deadline; extended"
                )
                yield _ordered(current)

    def _open(self, live: LiveRun, now: float) -> Iterator[CloudEffect | Hint]:
        run, devices = live.run, self._devices
        following = next_round(run)
        enough = devices.present >= run.config.min_available_devices
        if following is None or not enough or live.drawn_at == devices.changes:
            return
        if devices.returning and now < self._back_at:
            return
        number, task = following
        if task == TRAIN and (why := exhausted(run)):
            yield from self._end(live, Trigger.BUDGET, why, now)
            self.serving = serving_run(self._store.runs())
            return
        # The round may already be open in the store: its commit may have succeeded although the disk
        # reported an error.
        current, orders = resume(run, self._store, now, self._wall), dict[str, Order]()
        if current is None:
            yield from advance(run, self._store, self._wall(now))
            try:
                planned = plan_cohort(
                    run, self._run_store, number, task, devices, self._draw,
                    live.resting.devices(number) if task == TRAIN else (),
                )  # fmt: skip
                for name, features in planned.left_out.items():
                    if live.refused.get(name) != features:  # so it is not reported at every draw
                        live.refused[name] = features
                        yield LeftOut(run.name, name, tuple(sorted(features)))
                if len(planned.orders) < run.config.min_updates:
                    live.drawn_at = devices.changes
                    return
                current = new_round(run, number, task, planned.orders, now, self._wall)
                orders = self._order_builder.all(run, current)
            except StrategyError as exc:  # retrying would not help
                yield from self._fail(live, f"round {number} cannot be planned: {exc}", now)
                return
            self._store.open_round(current.row, planned.orders, run.is_current)
        yield from self._begin(live, current)
        yield RoundOpened(run.name, number, task, tuple(current.orders))
        yield _ordered(current, made=orders, is_new=True)

    def _begin(self, live: LiveRun, current: OpenRound) -> list[Note]:
        """Make this round the run's open round, and look up which of its devices are online or waiting."""
        live.round, current.back_at = current, self._back_at
        return self._refresh_presence(current)

    def refresh(self, current: OpenRound) -> list[Note]:
        """Read the answers that other processes have received for a round, and which devices are online."""
        row = current.row
        read_answers(current, self._store.receipts(row.run, row.round))
        for name, reason in self._store.answers(row.run, row.round):
            if reason and current.waiting_for(name):
                current.decline(name, reason)
        return self._refresh_presence(current)

    def _refresh_presence(self, current: OpenRound) -> list[Note]:
        """Look up which of a round's devices are online or waiting; decline on behalf of revoked ones."""
        revoked = current.look(self._devices.presence)
        return [self._decline(current, name, "revoked") for name in revoked]

    def hear(self, hint: ToLeader, now: float) -> list[CloudEffect | Hint]:
        """React to an ingest's hint."""
        match hint:
            case DeviceOnline():
                return self._arrived(hint, now)
            case Left():
                for current in self.open_rounds():
                    current.present.discard(hint.device)
            case Answered() | Declined():
                asked = self.open_round(hint.run)
                if asked is None or asked.row.round != hint.round:
                    return []
                if isinstance(hint, Answered):
                    asked.answered(hint.device, hint.counts)
                else:  # it may answer an order that poll() has just sent
                    asked.decline(hint.device, hint.reason)
                    self._has_declines = True
            case DiskFailed():
                self._housekeeping.schedule()
        return []

    def _arrived(self, hint: DeviceOnline, now: float) -> list[CloudEffect | Hint]:
        """Handle a device's hello: it may now be able to carry out an order that it declined before."""
        waits = self._devices.presence(hint.device).waits
        for live in self.live.values():
            if hint.renewed:
                live.resting.renew(hint.device)
            if live.round is not None:
                live.round.arrive(hint.device, waits)
        return self._add_newcomer(hint.device, now)

    def _add_newcomer(self, device: str, now: float) -> list[CloudEffect | Hint]:
        """Order a device that missed a finished run's end to train from its last model. Returns hints."""
        live = None if self.serving is None else self.live.get(self.serving.run)
        if live is None:
            return []
        run, devices, effects = live.run, self._devices, list[CloudEffect | Hint]()
        try:
            given = run, self._run_store, live.round, device, devices, now, self._wall
            current = with_newcomer(*given)
            if current is not None:
                live.round = current
                current.arrive(device, waits=False)
                effects.append(_ordered(current, (device,)))
        except StorageError as exc:
            effects.append(self._housekeeping.storage_failed(exc, run.name))
        except (StrategyError, ConfigError) as exc:
            text = f"run {run.name} cannot serve {device}: {exc}"
            effects.append(Note(logging.WARNING, text))
        return effects

    def connected(self, back_at: float) -> None:
        """Handle a new connection: devices may return from an outage until ``back_at``."""
        self._back_at = back_at
        for current in self.open_rounds():
            current.back_at = back_at

    def disconnected(self) -> None:
        """Handle the loss of the connection: every device is offline until its next hello."""
        self.connected(math.inf)
        for current in self.open_rounds():
            current.present.clear()

    def _decline(self, current: OpenRound, device: str, reason: str) -> Note:
        """Decline an order on its device's behalf, so that the round does not wait for it."""
        row = current.row
        self._store.decline(row.run, row.round, device, reason)
        current.decline(device, reason)
        self._counters["declined"] += 1
        return _warning(current, f"{device} declines: {reason!r}")

    def _reject_lost(self, run: Run, current: OpenRound) -> Iterator[Note]:
        """Reject the round's updates that the disk has lost."""
        since = counts_late_since(run.config, current.row)
        received = self._store.received(run.name, current.row.round, since)
        rows = counted_updates(received, since is not None)
        accepted = self._run_store.with_orders(run, current.row.round, rows)
        for lost in self._housekeeping.reject_lost(accepted):
            if lost.round == current.row.round:
                current.received.discard(lost.device)
            yield _warning(current, f"rejected the update of {lost.device}: {lost.detail}")

    def _closed(
        self, live: LiveRun, current: OpenRound, summary: Summary
    ) -> Iterator[CloudEffect | Hint]:
        """Report a round that was aggregated into the next global model; continue or end the run."""
        trained = current.received if current.row.task == TRAIN else ()
        live.resting.closed(current.orders.values(), trained)
        yield RoundClosed(summary)
        yield Over(summary.run)
        if summary.failure:
            text = f"run {summary.run} has failed in round {summary.round}: {summary.failure}"
            yield Note(logging.ERROR, text)
        if summary.replaced:
            self._counters["replaced_models"] += 1
            text = "the strategy replaces the model, so every element of the next one is sent"
            yield Note(logging.INFO, f"run {summary.run}, round {summary.round}: {text}")
        for text in summary.remarks:
            yield Note(logging.WARNING, f"run {summary.run}, round {summary.round}: {text}")
        if live.run.status != RUNNING:
            yield RunEnded(live.run.name, live.run.status)
            self.serving = serving_run(self._store.runs())
        yield from self._housekeeping.round_closed(len(current.orders))

    def forget(self, run: str) -> list[CloudEffect | Hint]:
        """Drop a run that the operator has deleted."""
        live = self.live.pop(run, None)
        if live is None:
            return []
        ended = [RunEnded(run, "deleted")] if live.run.status == RUNNING else []
        return [*self._void(live), *ended]

    def add_run(self, row: RunRow, now: float) -> list[CloudEffect | Hint]:
        """Load a run from the store, or reload a resumed one, with its open round if it is running."""
        run = Run(row, self._store)
        declines = self._store.declines(run.name, run.state.round + 1 - MAX_ROUNDS, run.state.round)
        live, effects = LiveRun(run, Resting.of(declines)), list[CloudEffect | Hint]()
        if live.run.status == RUNNING:
            try:
                # Load both now, as devices would work for nothing if either turned out to be missing later.
                _ = live.run.strategy, live.run.patch_values
                current = resume(live.run, self._store, now, self._wall)
                if current is not None:
                    effects += [*self._begin(live, current), _ordered(current)]
                save_terms(live.run, self._run_store, row.terms)
                effects.append(Begun(run.name))
            except (ConfigError, StrategyError) as exc:
                effects += self._fail(live, f"its strategy cannot be loaded: {exc}", now)
        elif live.run.status == FINISHED:
            current = resume_serving(live.run, self._run_store, now, self._wall)
            if current is not None:
                effects += [*self._begin(live, current), _ordered(current)]
        before, self.live[run.name] = self.live.get(run.name), live
        if before is not None and live.round is None:
            effects += self._void(before, live.run.status)
        return effects

    def stop(self, live: LiveRun) -> list[CloudEffect | Hint]:
        """End a run that the operator has stopped; its open round is not aggregated."""
        void = self._void(live, STOPPED)
        live.end(Trigger.STOP)
        return [*void, RunEnded(live.run.name, live.run.status)]

    def _fail(self, live: LiveRun, why: str, now: float) -> list[CloudEffect | Hint]:
        """Fail a run that cannot continue; if it was stopped in the meantime, it stays stopped."""
        if live.run.status != RUNNING:  # finished: only a newcomer's order could not be sent
            return [Note(logging.ERROR, f"run {live.run.name}: {why}")]
        text = f"run {live.run.name} has failed: {why}"
        return [Note(logging.ERROR, text), *self._end(live, Trigger.FAILURE, why, now)]

    def _end(self, live: LiveRun, event: Trigger, why: str, now: float) -> list[CloudEffect | Hint]:
        """End a running run. An open round becomes void."""
        status = RUN[RUNNING][event]
        void = self._void(live, status)
        with suppress(ConfigError):
            self._store.set_status(live.run.name, status, why, self._wall(now))
        live.end(event)
        return [*void, RunEnded(live.run.name, live.run.status, why)]

    def _void(self, live: LiveRun, status: str = "") -> list[Over]:
        """Return a hint that ends the open round of a run that now has this status, if there is one."""
        return [Over(live.run.name, WHY_OVER.get(status, ""))] if live.round is not None else []


def _ordered(
    current: OpenRound,
    to: tuple[str, ...] | None = None,
    made: Mapping[str, Order] | None = None,
    is_new: bool = False,
) -> Ordered:
    """Return a hint to send a round's orders to these devices, or to all that still owe an answer."""
    names = tuple(current.waiting) if to is None else to
    settled = frozenset(current.settled)
    return Ordered(current.row, current.orders, settled, names, made or {}, is_new)


def _warning(current: OpenRound, text: str) -> Note:
    return Note(logging.WARNING, f"run {current.row.run}, round {current.row.round}: {text}")
