"""Draws the devices of a round from those that can do the run's work, and plans their orders.

A device that lacks a feature that its order needs is left out; if too few remain, the round is drawn again
from the others. Resting devices (resting.py) are drawn only if there are too few others. Apart from them,
the result depends only on the store, on which devices are online, and on their hellos, so it is the same
after a restart.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np

from sedge_cloud.algorithms.noise import drawn as drawn_by_coin
from sedge_cloud.rounds.plans import Planned, plan_round
from sedge_cloud.rounds.reach import Reach
from sedge_cloud.runs.capabilities import terms_of
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_protocol.wire.messages import EVALUATE, TRAIN

# Maps (run, round number, task, ids of the capable devices) to the ids of the cohort.
Draw: TypeAlias = Callable[[Run, int, str, Sequence[str]], list[str]]


def next_round(run: Run) -> tuple[int, str] | None:
    """Return the number and task of the run's next round, or None if the run is over."""
    config, number = run.config, run.state.round + 1
    if number > config.total_rounds:
        return None
    trains = config.training_rounds(number) > config.training_rounds(number - 1)
    return number, TRAIN if trains else EVALUATE


def draw_cohort(run: Run, number: int, task: str, able: Sequence[str]) -> list[str]:
    """Draw a round's devices from the capable ones. The same input always gives the same draw.

    In a private run, each device trains or not depending on its own secret coin; the accountant relies on
    this.
    """
    config = run.config
    budget = None if config.privacy is None else run.state.budget
    if budget is not None and task != EVALUATE:
        return drawn_by_coin(budget.secret, config.fraction_train, number, able)
    if task == EVALUATE:
        size = max(config.min_updates, round(config.fraction_evaluate * len(able)))
    else:
        size = max(config.min_train_devices, round(config.fraction_train * len(able)))
    rng = np.random.default_rng([config.seed, number])
    drawn = rng.choice(len(able), min(size, len(able)), replace=False)
    in_order = sorted(able)
    return [in_order[i] for i in sorted(drawn)]


def plan_cohort(
    run: Run,
    run_store: RunStore,
    number: int,
    task: str,
    fleet: Reach,
    draw: Draw,
    resting: Collection[str],
) -> Planned:
    """Draw and plan a round, using ``resting`` devices only as a last resort.

    Returns the orders, and the devices left out with the features they lack.

    With fewer than ``min_updates`` orders the round cannot open yet. If fewer than
    ``min_available_devices`` are online, there are no orders. Raises ``StrategyError`` for an unusable
    assignment.
    """
    paused = run_store.store.paused()
    able = [name for name in fleet.able(terms_of(run)) if name not in paused]
    if len(able) < run.config.min_available_devices:
        return Planned([], {})

    def plan(names: Sequence[str]) -> Planned:
        return _plan(run, run_store, number, task, fleet, draw, names)

    planned = plan([name for name in able if name not in resting])
    if len(planned.orders) >= run.config.min_updates or not resting:
        return planned
    return plan(able)


def _plan(
    run: Run,
    run_store: RunStore,
    number: int,
    task: str,
    fleet: Reach,
    draw: Draw,
    able: Sequence[str],
) -> Planned:
    left_out = dict[str, frozenset[str]]()
    # The privacy accountant assumes that draws are made from enough devices to select at least one
    # (privacy.require_found).
    fewest = 0 if run.config.privacy is None else run.config.min_available_devices
    while True:
        names = [name for name in able if name not in left_out]
        if len(names) < fewest:
            return Planned([], left_out)
        drawn = draw(run, number, task, names)
        if not drawn:
            return Planned([], left_out)
        planned = plan_round(run, run_store, number, drawn, fleet.hello)
        # A user-defined draw may ignore ``able`` and return the same devices again, so make sure that the
        # loop ends.
        repeated = planned.left_out.keys() <= left_out.keys()
        left_out |= planned.left_out
        if repeated or len(planned.orders) >= run.config.min_updates:
            return Planned(planned.orders, left_out)
