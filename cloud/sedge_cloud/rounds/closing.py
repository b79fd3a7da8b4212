"""Closes rounds: aggregates the updates into the next global model, then stores it in one transaction.

The model depends only on committed rows, so a retry after a crash produces the same bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from sedge_cloud.algorithms.outliers import filter_outliers
from sedge_cloud.algorithms.robust import distrusted
from sedge_cloud.rounds.accounts import RoundAnswers, account, read_answered
from sedge_cloud.rounds.lifecycle import (
    RUN,
    RUNNING,
    LiveRun,
    OpenRound,
    Trigger,
    counted_updates,
    counts_late_since,
    next_state,
)
from sedge_cloud.rounds.private import noised
from sedge_cloud.rounds.reach import TrafficMeter
from sedge_cloud.rounds.summary import personal_elements, summarise
from sedge_cloud.runs.run import Run, StrategyState
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.versions import needs_every_element
from sedge_cloud.store.records import ClosedRound, Summary
from sedge_cloud.store.rows import OrderRow, RoundRow, UpdateRow
from sedge_cloud.strategy import Update
from sedge_protocol.errors import ConfigError, StorageError, StrategyError, Unencodable
from sedge_protocol.wire.messages import TRAIN


def aggregate_and_close(
    live: LiveRun,
    run_store: RunStore,
    current: OpenRound,
    traffic: TrafficMeter,
    at: float,
    why: str,
) -> Summary:
    """Aggregate the updates into the next global model, and store the run's next state.

    ``at`` is the closing time on the wall clock; ``why`` says what closed the round. If there are too few
    updates, or the next model cannot be created, the run fails and keeps its state. If another process
    writes receipts in the meantime, the round is aggregated again to include their updates. A round that
    another leader has already closed is left unchanged. Raises ``StorageError`` if blobs or rows cannot be
    read or written, or if the run has been resumed; it does not fail, so the caller can try again.
    """
    store, run = run_store.store, live.run
    since = counts_late_since(run.config, current.row)
    while True:
        row = store.round(run.name, current.row.round)
        if row is None:
            raise StorageError(f"run {run.name}: round {current.row.round} was deleted")
        if not row.open:
            kept = already_closed(live, run_store, current)
            if kept is None:  # the run was resumed after this round
                raise StorageError(f"run {run.name}: round {row.round} is over")
            return kept
        given = read_answered(store, row, since)
        for name in [name for name in current.waiting if given.answers.get(name)]:
            current.decline(name, given.answers[name])
        updates = counted_updates(given.received, since is not None)
        summary, state, status = _conclude(run, run_store, row, current, given, updates)
        names = [device.device for device in summary.devices]
        moved, link = traffic.of_round(row.run, row.round, names)
        up, down = link
        over = msgspec.structs.replace(row, closed=at, up=up, down=down)
        coded, reached = msgspec.msgpack.encode(summary), msgspec.msgpack.encode(state)
        closed = ClosedRound(
            row.run, row.round, row.receipts, coded, reached, status, at, why, summary.failure, moved, up,
            down, account(over, given, summary, moved),
        )  # fmt: skip
        if store.close_round(closed, run.is_current):
            _move_on(live, state, status)
            return summary


def _conclude(
    run: Run,
    run_store: RunStore,
    row: RoundRow,
    current: OpenRound,
    given: RoundAnswers,
    updates: Sequence[UpdateRow],
) -> tuple[Summary, StrategyState, str]:
    """Aggregate ``updates``. Returns the round's summary, and the run's next state and status."""
    on_time = [update for update in updates if update.round == row.round]
    summary = summarise(run, run_store, row, list(current.orders.values()), on_time)
    state, shortened, replaced = run.state, dict[str, float](), False
    failure = _shortage(run, summary)
    if not failure:
        try:
            state, shortened, replaced = _aggregate(run, run_store, row, updates, current.orders)
        except (StrategyError, Unencodable, ConfigError) as exc:
            failure = f"the next global model cannot be created: {exc}"
    late = tuple(update.device for update in updates if update.late)
    summary = msgspec.structs.replace(
        summary,
        failure=failure,
        devices=tuple(
            msgspec.structs.replace(each, counted=shortened.get(each.device, 1.0))
            for each in summary.devices
        ),
        distrusted=distrusted(shortened),
        late=late,
        replaced=replaced,
        remarks=_remarks(run, run_store, current, summary) if given.is_first_return else (),
    )
    is_last = row.round >= run.config.total_rounds
    event = Trigger.FAILURE if failure else Trigger.LAST_ROUND if is_last else None
    return summary, state, RUNNING if event is None else next_state(RUN, run.status, event)


def _remarks(
    run: Run, run_store: RunStore, current: OpenRound, summary: Summary
) -> tuple[str, ...]:
    """Return the strategy's remarks that depend on the number of personal elements."""
    offered, orders = summary.personal, list(current.orders.values())
    # Elements that devices chose not to use are included.
    if any(order.read_work().choice for order in orders):
        offered = personal_elements(run, run_store, orders, dict.fromkeys(current.orders, True))
    with suppress(StrategyError, ConfigError):  # a remark must not fail the round
        remarks = run.remarks(sum(offered.values()))
        known = run.remarks() if remarks else ()
        return tuple(text for text in remarks if text not in known)
    return ()


