"""Ditto (Li et al. 2021, Algorithm 1): each device also trains a second model, tied to the global one.

    device     w_k   from w_t, by the run's training; sent
               v_k   from its last value, min over v of F_k(v) + lambda/2 ||v - w_t||^2
    cloud      FedAvg of the w_k

The device trains twice. It evaluates and predicts with v_k, which never leaves it.
"""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.wire.work import OwnModel, Work


class Ditto(FedAvg, frozen=True):
    """FedAvg, plus a separate model on each device."""

    name: ClassVar[str] = "ditto"

    lam: Annotated[float, Meta(ge=0, le=1e6)] = 0.1
    """Strength of the pull of a device's own model towards the global one; the paper's lambda."""
    personal_epochs: Annotated[int, Meta(ge=0, le=1000)] = 0
    """Number of epochs per round that train the device's own model; 0 uses the run's ``local_epochs``."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return FedAvg's assignment, with the training of the device's own model."""
        training = context.training
        epochs = self.personal_epochs or training.local_epochs
        tied = msgspec.structs.replace(training, prox=self.lam, local_epochs=epochs)
        return Assignment(work=Work(own_model=OwnModel(tied)))
