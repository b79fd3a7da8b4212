"""FedDyn: each device's loss is adjusted so that the devices' minima agree with the fleet's.

Acar et al. 2021, Federated Learning Based on Dynamic Regularization, Algorithm 1. With w the global model,
g_k a device's gradient after its last round (initially 0), S the round's devices out of N enrolled:

    w_k  <- min over v of F_k(v) - <g_k, v> + alpha/2 ||v - w||^2     by the run's training;  s_k = w_k - w
    g_k' = g_k - alpha s_k
    h'   = h - alpha sum_S s_k / N
    w'   = mean_S w_k - h' / alpha

A device gets -g_k, which it adds to every gradient, and sends s_k as in FedAvg. The coordinator computes
g_k' from s_k and from the vector that it stores for the device. BatchNorm's statistics stay on the device.
h is kept as h / alpha, the sum in the last equation. n is the number of parameters.

With a codec that sends only a share of the elements, with error feedback, s_k arrives in parts, some of
which reach g_k and h rounds later; at 4 % that had no measurable cost (docs/strategies.md).
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar

import msgspec
import numpy as np
from msgspec import Meta

from sedge_cloud.algorithms.averaging import as_float32
from sedge_cloud.strategy import (
    Assignment,
    ClientModel,
    Context,
    State,
    Strategy,
    Update,
)
from sedge_protocol.layout import Theta
from sedge_protocol.wire.work import Work

# The key of h / alpha (n,) in ``Context.arrays``.
SHARED = "shared"
# The key of a device's last -g_k (n,) in ``ClientModel.arrays``.
CORRECTION = "correction"


class FedDyn(Strategy, frozen=True):
    """The FedDyn strategy, with its one option."""

    name: ClassVar[str] = "feddyn"

    alpha: Annotated[float, Meta(gt=0, le=1_000_000)] = 0.1
    """Strength of the dynamic regularizer, instead of ``training.prox``; the paper tries 0.001, 0.01 and
    0.1."""

    @property
    def later_words(self) -> tuple[str, ...]:
        """Return the correction extension, which a device's first order does not use."""
        return (CORRECTION,)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global model, training settings that pull towards it, and -g_k unless it is 0."""
        work = Work(training=msgspec.structs.replace(context.training, prox=self.alpha))
        correction = self._correction(client)
        if correction is None or not correction.any():
            return Assignment(work=work)
        return Assignment(work=work, arrays={CORRECTION: correction}, correction=correction)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the next w and h."""
        moved, count = np.zeros(context.theta.size), 0
        for update in updates:
            count += 1
            update.add_change(moved, 1.0, context.theta)
        shared = context.arrays.get(SHARED, np.zeros((), np.float32)).astype(np.float64)
        shared = shared - moved / max(context.devices, count, 1)
        change = moved / count - shared if count else moved
        return context.moved(change, {SHARED: as_float32(shared)})

    def _correction(self, client: ClientModel) -> Theta | None:
        """Return -g_k (n,) after a device's last update; None before its first."""
        last = client.arrays.get(CORRECTION)
        if client.trained is None or client.sent is None:
            return last
        bent = self.alpha * client.sent.dense().astype(np.float64)
        bent += 0 if last is None else last
        return as_float32(bent)
