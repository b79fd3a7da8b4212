"""Alternatives to FedOBP's quantile: the scores themselves decide how many elements are personal.

With the option ``energy`` a device keeps the fewest elements whose scores add up to the share eta of all
scores. Sets depend on values only: elements with equal scores are in or out together. s = scored elements.
"""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import LocalError

Scores = NDArray[np.float32]
Indices = NDArray[np.uint32]


def by_energy(scores: Scores, energy: float, most: float) -> Indices:
    """Sorted indices of the fewest largest scores (s,) that add up to the share ``energy`` of all.

    Elements that tie with the last of them are in, too. There are at most a share ``most`` of the elements;
    beyond it, only scores above the first one that would exceed it are in. All zeros select nothing. Raises
    ``LocalError`` for a score that is not finite.
    """
    if not np.isfinite(scores).all():
        raise LocalError(f"scores: index {int(np.argmin(np.isfinite(scores)))} is not finite")
    limit = count_of(scores.size, most)
    if limit == 0:
        return np.empty(0, np.uint32)
    first = largest_first(scores, limit + 1)  # (limit + 1,), or all
    sums = np.cumsum(first, dtype=np.float64)
    k = int(np.searchsorted(sums, energy * scores.sum(dtype=np.float64))) + 1
    if k <= limit and first[k - 1] > 0:
        chosen = np.flatnonzero(scores >= first[k - 1])
        if chosen.size <= limit:
            return chosen.astype(np.uint32)
    return above_count(scores, limit)


def above_count(scores: Scores, count: int) -> Indices:
    """Sorted indices of the ``count`` largest scores above 0, without those equal to the next one."""
    if count >= scores.size:
        return np.flatnonzero(scores > 0).astype(np.uint32)
    next_one = largest_first(scores, count + 1)[-1]
    return np.flatnonzero(scores > max(next_one, np.float32(0))).astype(np.uint32)


def count_of(size: int, share: float) -> int:
    """The number of elements that a share of ``size`` is, exact in decimal and rounded down."""
    return int(Fraction(str(float(share))) * size)


def largest_first(scores: Scores, count: int) -> Scores:
    """The ``count`` largest scores, or all if there are fewer, in falling order."""
    if count < scores.size:
        scores = np.partition(scores, scores.size - count)[scores.size - count :]
    return np.sort(scores)[::-1]
