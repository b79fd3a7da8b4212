"""FedRolex: HeteroFL with a window of channels that advances by one in every round.

Alam et al. 2022. In round j (from 0), a device that lacks the share rho of an axis's c channels trains the
channels

    (j mod c), (j mod c) + 1, ...   (mod c),   c - floor(rho c) of them

So every channel is trained sooner or later, even if all devices are narrow. The window is the same for all
devices with the same width. BatchNorm's statistics stay on the device at their old positions. So after each
move they belong to other channels, until some training steps have corrected them. GroupNorm has no
statistics.
"""

from typing import ClassVar

from sedge_cloud.algorithms.submodels import Channels, form_of, rolled
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import EVERY_ELEMENT, Context
from sedge_protocol.wire.work import Codec


class FedRolex(HeteroFL, frozen=True):
    """The FedRolex strategy, with HeteroFL's options."""

    name: ClassVar[str] = "fedrolex"

    @property
    def codec(self) -> Codec:
        """Return the codec that sends every element: a remainder would later be added to other channels."""
        return EVERY_ELEMENT

    def channels(self, context: Context, width: int) -> Channels:
        """Return the channels of a width in this round."""
        return rolled(form_of(context, width), form_of(context, 0).axes, context.round)
