"""APFL (Deng et al. 2020, Algorithm 1): a device's model is a mixture of its own and the global one.

    device     w     from w_t, one step on its own gradient; sent
               v     from its last value, one step on the gradient of
                     F_k(alpha v + (1 - alpha) w);   stays on the device
               alpha one step on <v - w, that gradient>, if adaptive
    cloud      FedAvg of the w

The device evaluates and predicts with the mixture. v starts as the global model. Each update reports alpha,
which the cloud stores and sends back with the next order.
"""

from typing import Annotated, ClassVar

from msgspec import Meta

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.wire.work import OwnModel, Work

# The largest alpha. At 1 the mixture would never change again, and in an order alpha = 1 means Ditto.
LARGEST = 0.999


class APFL(FedAvg, frozen=True):
    """FedAvg, plus a mixture of the device's own model and the global model on each device."""

    name: ClassVar[str] = "apfl"

    alpha: Annotated[float, Meta(ge=0, le=LARGEST)] = 0.5
    """Share of the device's own model in its mixture; only the initial value if ``adaptive``."""
    adaptive: bool = True
    """Let each device adapt its alpha by gradient steps (the paper's equation 11)."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return FedAvg's assignment, with the mixture as the device's last round left it."""
        last = client.mix if self.adaptive else None
        alpha = self.alpha if last is None else min(last, LARGEST)
        own = OwnModel(context.training, alpha, self.adaptive)
        return Assignment(work=Work(own_model=own))
