"""FedPer and LG-FedAvg: one part of the model stays on the device, the other is averaged.

FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2) keeps the head, the paper's personalisation layers.
LG-FedAvg (Liang et al. 2020, Algorithm 1) is its mirror image: it keeps the body, the paper's local
representation. What is kept is never sent; a device that has never trained has the run's first values.
"""

from dataclasses import dataclass

from sedge_cloud.algorithms.layers import body, head
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, Memory, State
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.messages import Training


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of the body; every device has a head of its own."""

    head: tuple[str, ...] = ()
    """Names of modules or tensors; none: the last module, the classifier of the usual network."""

    @property
    def name(self) -> str:
        """``fedper``."""
        return "fedper"

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as the first model. Raises ``ConfigError`` for a name in ``head``."""
        head(layout, self.head)
        return super().init(layout, theta)

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The global body and the device's own head."""
        return Assignment(keep=(*state.layout.statistics, *head(state.layout, self.head)))


@dataclass(frozen=True)
class LGFedAvg(FedPer):
    """FedAvg of the head; every device has a body of its own."""

    @property
    def name(self) -> str:
        """``lg_fedavg``."""
        return "lg_fedavg"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The device's own body and the global head."""
        return Assignment(keep=(*state.layout.statistics, *body(state.layout, self.head)))
