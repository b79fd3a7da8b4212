"""FedRep and FedBABU: head and body are trained one after the other.

FedRep (Collins et al. 2021, Algorithm 1) trains first the device's own head on the frozen global body, then
the body under the frozen head; only the body is sent. In FedBABU (Oh et al. 2022, Algorithm 1) the fleet
trains the body under a head that never changes; each device then fits its own head to the body. In both,
the epochs of head and body add up to the run's ``local_epochs``, so a round costs as much as with other
methods; each part gets at least one epoch. The optimiser's state is reset between the parts.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.algorithms.layers import body, head
from sedge_cloud.strategies.fedper import FedPer
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_protocol.layout import Layout
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Work

Epochs = Annotated[int, Meta(ge=1, le=1000)]


class FedRep(FedPer, frozen=True):
    """FedPer's exchange, but the head is trained before the body."""

    name: ClassVar[str] = "fedrep"

    body_epochs: Epochs = 1
    """Number of epochs at the end of ``local_epochs`` that train the body; 1 in the paper and its code."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global body with the device's own head, and two training phases."""
        top, below = phases(context.layout, self.head, context.training, self.body_epochs)
        keep = head(context.layout, self.head)
        return Assignment(work=Work(keep=keep, training=top, then=(below,)))


class FedBABU(FedPer, frozen=True):
    """FedAvg of the body under the run's first head. The metric after training uses the fitted head."""

    name: ClassVar[str] = "fedbabu"

    head_epochs: Epochs = 1
    """Number of epochs at the end of ``local_epochs`` that fit a device's own head, which is sent but not
    averaged."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global model with the first head, and two phases: the body's, then the head's."""
        body_epochs = max(1, context.training.local_epochs - self.head_epochs)
        top, below = phases(context.layout, self.head, context.training, body_epochs)
        fit = msgspec.structs.replace(top, local_epochs=self.head_epochs)
        return Assignment(work=Work(training=below, then=(fit,)))

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the mean of the bodies; the head does not change."""
        fixed = head(context.layout, self.head)
        return context.moved(average_change(context, updates), fixed=fixed)


def phases(
    layout: Layout, names: tuple[str, ...], training: Training, body_epochs: int
) -> tuple[Training, Training]:
    """Return the training settings for the head alone and for the body alone, ``local_epochs`` in total."""
    head_epochs = max(1, training.local_epochs - body_epochs)
    frozen = training.freeze
    replace = msgspec.structs.replace
    return (
        replace(training, local_epochs=head_epochs, freeze=(*frozen, *body(layout, names))),
        replace(training, local_epochs=body_epochs, freeze=(*frozen, *head(layout, names))),
    )
