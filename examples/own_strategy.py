"""A strategy of your own: FedAvg whose server keeps momentum (FedAvgM, Hsu et al. 2019).

    sedge-emulate run examples/own_strategy.toml

The same class serves a real fleet: install the module where the coordinator runs and name it in run.toml.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sedge_cloud.algorithms.averaging import average
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Training


@dataclass(frozen=True)
class FedAvgM:
    """Its fields are its options."""

    momentum: float = 0.9
    name = "fedavgm"

    def init(self, layout: Layout, theta: Theta) -> State:
        """All that a run remembers is in the state, which survives restarts."""
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """What one device starts from and how it trains: here the global model, as the run says."""
        return Assignment(keep=state.layout.statistics)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """A step from theta (n,) to the next: the updates' mean, and what is left of the last step."""
        after = average(state, updates)
        step = after.theta - state.theta
        if "step" in state.arrays:
            step += self.momentum * state.arrays["step"]
        return replace(after, theta=state.theta + step, arrays={"step": step})
