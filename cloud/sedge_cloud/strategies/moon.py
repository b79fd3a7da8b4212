"""MOON (Li, He and Song 2021, Algorithm 1): FedAvg whose devices learn features like the global model's.

device     min over w of F_k(w) + mu l(w),   l the model-contrastive loss of a batch's features z:
           l = -log(e^(cos(z, z_glob) / tau) / (e^(cos(z, z_glob) / tau) + e^(cos(z, z_prev) / tau)))
cloud      as FedAvg

z_glob are the features of the model that the round began with, z_prev those of the device's last one. A
device without a last model has l = log 2, without a gradient. Bundles must have the guided loss ``moon``
(``sedge-export --guided moon``); the authors add a projection head to their models, which is the user's.
"""

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.wire.objective import CONSTANTS
from sedge_protocol.wire.work import Work


class Moon(FedAvg, frozen=True):
    """FedAvg with a model-contrastive loss on the devices."""

    name: ClassVar[str] = "moon"

    mu: Annotated[float, Meta(ge=0, le=1_000_000)] = 1.0
    """Weight of the contrastive loss; the paper tries 0.1, 1, 5 and 10."""
    tau: Annotated[float, Meta(ge=0.001, le=1000)] = 0.5
    """Temperature of the contrastive loss; 0.5 in the paper."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """FedAvg's, trained with the guided loss."""
        constants = np.array([self.mu, self.tau], np.float32)
        return Assignment(work=Work(loss=self.name), send={CONSTANTS: constants})
