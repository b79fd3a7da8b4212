"""Averages a round's models: the weighted mean, one update in memory at a time, and robust rules.

    theta' = sum_i (m_i / m) theta_i,   m = sum_i m_i        (McMahan et al. 2017, Algorithm 1)
           = theta + sum_i m_i (theta_i - theta) / m

The second form takes time proportional to the number of elements sent: where a device sent nothing, its
model equals the global one. The sum runs in float64, where the product of a float32 and a count below 2**29
is exact (24 + 29 = 53 bits), so the order of the updates affects only the rounding of the additions. The
same updates in the same order give identical bits. A coordinate-wise rule (``robust.py``) replaces the mean
if the run asks for one. This module does not decide which devices take part, or which elements are
personal. n is the number of parameters.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.robust import COORDINATE_RULES, Block, Robust, coordinate_wise
from sedge_cloud.strategy import Context, Update
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Theta

Change = NDArray[np.float64]

# Memory for one block. A block holds the same coordinates from all updates; 100 updates of 582,026
# parameters take four blocks.
BLOCK_BYTES = 64 * 2**20
_LARGEST = float(np.finfo(np.float32).max)


def average_change(context: Context, updates: Iterable[Update]) -> Change:
    """Return the change (n,) from the global model to the mean of the trained models.

    Models are weighted by ``num_examples``. If the run's ``robust`` asks for one, a coordinate-wise rule
    replaces the mean. Raises ``StrategyError`` if an update has the wrong shape or a negative weight.
    """
    if context.robust.rule in COORDINATE_RULES:
        return robust_change(updates, context.theta, context.robust)
    return mean_change(updates, context.theta)


def mean_change(updates: Iterable[Update], theta: Theta) -> Change:
    """Return the change (n,) from theta (n,) to the weighted mean; zeros if all weights are 0.

    Raises ``StrategyError`` as ``average_change`` does.
    """
    total = np.zeros(theta.size, np.float64)
    weight_sum = 0
    for update in updates:
        _check(update, theta)
        update.add_change(total, update.num_examples, theta)
        weight_sum += update.num_examples
    return total / weight_sum if weight_sum else total


def shared_mean_change(updates: Iterable[Update], theta: Theta) -> Change:
    """Like ``mean_change``, but an element's mean covers only the updates whose patch does not contain it.

    An element contained in every device's patch does not change. Raises ``StrategyError`` as
    ``average_change`` does.
    """
    total, weights = np.zeros(theta.size), np.zeros(theta.size)
    for update in updates:
        _check(update, theta)
        change = update.change(theta, slice(None)).astype(np.float64)
        weight = np.full(theta.size, update.num_examples, np.float64)
        if update.patch is not None:
            own = slice(None) if update.patch.indices is None else update.patch.indices
            change[own] = weight[own] = 0
        total += update.num_examples * change
        weights += weight
    return np.divide(total, weights, out=total, where=weights > 0)


def robust_change(updates: Iterable[Update], theta: Theta, robust: Robust) -> Change:
    """Compute the change (n,) by a coordinate-wise rule, block by block, with equal weight for all devices.

    Raises ``StrategyError`` as ``average_change`` does.
    """
    updates = repeatable(updates)
    count = 0
    for update in updates:
        _check(update, theta)
        count += 1
    total = np.zeros(theta.size, np.float64)
    start = 0
    for block in blocks(updates, count, theta.size, theta) if count else ():
        part = slice(start, start + block.shape[1])
        total[part] = coordinate_wise(block, robust.rule, robust.wrong(count))
        start = part.stop
    return total


def repeatable(updates: Iterable[Update]) -> Iterable[Update]:
    """Return the updates in a form that can be iterated more than once."""
    return list(updates) if isinstance(updates, Iterator) else updates


def blocks(
    updates: Iterable[Update], count: int, size: int, theta: Theta | None = None
) -> Iterator[Block]:
    """Yield the changes of ``count`` updates in consecutive blocks of coordinates (d, b).

    Changes are relative to theta (n,) or, if that is None, to each update's own ``base``. Each block
    iterates over all updates once and reuses the previous block's array.
    """
    step = max(1, min(size, BLOCK_BYTES // (4 * max(1, count))))
    buffer = np.empty((count, step), np.float32)
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        block = buffer[:, : part.stop - start]
        for row, update in zip(block, updates, strict=True):
            row[:] = update.change(update.base if theta is None else theta, part)
        yield block


def _check(update: Update, theta: Theta) -> None:
    """Raise ``StrategyError`` if an update has the wrong shape or a negative weight."""
    if update.base.shape != theta.shape:
        raise StrategyError(f"mean: vector of shape {update.base.shape}, expected {theta.shape}")
    if not update.num_examples >= 0:
        raise StrategyError(f"mean: weight {update.num_examples}, expected 0 or more")


def as_float32(values: NDArray[np.float64]) -> Theta:
    """Convert to float32, clipped to its range, as one device's extreme change must not end the run."""
    return np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
