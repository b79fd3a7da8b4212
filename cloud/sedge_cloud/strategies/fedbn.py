"""FedBN (Li et al. 2021, Algorithm 1): normalisation stays on the device, everything else is averaged.

The paper's finding is about BatchNorm: running statistics, scale and shift. A model without BatchNorm
has nothing to keep, and FedBN is then FedAvg; ``norms = "all"`` keeps the scale and shift of GroupNorm and
LayerNorm too, which the paper does not study.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from sedge_cloud.algorithms.layers import norms
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, Memory, State
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training

Norms = Literal["batch", "all"]


@dataclass(frozen=True)
class FedBN(FedAvg):
    """FedAvg of all but normalisation. Raises ``ConfigError`` for a kind of norms it does not know."""

    norms: Norms = "batch"
    """``batch``: BatchNorm as in the paper; ``all``: modules whose parameters are vectors only, too."""

    def __post_init__(self) -> None:
        if self.norms not in get_args(Norms):
            raise ConfigError("norms", self.norms, f"one of {get_args(Norms)}")

    @property
    def name(self) -> str:
        """``fedbn``."""
        return "fedbn"

    def plan(self, state: State, memory: Memory, training: Training) -> Assignment:
        """The global model and the device's own normalisation."""
        layout = state.layout
        every = (*layout.statistics, *norms(layout))
        return Assignment(keep=layout.normalisation if self.norms == "batch" else every)
