"""The two ends between which personalisation lies: one model for all, and one model each.

FedAvg (McMahan et al. 2017, Algorithm 1) with BatchNorm statistics kept on the device (FedBN's
finding for statistics; with none in the layout it is the paper's algorithm). LocalOnly never shares
anything; the literature calls it Local, Separate or Standalone. n = parameters.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from sedge_cloud.algorithms.averaging import average
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Training


@dataclass(frozen=True)
class FedAvg:
    """Every device starts from the global model; the next one is their mean by ``num_examples``.

    The methods that change no more than what a device does are FedAvg with another plan.
    """

    coordinate_rules: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """``fedavg``."""
        return "fedavg"

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as the first global model."""
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The global model as it is, and the device's own statistics."""
        return Assignment(keep=state.layout.statistics)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The weighted mean of the trained models."""
        return average(state, updates)


@dataclass(frozen=True)
class LocalOnly:
    """Every device trains alone from the run's first model and sends metrics only."""

    @property
    def name(self) -> str:
        """``local_only``."""
        return "local_only"

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as every device's first model."""
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The whole of the device's own last model, and no upload."""
        return Assignment(keep=tuple(state.layout.by_name), upload=False)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The same model, one round later."""
        return replace(state, round=state.round + 1)
