"""SCAFFOLD: control variates tell each device how its gradients differ from the fleet's.

Karimireddy et al. 2020, Algorithm 1 with option II. With x the global model, c its variate, S the round's
devices out of N enrolled, and device i that takes K_i steps of rate lr from x to y_i:

    y_i <- y_i - lr (g_i(y_i) + c - c_i)            on the device; d_i = c - c_i is sent to it
    c_i' = c_i - c + (x - y_i) / (K_i lr)           = -d_i - s_i / (K_i lr),  s_i = y_i - x, what it sends
    x'   = x + server_lr mean_S s_i
    c'   = c + sum_S (c_i' - c_i) / N               = c + sum_S (-c - s_i / (K_i lr)) / N

If the rate differs from step to step, K_i lr is the sum of the rates.

So only s_i is sent up: the coordinator computes c_i' from it and from the d_i that it stores for the
device. A device's first c_i is 0. BatchNorm's statistics stay on the device and have no variate. Two
vectors are sent down where FedAvg sends one; d_i differs from device to device and is sent exactly.

A lossy codec's error is in s_i, so c_i' is off by that error over K_i lr. With error feedback s_i also
contains remainders of earlier rounds, which the variate mistakes for gradient. For elements that a sparse
upload leaves out, c_i' = -d_i. K_i is the number that the device reports. The outlier filter protects c and
x from an extreme s_i, but not the device's own c_i. n is the number of parameters.
"""

from collections.abc import Iterable
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import as_float32
from sedge_cloud.strategy import (
    EVERY_ELEMENT,
    Assignment,
    ClientModel,
    Context,
    State,
    Strategy,
    Update,
)
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.arrays import Arrays
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Codec

# The key of c (n,) in ``Context.arrays``.
VARIATE = "variate"
# Keys in ``ClientModel.arrays``: a device's last d_i (n,), and that round's rates as
# returned by ``_rates``.
CORRECTION = "correction"
RATES = "rates"


class Scaffold(Strategy, frozen=True):
    """The SCAFFOLD strategy, with its one option."""

    name: ClassVar[str] = "scaffold"

    server_lr: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    """Learning rate of the server along the mean change; 1 in the paper's experiments."""

    @property
    def codec(self) -> Codec:
        """Return the codec that sends every element.

        With only the largest 4 %, the variates lag and learning is far slower.
        """
        return EVERY_ELEMENT

    def init(self, context: Context) -> State:
        """Return the run's first model. Raises ``ConfigError`` unless the optimizer is plain SGD."""
        training = context.training
        why = "scaffold computes a device's mean gradient from its change"
        if training.momentum > 0:
            expected = f"0: {why}, which momentum distorts"
            raise ConfigError("training.momentum", training.momentum, expected)
        if not training.plain:
            expected = f"plain SGD: {why}"
            raise ConfigError("training.optimizer", training.optimizer, expected)
        return super().init(context)

    @property
    def later_words(self) -> tuple[str, ...]:
        """Return the correction extension, which a device's first order does not use."""
        return (CORRECTION,)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the global model, and d_i = c - c_i unless it is 0."""
        correction = as_float32(_array(context.arrays, VARIATE) - _variate(context, client))
        arrays = {RATES: _rates(context.training)}
        if not correction.any():
            return Assignment(arrays=arrays)
        return Assignment(arrays={CORRECTION: correction, **arrays}, correction=correction)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the next x and c."""
        variate = _array(context.arrays, VARIATE)
        moved, shifted = np.zeros(context.theta.size), np.zeros(context.theta.size)
        count = 0
        for update in updates:
            count += 1
            update.add_change(moved, 1.0, context.theta)
            shifted -= variate + _slope(update.delta, update.steps, _rates(context.training))
        change = self.server_lr * moved / max(count, 1)
        shifted /= max(context.devices, count, 1)
        return context.moved(change, {VARIATE: as_float32(variate + shifted)})


def _variate(context: Context, client: ClientModel) -> NDArray[np.float64]:
    """Return c_i (n,) after a device's last update; before the first, a zero of shape ()."""
    if client.trained is None:
        return np.zeros(())
    rates = client.arrays.get(RATES, _rates(context.training))
    slope = _slope(client.sent, client.steps, rates)
    return -_array(client.arrays, CORRECTION) - slope


def _slope(sent: SparseVector | None, steps: int, rates: Theta) -> NDArray[np.float64]:
    """Return s / (K lr) (n,), the negative mean gradient of a device that sent s; a scalar 0 without s."""
    if sent is None:
        return np.zeros(())
    return sent.dense() / _rate_sum(max(steps, 1), rates)


def _rates(training: Training) -> Theta:
    """Return the numbers (3,) that determine the rates of the training steps."""
    rates = training.learning_rate, training.warmup_steps, training.end_factor
    return np.array(rates, np.float32)


def _rate_sum(steps: int, rates: Theta) -> np.float64:
    """Compute the sum of ``Training.rate`` over the steps that a device reports, in closed form."""
    rate, warmup, end = rates.astype(np.float64)
    first = np.arange(min(steps, int(warmup)))
    missing = (1 - (first + 1) / max(warmup, 1)) * (1 + (end - 1) * first / steps)
    return np.float64(rate * (steps + (end - 1) * (steps - 1) / 2 - missing.sum()))


def _array(arrays: Arrays, name: str) -> NDArray[np.float64]:
    array = arrays.get(name)
    return np.zeros(()) if array is None else array.astype(np.float64)
