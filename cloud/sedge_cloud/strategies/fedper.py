"""FedPer and LG-FedAvg: one part of the model stays on the device, the other is averaged.

FedPer (Arivazhagan et al. 2019, Algorithms 1 and 2) keeps the head, the paper's personalisation layers.
LG-FedAvg (Liang et al. 2020, Algorithm 1) is its mirror image and keeps the body, the paper's local
representation. The kept part is never sent; on a new device it starts with the run's first values.
"""

from typing import ClassVar

from sedge_cloud.algorithms.layers import body, head
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context, State
from sedge_protocol.wire.work import Work


class FedPer(FedAvg, frozen=True):
    """FedAvg of the body; every device has its own head."""

    name: ClassVar[str] = "fedper"

    head: tuple[str, ...] = ()
    """Names of modules or tensors that form the head; if empty, the last module, usually the
    classifier."""

    def init(self, context: Context) -> State:
        """Return the run's first model. Raises ``ConfigError`` if the model lacks a name in ``head``."""
        head(context.layout, self.head)
        return super().init(context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global body, with the device's own head."""
        return Assignment(work=Work(keep=head(context.layout, self.head)))


class LGFedAvg(FedPer, frozen=True):
    """FedAvg of the head; every device has its own body."""

    name: ClassVar[str] = "lg_fedavg"

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global head, with the device's own body."""
        return Assignment(work=Work(keep=body(context.layout, self.head)))
