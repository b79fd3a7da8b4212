"""FedRolex: as HeteroFL, but the window of channels moves on by one in every round.

Alam et al. 2022. Of an axis with c channels a device of rate rho trains in round j (from 0)

    (j mod c), (j mod c) + 1, ...   (mod c),   c - floor(rho c) of them

so that every channel is trained by somebody, however narrow all devices are. The window is the same for
all devices of a width; the whole model stays as it is. A device's BatchNorm statistics stay on it, at the
places that they had, and so belong to the channels before: some steps of training set them right, and
GroupNorm has none.
"""

from typing import ClassVar

from sedge_cloud.algorithms.submodels import Channels, form_of, rolled
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import Context


class FedRolex(HeteroFL, frozen=True):
    """The options of FedRolex: those of HeteroFL."""

    name: ClassVar[str] = "fedrolex"

    def channels(self, context: Context, width: int) -> Channels:
        """The channels of a width in this round."""
        return rolled(form_of(context, width), form_of(context, 0).axes, context.round)
