"""A strategy of your own: FedAvg with server momentum (FedAvgM, Hsu et al. 2019).

    sedge-emulate run examples/own_strategy.toml

The same class works in a real fleet: install the module on the coordinator and name it in run.toml.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from sedge_cloud import Context, FedAvg, State, Update, average_change


class FedAvgM(FedAvg, frozen=True):
    """FedAvg with server momentum. Its fields are its options."""

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the next global model: step by the mean change plus momentum times the last step."""
        step = average_change(context, updates)
        # A strategy's arrays are stored with the run and survive restarts.
        if "step" in context.arrays:
            step += self.momentum * context.arrays["step"]
        return context.moved(step, arrays={"step": step.astype("f4")})
