"""Selects a vector's elements of largest magnitude, identically on every machine."""

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.codec.vector import SparseVector
from sedge_protocol.errors import LocalError, Unencodable
from sedge_protocol.layout import Theta

_MAX_FLOAT32 = float(np.finfo(np.float32).max)


def top_k(vector: Theta, k: int) -> SparseVector:
    """Return the ``k`` elements of ``vector`` (n,) with the largest magnitudes, without zeros.

    Among equal magnitudes, the lowest indices are kept. Raises ``Unencodable`` for a value that is not
    finite, and ``LocalError`` for a negative k.
    """
    return _picked(vector, largest(vector, k))


def above(vector: Theta, threshold: float, k: int) -> SparseVector:
    """Return the elements of ``vector`` (n,) with |v| >= ``threshold``, at most the ``k`` largest.

    Zeros are left out. The threshold is rounded to float32. Breaks ties and raises errors as ``top_k``
    does; also raises ``LocalError`` for a threshold that is negative or not finite.
    """
    return _picked(vector, largest(vector, k, threshold))


def largest(vector: NDArray[np.float32], k: int, threshold: float = 0.0) -> NDArray[np.uint32]:
    """Return the sorted indices of the ``k`` largest magnitudes of ``vector`` (n,), without zeros.

    Magnitudes below ``threshold``, as a float32, are also left out. Among equal magnitudes, the lowest
    indices are kept. Raises ``Unencodable`` for a value that is not finite, and ``LocalError`` for a
    negative k or a threshold that is negative or not finite.
    """
    if k < 0:
        raise LocalError(f"top_k: k={k} is negative")
    if not 0 <= threshold <= _MAX_FLOAT32:
        raise LocalError(f"top_k: threshold {threshold}, expected a finite number not below 0")
    magnitudes = np.abs(vector)  # (n,)
    if not np.isfinite(magnitudes.max(initial=0)):  # max propagates NaN
        first = int(np.argmin(np.isfinite(vector)))
        raise Unencodable(f"top_k: vector[{first}] is {vector[first]}, not finite")
    kept = magnitudes >= np.float32(threshold) if threshold else magnitudes > 0
    if np.count_nonzero(kept) > k > 0:
        magnitudes.partition(
            magnitudes.size - k
        )  # Done in place, because a job's memory use peaks here.
        bound = magnitudes[magnitudes.size - k]
        np.abs(vector, out=magnitudes)
        kept = magnitudes >= bound
        surplus = int(np.count_nonzero(kept)) - k
        if surplus:
            kept[np.flatnonzero(magnitudes == bound)[-surplus:]] = False
    return np.flatnonzero(kept).astype(np.uint32) if k else np.empty(0, np.uint32)


def _picked(vector: Theta, indices: NDArray[np.uint32]) -> SparseVector:
    if indices.size == vector.size:
        return SparseVector(vector.size, None, vector.copy())
    return SparseVector(vector.size, indices, vector[indices.astype(np.intp)])
