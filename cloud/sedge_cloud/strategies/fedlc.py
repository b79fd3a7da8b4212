"""FedLC (Zhang et al. 2022): FedAvg in which each device calibrates its logits by its class counts.

device     min over w of the mean cross entropy of f(x) - tau n^(-1/4),   n (C,) its examples of each class
cloud      as FedAvg

A device leaves classes of which it has no examples out of its softmax, so that it does not unlearn what
other devices know about them. The counts stay on the device. Bundles must have the guided loss ``fedlc``
(``sedge-export --guided fedlc``).
"""

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.wire.objective import CONSTANTS
from sedge_protocol.wire.work import Work


class FedLC(FedAvg, frozen=True):
    """FedAvg with calibrated logits in every device's loss."""

    name: ClassVar[str] = "fedlc"

    tau: Annotated[float, Meta(ge=0, le=1000)] = 1.0
    """Strength with which rarer classes are favoured."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return FedAvg's assignment, trained with the guided loss."""
        send = {CONSTANTS: np.array([self.tau], np.float32)}
        return Assignment(work=Work(loss=self.name), send=send)
