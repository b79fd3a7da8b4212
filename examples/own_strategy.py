"""A strategy of your own: FedAvg whose server keeps momentum (FedAvgM, Hsu et al. 2019).

    sedge-emulate run examples/own_strategy.toml

The same class serves a real fleet: install the module where the coordinator runs and name it in run.toml.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta

from sedge_cloud import Context, FedAvg, State, Update, average_change


class FedAvgM(FedAvg, frozen=True):
    """Its fields are its options. What it does not say, it does as FedAvg."""

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """A step from the global model to the next: the mean change, and what is left of the last step."""
        step = average_change(context, updates)
        if (
            "step" in context.arrays
        ):  # all that a run remembers is in its state, which survives restarts
            step += self.momentum * context.arrays["step"]
        return context.moved(step, arrays={"step": step.astype("f4")})
