"""The weighted mean of a round's models, one model in memory at a time.

    theta' = sum_i (m_i / m) theta_i,   m = sum_i m_i        (McMahan et al. 2017, Algorithm 1)

The sum runs in float64, where a product of a float32 and a count below 2**29 is exact (24 + 29 = 53
bits), so the order of the updates moves the result only by the rounding of the additions. That order
is the caller's, so equal updates in equal order give equal bits. Nothing here decides who takes part
or what is personal. n = parameters.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sedge_cloud.strategy import State, Update
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Theta


def weighted_mean(weighted: Iterable[tuple[float, Theta]], old: Theta) -> Theta:
    """The mean, float32 (n,), of (weight, vector (n,)) pairs; a copy of ``old`` (n,) without any weight.

    Raises ``LocalError`` for a vector of another shape, a negative weight or a non-finite result.
    """
    total = np.zeros(old.size, np.float64)
    scaled = np.empty(old.size, np.float64)
    weight_sum = 0.0
    for weight, vector in weighted:
        if vector.shape != old.shape:
            raise LocalError(f"mean: vector of shape {vector.shape}, expected {old.shape}")
        if not weight >= 0:
            raise LocalError(f"mean: weight {weight}, expected 0 or more")
        np.multiply(vector, weight, out=scaled, dtype=np.float64)
        total += scaled
        weight_sum += weight
    if weight_sum == 0:
        return old.copy()
    total /= weight_sum
    if not np.isfinite(total).all():
        worst = int(np.argmin(np.isfinite(total)))
        raise LocalError(f"mean: element {worst} is {total[worst]}, expected finite updates only")
    return total.astype(np.float32)


def average(state: State, updates: Iterable[Update]) -> State:
    """The state after a round of federated averaging: parameters averaged by ``num_examples``.

    Statistics keep their values: they stay on the devices and no update carries them.
    """
    theta = weighted_mean(((u.num_examples, u.trained) for u in updates), state.theta)
    for name in state.layout.statistics:
        place = state.layout.by_name[name].slice
        theta[place] = state.theta[place]
    return replace(state, theta=theta, round=state.round + 1)
