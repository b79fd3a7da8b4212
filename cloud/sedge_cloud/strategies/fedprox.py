"""FedProx (Li et al. 2020, Algorithm 2): FedAvg whose devices are held back.

device     min over w of F_k(w) + mu/2 ||w - w_t||^2,   w_t the model it started from
cloud      as FedAvg
"""

from dataclasses import dataclass

import msgspec

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, Memory, State
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a proximal term in every device's loss. Raises ``ConfigError`` for a mu out of range."""

    mu: float = 0.01
    """The pull, 0 to 1e6, in place of ``training.prox``; the paper tries .001, .01, .1 and 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.mu <= 1e6:
            raise ConfigError("mu", self.mu, "a number from 0 to 1e6")

    @property
    def name(self) -> str:
        """``fedprox``."""
        return "fedprox"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """FedAvg's, and a training that is pulled towards the start."""
        held = msgspec.structs.replace(training, prox=self.mu)
        return Assignment(keep=state.layout.statistics, training=held)
