"""Serves a finished run's last model to devices that took no part in the last round.

    a hello from such a device -> an order for the round after the last one, to train from the final model
    its update                 -> the device's client model; nothing is aggregated

A device that has lost its kept data says so in its hello, and is served like one that took no part; if it
loses the data again, its ingest sends the same order (open_orders.py).
That round stays open, with one order for each device that asked. All other devices have the final model, or
their own model trained from it. If several runs have finished, the newest serves. None serves while a run
is running: newcomers take part in that run, and a device predicts with the model that it trained last.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from sedge_cloud.clocks import Wall
from sedge_cloud.rounds.lifecycle import FINISHED, OpenRound, Phase, new_round, resume
from sedge_cloud.rounds.plans import plan_round
from sedge_cloud.rounds.reach import Reach
from sedge_cloud.runs.capabilities import terms_of
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.terms import keeps_model
from sedge_cloud.store.rows import RunRow
from sedge_protocol.wire.messages import TRAIN


def serving_run(rows: Sequence[RunRow]) -> RunRow | None:
    """Return the most recently finished run in ``rows`` (oldest first); None while a run is running."""
    if not all(row.has_ended for row in rows):
        return None
    return next((row for row in reversed(rows) if row.status == FINISHED), None)


def resume_serving(run: Run, run_store: RunStore, now: float, wall: Wall) -> OpenRound | None:
    """Return the round after the last one if it already has an order; otherwise None."""
    current = resume(run, run_store.store, now, wall)
    return None if current is None else _serving(current)


def with_newcomer(
    run: Run,
    run_store: RunStore,
    current: OpenRound | None,
    device: str,
    fleet: Reach,
    now: float,
    wall: Wall,
) -> OpenRound | None:
    """Store an order for this device in the round after the last one. Returns that round.

    Returns None if the device needs no order or cannot carry it out. Raises ``StrategyError`` for an
    unusable assignment.
    """
    store, last = run_store.store, run.state.round
    # The device's ingest is already sending the order.
    if current is not None and device in current.orders:
        return None
    has_model = store.took_part(run.name, device, last) and keeps_model(
        fleet.hello(device), run.name
    )
    if has_model or not fleet.able(terms_of(run), [device]):
        return None
    number = last + 1
    orders = plan_round(run, run_store, number, [device], fleet.hello).orders
    if not orders:
        return None
    opened = _serving(new_round(run, number, TRAIN, orders, now, wall))
    store.add_newcomer_orders(opened.row, orders)
    if current is None:
        return opened
    return replace(current, orders={**current.orders, **opened.orders})


def _serving(current: OpenRound) -> OpenRound:
    row = msgspec.structs.replace(current.row, phase=Phase.SERVING, ends_at=0, deadline=0, needed=0)
    return replace(current, row=row, phase=Phase.SERVING, deadline=math.inf)
