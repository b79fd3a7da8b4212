"""Who takes part in a round, and with which orders: drawn from those that can do the work, and planned.

A device that lacks a feature its order needs is left out. Where too few remain, the round is drawn again
from those that were not. All of it follows from who is online and what they have said of themselves, so
that a restart draws the same devices.
"""

from sedge_cloud.devices.registry import Fleet
from sedge_cloud.rounds.lifecycle import Draw
from sedge_cloud.rounds.plans import Planned, plan_round
from sedge_cloud.store.runs import Ledger, Run


def plan_cohort(
    run: Run, ledger: Ledger, number: int, task: str, fleet: Fleet, draw: Draw
) -> Planned:
    """The orders of a round, and who was left out on the way.

    There are fewer than ``min_updates`` of them when the round cannot open with the devices that are
    online, and none while fewer than ``min_available_devices`` are. Raises ``LocalError`` for an
    assignment that cannot be made or given.
    """
    able, left_out = fleet.able(run), dict[str, frozenset[str]]()
    if len(able) < run.config.min_available_devices:
        return Planned([], left_out)
    while True:
        drawn = draw(run, number, task, [name for name in able if name not in left_out])
        if not drawn:
            return Planned([], left_out)
        planned = plan_round(run, ledger, number, drawn, fleet.hello)
        # A draw may name devices of its own choice, the same ones again.
        repeated = planned.left_out.keys() <= left_out.keys()
        left_out |= planned.left_out
        if repeated or len(planned.orders) >= run.config.min_updates:
            return Planned(planned.orders, left_out)
