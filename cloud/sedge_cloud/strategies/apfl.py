"""APFL (Deng et al. 2020, Algorithm 1): the device's model is a mixture of its own and the global one.

    device     w     from w_t, one step on its own gradient; sent
               v     from where it ended last time, one step on the gradient of
                     F_k(alpha v + (1 - alpha) w);   stays
               alpha one step on <v - w, that gradient>, where it is adaptive
    cloud      FedAvg of the w

The mixture is what the device evaluates and predicts with. v starts as the global model; alpha is told to
the cloud with each update and given back with the next order, so the cloud remembers it.
"""

from dataclasses import dataclass

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, Memory, State
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Personal, Training

# A mixture of 1 is no mixture any more: it would never move again, and an order means Ditto by it.
LARGEST = 0.999


@dataclass(frozen=True)
class APFL(FedAvg):
    """FedAvg, and beside it each device's mixture. Raises ``ConfigError`` for an alpha out of range."""

    alpha: float = 0.5
    """The own model's share in the mixture, 0 to .999; of a device's first round where it is adaptive."""
    adaptive: bool = True
    """Whether each device moves its alpha by gradient steps (the paper's equation 11)."""

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= LARGEST:
            raise ConfigError("alpha", self.alpha, f"a number from 0 to {LARGEST}")

    @property
    def name(self) -> str:
        """``apfl``."""
        return "apfl"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """FedAvg's, and the mixture where the device's last round left it."""
        last = memory.mix if self.adaptive else None
        alpha = self.alpha if last is None else min(last, LARGEST)
        personal = Personal(training, alpha, self.adaptive)
        return Assignment(keep=state.layout.statistics, personal=personal)
