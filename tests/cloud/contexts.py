"""What the engine gives a strategy, and what it makes of the answer, without an engine."""

from dataclasses import replace
from typing import Any

from sedge_cloud.strategy import Context, State
from sedge_protocol.layout import Layout, Theta


def context_of(layout: Layout, theta: Theta, **values: Any) -> Context:
    """The context of a run that began with theta (n,)."""
    return Context(layout, theta, values.pop("initial", theta), **values)


def follow(context: Context, state: State) -> Context:
    """The context after a round of training that ended with ``state``."""
    return replace(
        context,
        theta=state.theta,
        arrays=state.arrays,
        groups=state.groups,
        round=context.round + 1,
    )
