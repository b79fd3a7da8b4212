"""FedRolex: as HeteroFL, but the window of channels moves on by one in every round.

Alam et al. 2022. Of an axis with c channels a device of rate rho trains in round j (from 0)

    (j mod c), (j mod c) + 1, ...   (mod c),   c - floor(rho c) of them

so that every channel is trained by somebody, however narrow all devices are. The window is the same for
all devices of a width; the whole model stays as it is. A device's BatchNorm statistics stay on it, at the
places that they had, and so belong to the channels before: some steps of training set them right, and
GroupNorm has none.
"""

from dataclasses import dataclass

from sedge_cloud.algorithms.submodels import Channels, form_of, rolled
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import State


@dataclass(frozen=True)
class FedRolex(HeteroFL):
    """The options of FedRolex: those of HeteroFL."""

    @property
    def name(self) -> str:
        """``fedrolex``."""
        return "fedrolex"

    def channels(self, state: State, width: int) -> Channels:
        """The channels of a width in this round."""
        return rolled(form_of(state, width), form_of(state, 0).axes, state.round)
