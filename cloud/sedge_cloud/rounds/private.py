"""Rounds with [privacy]: merges a round's updates into one clipped and noised update for the strategy."""

import hashlib

from sedge_cloud.algorithms.noise import Noise, private_update
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.updates import RoundUpdates
from sedge_cloud.strategy import ClientModel, Context, Update
from sedge_protocol.errors import StorageError


def noised(run: Run, context: Context, given: RoundUpdates) -> Update:
    """Return the noised mean of a round's updates. Raises ``StorageError`` if the run has no budget.

    Elements that devices keep to themselves or do not train stay unchanged, and need no noise.
    """
    config, budget = run.config.privacy, run.state.budget
    if config is None or budget is None:
        raise StorageError(
            f"run {run.name}: found only one of [privacy] and its budget, expected both"
        )
    covered = hashlib.sha256()
    for row, _ in given.accepted:
        covered.update(row.blob)
    key = b"noise" + budget.secret + run.state.round.to_bytes(8, "little") + covered.digest()
    kept = run.strategy.plan(context, ClientModel()).work.keep
    names = {*kept, *run.config.training.freeze, *context.layout.statistics}
    still = [context.layout.by_name[name].slice for name in sorted(names)]
    noise = Noise(config.clip, budget.noise * config.clip, budget.expected, key)
    return private_update(given, context.theta, noise, still)


def exhausted(run: Run) -> str:
    """Return the reason why no further training round is possible, or "" if one is."""
    config, budget = run.config.privacy, run.state.budget
    if config is None or budget is None or budget.left > 0:
        return ""
    return (
        f"its privacy budget of epsilon {config.epsilon:g} is spent after "
        f"{budget.spent} training rounds"
    )
