"""FedProx (Li et al. 2020, Algorithm 2): FedAvg with a proximal term on the devices.

device     min over w of F_k(w) + mu/2 ||w - w_t||^2,   w_t the model it starts from
cloud      as FedAvg
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.wire.work import Work


class FedProx(FedAvg, frozen=True):
    """FedAvg with a proximal term in every device's loss."""

    name: ClassVar[str] = "fedprox"

    mu: Annotated[float, Meta(ge=0, le=1e6)] = 0.01
    """Weight of the proximal term, instead of ``training.prox``; the paper tries 0.001, 0.01, 0.1 and
    1."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return FedAvg's assignment, with training pulled towards the start."""
        pulled = msgspec.structs.replace(context.training, prox=self.mu)
        return Assignment(work=Work(training=pulled))
