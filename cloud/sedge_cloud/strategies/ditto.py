"""Ditto (Li et al. 2021, Algorithm 1): a second model on the device, tied to the first.

    device     w_k   from w_t, by the run's training; sent
               v_k   from where it ended last time, min over v of F_k(v) + lambda/2 ||v - w_t||^2; stays
    cloud      FedAvg of the w_k

v_k is what the device evaluates and predicts with, and never leaves it. The device trains twice.
"""

from dataclasses import dataclass

import msgspec

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, Memory, State
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Personal, Training


@dataclass(frozen=True)
class Ditto(FedAvg):
    """FedAvg, and beside it each device's own model. Raises ``ConfigError`` for a value out of range."""

    lam: float = 0.1
    """The paper's lambda, 0 to 1e6: how strongly a device's own model is pulled to the global one."""
    personal_epochs: int = 0
    """Epochs of the own model, up to 1000; 0: as many as the run's ``local_epochs``."""

    def __post_init__(self) -> None:
        if not 0 <= self.lam <= 1e6:
            raise ConfigError("lam", self.lam, "a number from 0 to 1e6")
        if not 0 <= self.personal_epochs <= 1000:
            raise ConfigError("personal_epochs", self.personal_epochs, "a number from 0 to 1000")

    @property
    def name(self) -> str:
        """``ditto``."""
        return "ditto"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """FedAvg's, and the training of the device's own model."""
        epochs = self.personal_epochs or training.local_epochs
        tied = msgspec.structs.replace(training, prox=self.lam, local_epochs=epochs)
        return Assignment(keep=state.layout.statistics, personal=Personal(tied))