def already_closed(live: LiveRun, run_store: RunStore, current: OpenRound) -> Summary | None:
    """If a round is already closed, move the run on and return the round's summary; otherwise None.

    Either another leader closed it, or its commit succeeded although the disk reported an error. A closed
    round must not be closed again, as its updates may have been garbage-collected.
    """
    run, store = live.run, run_store.store
    row = store.round(run.name, current.row.round)
    if row is None or row.open or row.summary is None:
        return None
    kept = next(other for other in store.runs() if other.run == run.name)
    _move_on(live, msgspec.msgpack.decode(kept.state, type=StrategyState), kept.status)
    return msgspec.msgpack.decode(row.summary, type=Summary)


def _move_on(live: LiveRun, state: StrategyState, status: str) -> None:
    live.run.state, live.round = state, None
    if status != RUNNING:
        live.end(next(event for event, end in RUN[RUNNING].items() if end == status))


def _aggregate(
    run: Run,
    run_store: RunStore,
    row: RoundRow,
    updates: Sequence[UpdateRow],
    orders: Mapping[str, OrderRow],
) -> tuple[StrategyState, dict[str, float], bool]:
    """Aggregate a round and store the resulting blobs.

    Returns the next state, the factors of shortened updates by device, and ``Summary.replaced``.
    """
    state, shortened, replaced = run.state, dict[str, float](), False
    if row.task == TRAIN:
        context = run_store.context(run)
        given = run_store.updates(run, row.round, context.theta, updates, orders)
        counted: Iterable[Update]
        if state.budget is not None:
            counted = [noised(run, context, given)]
        else:
            counted = filtered = filter_outliers(given, run.config.robust, given.measured())
            shortened = filtered.shortened
        applied = run.strategy.apply(context, counted)
        state = run_store.write_state(run, applied)
        if state.budget is not None:
            state = msgspec.structs.replace(state, budget=state.budget.after_round())
        replaced = needs_every_element(applied, run.config.broadcast)
    return msgspec.structs.replace(state, round=row.round), shortened, replaced


def _shortage(run: Run, summary: Summary) -> str:
    """Explain why a round has too few updates. Returns an empty string if it has enough."""
    good, needed = len(summary.devices), run.config.min_updates
    if good >= needed:
        return ""
    rejected = summary.cohort - good - summary.declined
    why = f"; most declined because {summary.why_declined}" if summary.declined else ""
    return (
        f"{good} of {summary.cohort} devices sent an update that counts, expected min_updates = "
        f"{needed}; {summary.declined} declined, {rejected} rejected{why}"
    )
