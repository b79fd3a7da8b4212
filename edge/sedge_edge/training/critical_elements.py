"""The elements that a device's loss depends on most, tensor by tensor: what FedPURIN and FedCAC send.

For every element of the trained model theta, with a gradient g,

    c = |g theta|       or with the second-order term       c = |-g theta + (g theta)^2 / 2|

and of each tensor those with c >= t are critical: t is the z-th largest c, z = floor(fraction * elements),
ties included, or the smallest c above the cutoff where that one is not above it. Tensors that the device
keeps and statistics are left out. n = parameters of the model, k = critical ones.
"""

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.layout import Layout, Role, Tensor, Theta
from sedge_protocol.wire.messages import UpdateSelection

_LARGEST_HALF = np.float32(np.finfo(np.float16).max)


def critical(
    theta: Theta, gradient: Theta, layout: Layout, keep: Collection[str], selection: UpdateSelection
) -> NDArray[np.uint32]:
    """Sorted indices (k,) of the critical elements of theta (n,), given its gradient (n,)."""
    found = [np.empty(0, np.uint32)]
    for tensor in _candidates(layout, keep):
        scores = _scores(theta[tensor.slice], gradient[tensor.slice], selection)
        chosen = np.flatnonzero(scores >= _threshold(scores, selection))
        found.append((chosen + tensor.offset).astype(np.uint32))
    return np.concatenate(found)


def sparsified(
    theta: Theta, chosen: NDArray[np.uint32], layout: Layout, keep: Collection[str]
) -> Theta:
    """theta (n,) with nothing but the chosen (k,) in the tensors that ``critical`` chooses from."""
    sparse = theta.copy()
    for tensor in _candidates(layout, keep):
        sparse[tensor.slice] = 0.0
    place = chosen.astype(np.intp)
    sparse[place] = theta[place]
    return sparse


def _candidates(layout: Layout, keep: Collection[str]) -> list[Tensor]:
    return [t for t in layout.tensors if t.role is Role.PARAMETER and t.name not in keep]


def _scores(theta: Theta, gradient: Theta, selection: UpdateSelection) -> NDArray[np.float32]:
    """c of a tensor's elements; what is too large for float32 is infinite."""
    if selection.half:
        limited = np.clip(gradient, -_LARGEST_HALF, _LARGEST_HALF)
        gradient = limited.astype(np.float16).astype(np.float32)
    with np.errstate(over="ignore"):
        change = gradient * theta
        if selection.hessian:
            change *= change / 2 - 1  # in this form two infinities never meet
    np.abs(change, out=change)
    return change


def _threshold(scores: NDArray[np.float32], selection: UpdateSelection) -> np.float32:
    """The least c that is critical in a tensor; NaN, which no c is at least, where none is."""
    count = int(selection.fraction * scores.size)
    if count == 0:
        return np.float32(np.nan)
    place = scores.size - count
    threshold: np.float32 = np.partition(scores, place)[place]
    if threshold > selection.cutoff:
        return threshold
    above = scores[scores > selection.cutoff]
    threshold = above.min() if above.size else np.float32(np.nan)
    return threshold
