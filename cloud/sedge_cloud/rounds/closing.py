"""How a round is folded: its updates become the next global model, in one transaction.

A pure function of committed rows, so that a crash before the transaction repeats it with the same bytes.
"""

from collections.abc import Sequence

import msgspec

from sedge_cloud.algorithms.outliers import vet
from sedge_cloud.rounds.lifecycle import (
    RUN,
    RUNNING,
    Event,
    LiveRun,
    OpenRound,
    counted_updates,
    next_state,
)
from sedge_cloud.rounds.summary import Summary, summarise
from sedge_cloud.store.rows import RoundRow, UpdateRow
from sedge_cloud.store.runs import Ledger, Run, RunState
from sedge_protocol.errors import ConfigError, LocalError
from sedge_protocol.wire.messages import TRAIN


def close_round(live: LiveRun, ledger: Ledger, current: OpenRound) -> Summary:
    """Fold the updates into the next global model and store the result; the run moves on.

    With too few updates, or a result that cannot be kept, the run has failed and its state stays.
    """
    run, row = live.run, current.row
    updates = counted_updates(run, ledger.store, row)
    on_time = [update for update in updates if update.round == row.round]
    summary = summarise(run, ledger, row, list(current.orders.values()), on_time)
    state, distrusted = run.state, dict[str, float]()
    failure = _shortage(run, summary)
    if not failure:
        try:
            state, distrusted = _fold(run, ledger, row, updates)
        except (LocalError, ConfigError) as exc:  # such as a change above what its coding holds
            failure = f"the next global model cannot be kept: {exc}"
    late = tuple(update.device for update in updates if update.late)
    summary = msgspec.structs.replace(summary, failure=failure, distrusted=distrusted, late=late)
    is_last = row.round >= run.config.rounds_in_all
    event = Event.FAILURE if failure else Event.LAST_ROUND if is_last else None
    status = RUNNING if event is None else next_state(RUN, run.status, event)
    coded, reached = msgspec.msgpack.encode(summary), msgspec.msgpack.encode(state)
    ledger.store.close_round(run.name, row.round, coded, reached, status)
    run.state, live.round = state, None
    if event is not None:
        live.end(event)
    return summary


def _fold(
    run: Run, ledger: Ledger, row: RoundRow, updates: Sequence[UpdateRow]
) -> tuple[RunState, dict[str, float]]:
    """The run's state after a round's updates, its blobs stored, and whose update did not count in full."""
    state, distrusted = run.state, dict[str, float]()
    if row.task == TRAIN:
        context = ledger.context(run)
        vetted = vet(ledger.updates(run, row.round, context.theta, updates), run.config.robust)
        distrusted = vetted.distrusted
        state = ledger.write_state(run, run.strategy.apply(context, vetted))
    return msgspec.structs.replace(state, round=row.round), distrusted


def _shortage(run: Run, summary: Summary) -> str:
    """Why a round has too few updates to go on; empty when it has enough."""
    good, needed = len(summary.devices), run.config.min_updates
    if good >= needed:
        return ""
    rejected = summary.cohort - good - summary.declined
    return (
        f"{good} of {summary.cohort} devices sent an update that counts, expected min_updates = "
        f"{needed}; {summary.declined} declined, {rejected} were rejected"
    )
