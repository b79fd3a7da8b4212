"""FedAvg (McMahan et al. 2017, Algorithm 1): one model for all.

BatchNorm's statistics stay on the device, as FedBN suggests; without BatchNorm this is the paper's
algorithm. Methods that only change what a device does subclass FedAvg and override ``plan``.
"""

from collections.abc import Iterable
from typing import ClassVar

from sedge_cloud.algorithms.averaging import average_change
from sedge_cloud.strategy import Context, State, Strategy, Update


class FedAvg(Strategy, frozen=True):
    """Devices start from the global model; the next one is the trained models' example-weighted mean."""

    name: ClassVar[str] = "fedavg"

    @property
    def coordinate_rules(self) -> bool:
        """Return True, as such a rule can replace the mean."""
        return True

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the weighted mean of the trained models."""
        return context.moved(average_change(context, updates))
