"""FedBN (Li et al. 2021, Algorithm 1): normalisation layers stay on the device, all others are averaged.

The paper is about BatchNorm: running statistics, scale and shift. For a model without BatchNorm, FedBN is
FedAvg. ``norms = "all"`` also keeps the scale and shift of GroupNorm and LayerNorm, which the paper does
not study.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

from sedge_cloud.algorithms.layers import norms
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.layout import Layout
from sedge_protocol.wire.work import Work

Norms = Literal["batch", "all"]


class FedBN(FedAvg, frozen=True):
    """FedAvg of all layers except normalisation."""

    name: ClassVar[str] = "fedbn"

    norms: Norms = "batch"
    """Normalisation that stays on the device: ``batch`` for BatchNorm, as in the paper, or ``all`` to
    include modules that have only vectors."""

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Return a remark if the model has nothing to keep."""
        what = "BatchNorm" if self.norms == "batch" else "normalisation"
        text = f"{self.name}: the model has no {what}, so this is FedAvg"
        return () if self._kept(layouts[0]) else (text,)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global model, with the device's own normalisation layers."""
        return Assignment(work=Work(keep=self._kept(context.layout)))

    def _kept(self, layout: Layout) -> tuple[str, ...]:
        return layout.normalisation if self.norms == "batch" else norms(layout)
