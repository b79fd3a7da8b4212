"""A round's models into one: the weighted mean, one model in memory at a time, and what is safer.

    theta' = sum_i (m_i / m) theta_i,   m = sum_i m_i        (McMahan et al. 2017, Algorithm 1)
           = theta + sum_i m_i (theta_i - theta) / m

The second form costs only as much as the updates are long: a device that sent k elements is on the
global model everywhere else. The sum runs in float64, where a product of a float32 and a count below
2**29 is exact (24 + 29 = 53 bits), so the order of the updates moves the result only by the rounding of
the additions. That order is the caller's, so equal updates in equal order give equal bits. The rules of
``robust.py`` that work coordinate by coordinate take the place of the mean where a run asks for them.
Nothing here decides who takes part or what is personal. n = parameters.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.outliers import blocks, repeatable
from sedge_cloud.algorithms.robust import COORDINATE_RULES, Robust, coordinate_wise
from sedge_cloud.strategy import State, Update
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Theta


def weighted_mean(updates: Iterable[Update], theta: Theta) -> Theta:
    """The mean of the trained models by ``num_examples``, float32 (n,); ``theta`` (n,) is the global.

    Without any weight it is a copy of theta. Raises ``LocalError`` for an update of another shape, a
    negative weight or a non-finite result.
    """
    total = np.zeros(theta.size, np.float64)
    weight_sum = 0
    for update in updates:
        _check(update, theta)
        update.add_change(total, update.num_examples, theta)
        weight_sum += update.num_examples
    if weight_sum == 0:
        return theta.copy()
    total /= weight_sum
    total += theta
    return _finite(total)


def shared_mean(updates: Iterable[Update], theta: Theta) -> Theta:
    """As ``weighted_mean``, but each element only over those in whose patch it is not.

    An element that is everybody's own stays as it is in theta (n,). Raises ``LocalError`` likewise.
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
    np.divide(total, weights, out=total, where=weights > 0)
    total += theta
    return _finite(total)


def robust_mean(updates: Iterable[Update], theta: Theta, robust: Robust) -> Theta:
    """The global model (n,) moved by the coordinate-wise rule over the changes, block by block.

    Every device counts the same. Raises ``LocalError`` as ``weighted_mean`` does.
    """
    updates = repeatable(updates)
    count = 0
    for update in updates:
        _check(update, theta)
        count += 1
    total = theta.astype(np.float64)
    start = 0
    for block in blocks(updates, count, theta.size, theta) if count else ():
        part = slice(start, start + block.shape[1])
        total[part] += coordinate_wise(block, robust.rule, robust.wrong(count))
        start = part.stop
    return _finite(total)


def average(state: State, updates: Iterable[Update], fixed: Iterable[str] = ()) -> State:
    """The state after a round of federated averaging: parameters averaged by ``num_examples``.

    Where the run's ``robust`` says so a coordinate-wise rule takes the mean's place. The tensors named in
    ``fixed`` keep their values, and statistics: they stay on the devices and no update carries them.
    """
    if state.robust.rule in COORDINATE_RULES:
        theta = robust_mean(updates, state.theta, state.robust)
    else:
        theta = weighted_mean(updates, state.theta)
    return moved(state, theta, fixed)


def moved(state: State, theta: Theta, fixed: Iterable[str] = ()) -> State:
    """The state after a round that led to theta (n,), which is changed: statistics and ``fixed`` stay."""
    for name in (*state.layout.statistics, *fixed):
        place = state.layout.by_name[name].slice
        theta[place] = state.theta[place]
    return replace(state, theta=theta, round=state.round + 1)


def _check(update: Update, theta: Theta) -> None:
    """Raise ``LocalError`` for an update of another shape or a negative weight."""
    if update.base.shape != theta.shape:
        raise LocalError(f"mean: vector of shape {update.base.shape}, expected {theta.shape}")
    if not update.num_examples >= 0:
        raise LocalError(f"mean: weight {update.num_examples}, expected 0 or more")


def _finite(total: NDArray[np.float64]) -> Theta:
    """The sum (n,) as float32. Raises ``LocalError`` unless that is finite."""
    with np.errstate(over="ignore"):  # found below
        mean = total.astype(np.float32)
    if not np.isfinite(mean).all():
        worst = int(np.argmin(np.isfinite(mean)))
        raise LocalError(f"mean: element {worst} is {total[worst]}, expected finite updates only")
    return mean
