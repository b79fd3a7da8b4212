"""Blended: FedAvg, but each device predicts with a mean over its rounds.

    cloud    FedAvg: a device trains from th_g, and th_g is the mean of the trained models
    device   before its training it predicts with   mix * own + (1 - mix) * (th_g + prior)
             after it with                          own <- mix * own + (1 - mix) * trained
             in its first round without own

prior shifts the bias of the head by the logarithms of the device's class shares. The shares never leave the
device, which uses them only if they improve predictions on its own examples, about which th_g knows little.
None of this is sent, so the traffic and the global model are the same as in FedAvg.

The method is this project's own. Training from the mixture as well, or choosing by held-out examples, costs
accuracy: docs/ablations.md, "A mean over a device's rounds", has the figures.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from msgspec import Meta

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.layout import Layout
from sedge_protocol.wire.work import Blend, Work


class Blended(FedAvg, frozen=True):
    """FedAvg, but devices predict with a mean over their rounds."""

    name: ClassVar[str] = "blended"

    mix: Annotated[float, Meta(ge=0, lt=1)] = 0.5
    """Share of a device's previous prediction model in its next one; 0 is FedAvg."""
    prior: bool = True
    """Whether a device may add the logarithms of its class shares to the global model's bias."""

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Return a remark if the model has no bias to which the prior could be added."""
        if self.prior and not _bias(layouts[0]):
            return (f"{self.name}: the head has no bias to which class shares could be added",)
        return ()

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return FedAvg's assignment, with the settings for blending."""
        prior = _bias(context.layout) if self.prior else ""
        return Assignment(work=Work(blend=Blend(self.mix, prior)))


def _bias(layout: Layout) -> str:
    """Return the name of the head's bias; empty if it has none."""
    vectors = [name for name in layout.head if len(layout.by_name[name].shape) == 1]
    return vectors[-1] if len(layout.head) > 1 and vectors else ""
