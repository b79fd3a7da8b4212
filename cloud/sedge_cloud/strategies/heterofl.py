"""HeteroFL: a small device trains the first channels of every layer of the fleet's one model.

Diao et al. 2021. A device of rate rho (the share of channels that it lacks) starts from the prefix

    theta_i = theta_g[: c - floor(rho c)] of every axis of c channels
    theta_g'[k] = mean of theta_i[k] over the devices that have the element k, else theta_g[k]

which is the same vector for all devices of a width: one transfer for them all. Their scaler (activations
times 1 / (1 - rho) in training) and masked loss belong to the device's program and are left out; with a
normalisation layer the scaler changes nothing. BatchNorm's statistics stay on the device.
n = parameters, m = those of a width.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from sedge_cloud.algorithms.submodels import (
    Channels,
    Places,
    count_average,
    form_of,
    places_of,
    prefix,
)
from sedge_cloud.algorithms.width_policy import Sized
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Training

Weighting = Literal["uniform", "examples"]


@dataclass(frozen=True)
class HeteroFL(Sized):
    """The options of HeteroFL: who gets which width (``Sized``), and who counts how much.

    Raises ``ConfigError`` for a value out of range.
    """

    coordinate_rules: ClassVar[bool] = False

    weighting: Weighting = "uniform"
    """Devices count alike, as in the paper, or by ``num_examples``; with one width that is FedAvg."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting not in get_args(Weighting):
            raise ConfigError("weighting", self.weighting, f"one of {get_args(Weighting)}")

    @property
    def name(self) -> str:
        """``heterofl``."""
        return "heterofl"

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as the first global model."""
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The device's sub-model of the global one, and its own statistics."""
        width, arrays = self.width_of(state, memory)
        start = state.theta[self.places(state, width)] if width else None
        return Assignment(None, state.layout.statistics, arrays=arrays, start=start, width=width)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """Each element as the mean of the models that have it."""

        def weight(update: Update) -> float:
            return update.num_examples if self.weighting == "examples" else 1

        return count_average(state, updates, lambda width: self.places(state, width), weight)

    def places(self, state: State, width: int) -> Places:
        """Where in the global model the elements (m,) of a width lie in this round."""
        return places_of(form_of(state, 0), form_of(state, width), self.channels(state, width))

    def channels(self, state: State, width: int) -> Channels:
        """The channels of a width in this round: the first ones of every axis."""
        return prefix(form_of(state, width))
