"""What the engine gives a strategy, and what it makes of the answer, without an engine; layouts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sedge_cloud.strategy import Context, State
from sedge_protocol.layout import Layout, Role, Theta


def a_layout(shapes: Mapping[str, tuple[int, ...]]) -> Layout:
    """A layout of these tensors; those that BatchNorm counts are statistics."""
    counted = ("running_mean", "running_var", "num_batches_tracked")
    return Layout.of(
        (name, shape, Role.STATISTIC if name.endswith(counted) else Role.PARAMETER)
        for name, shape in shapes.items()
    )


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
