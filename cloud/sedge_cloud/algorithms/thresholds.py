"""An alternative to FedOBP's quantile: the scores themselves decide how many elements are personal.

With the option ``energy`` a device keeps the fewest elements whose scores add up to the share eta of all
scores. The choice depends on the scores only: elements with equal scores are all kept or all left out. s is
the number of scored elements.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.top_k import largest
from sedge_protocol.decimal_shares import floor_of
from sedge_protocol.errors import LocalError

Scores = NDArray[np.float32]
Indices = NDArray[np.uint32]


def by_energy(scores: Scores, energy: float, most: float) -> Indices:
    """Return sorted indices of the fewest largest scores (s,) that add up to the share ``energy`` of all.

    Elements that tie with the last of these are included. The result contains at most the fraction ``most``
    of the elements. If it would exceed that, it contains only the elements that score higher than the first
    one that does not fit. If all scores are zero, nothing is selected. Raises ``LocalError`` for a score
    that is not finite.
    """
    if not np.isfinite(scores).all():
        raise LocalError(f"scores: index {int(np.argmin(np.isfinite(scores)))} is not finite")
    limit = floor_of(most, scores.size)
    if limit == 0:
        return np.empty(0, np.uint32)
    # (limit + 1,), or fewer if fewer are above 0
    first = np.sort(scores[largest(scores, limit + 1)])[::-1]
    sums = np.cumsum(first, dtype=np.float64)
    k = int(np.searchsorted(sums, energy * scores.sum(dtype=np.float64))) + 1
    if k < first.size:
        chosen = np.flatnonzero(scores >= first[k - 1])
        if chosen.size <= limit:
            return chosen.astype(np.uint32)
    bound = first[limit] if first.size > limit else np.float32(0)
    return np.flatnonzero(scores > bound).astype(np.uint32)
