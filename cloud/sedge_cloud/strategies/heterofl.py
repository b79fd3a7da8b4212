"""HeteroFL: a small device trains only the first channels of every layer of the fleet's model.

Diao et al. 2021. A device that lacks the share rho of the channels starts from the prefix

    theta_i = theta_g[: c - floor(rho c)] of every axis of c channels
    theta_g'[k] = mean of theta_i[k] over the devices that have the element k, otherwise theta_g[k]

The start is the same vector for all devices with the same width, and is sent once for all of them. The
paper's scaler (activations times 1 / (1 - rho) in training) and masked loss would belong in the device's
program, and are left out; with a normalisation layer the scaler has no effect. BatchNorm's statistics stay
on the device. The model has n parameters, and a width m of them.
"""

from collections.abc import Iterable
from typing import ClassVar, Literal

from sedge_cloud.algorithms.submodels import (
    Channels,
    Places,
    count_change,
    form_of,
    places_of,
    prefix,
)
from sedge_cloud.algorithms.width_policy import WidthPolicy
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update

Weighting = Literal["uniform", "examples"]


class HeteroFL(WidthPolicy, frozen=True):
    """The HeteroFL strategy; its options set the devices' widths (``WidthPolicy``) and weights."""

    name: ClassVar[str] = "heterofl"

    weighting: Weighting = "uniform"
    """Weight of a device: ``uniform``, as in the paper, or by its ``examples``, which with one width is
    FedAvg."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the device's sub-model, cut from the global model, with the device's own statistics."""
        width, arrays = self.width_of(context, client)
        start = context.theta[self.places(context, width)] if width else None
        return Assignment(arrays=arrays, start=start, width=width)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return each element's mean over the models that have it."""

        def weight(update: Update) -> float:
            return update.num_examples if self.weighting == "examples" else 1

        change = count_change(context, updates, lambda width: self.places(context, width), weight)
        return context.moved(change)

    def places(self, context: Context, width: int) -> Places:
        """Return the places in the global model that a width's elements (m,) come from in this round."""
        return places_of(
            form_of(context, 0), form_of(context, width), self.channels(context, width)
        )

    def channels(self, context: Context, width: int) -> Channels:
        """Return the channels of a width in this round: the first ones of every axis."""
        return prefix(form_of(context, width))
