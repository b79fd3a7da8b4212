"""Finds the critical elements, on which a device's loss depends most. FedPURIN and FedCAC send only these.

For every element of the trained model theta, with a gradient g,

    c = |g theta|       or with the second-order term       c = |-g theta + (g theta)^2 / 2|

The critical elements of each tensor are those with c >= t, including ties. Here t is the z-th largest c,
with z = floor(fraction * elements), or the smallest c above the cutoff if the z-th is not above it.
Statistics, and tensors that the device keeps to itself, have no critical elements. n is the number of the
model's parameters, k the number of critical elements.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.layout import Layout, Role, Tensor, Theta
from sedge_protocol.wire.work import UpdateSelection

_LARGEST_HALF = np.float32(np.finfo(np.float16).max)


def critical(
    theta: Theta, gradient: Theta, layout: Layout, keep: Collection[str], selection: UpdateSelection
) -> NDArray[np.uint32]:
    """Return the sorted indices (k,) of the critical elements of theta (n,), given its gradient (n,)."""
    indices = [np.empty(0, np.uint32)]
    for tensor in _candidates(layout, keep):
        scores = _scores(theta[tensor.slice], gradient[tensor.slice], selection)
        chosen = np.flatnonzero(scores >= _threshold(scores, selection))
        indices.append((chosen + tensor.offset).astype(np.uint32))
    return np.concatenate(indices)


def sparsified(
    theta: Theta, chosen: NDArray[np.uint32], layout: Layout, keep: Collection[str]
) -> Theta:
    """Return theta (n,) with 0 in every element that ``critical`` could have chosen but did not.

    ``chosen`` (k,) are the elements that it did choose.
    """
    sparse = theta.copy()
    for tensor in _candidates(layout, keep):
        sparse[tensor.slice] = 0.0
    indices = chosen.astype(np.intp)
    sparse[indices] = theta[indices]
    return sparse


def _candidates(layout: Layout, keep: Collection[str]) -> list[Tensor]:
    return [t for t in layout.tensors if t.role is Role.PARAMETER and t.name not in keep]


def _scores(theta: Theta, gradient: Theta, selection: UpdateSelection) -> NDArray[np.float32]:
    """Return c for a tensor's elements. It is infinite where float32 overflows."""
    if selection.half:
        limited = np.clip(gradient, -_LARGEST_HALF, _LARGEST_HALF)
        gradient = limited.astype(np.float16).astype(np.float32)
    with np.errstate(over="ignore"):
        change = gradient * theta
        if selection.hessian:
            change *= change / 2 - 1  # written so that inf - inf cannot occur
    np.abs(change, out=change)
    return change


def _threshold(scores: NDArray[np.float32], selection: UpdateSelection) -> np.float32:
    """Return the smallest critical c of a tensor, or NaN if there is none.

    Every comparison with NaN is false, so no element is then chosen.
    """
    count = int(selection.fraction * scores.size)
    if count == 0:
        return np.float32(np.nan)
    rank = scores.size - count
    threshold: np.float32 = np.partition(scores, rank)[rank]
    if threshold > selection.cutoff:
        return threshold
    above = scores[scores > selection.cutoff]
    threshold = above.min() if above.size else np.float32(np.nan)
    return threshold
