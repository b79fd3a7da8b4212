"""The positions of a vector's largest magnitudes, the same ones on every machine.

The order of non-negative float32 numbers is the order of their bit patterns, so a histogram of the
upper 12 bits finds the bucket in which the k-th largest lies, and only that bucket is partitioned. On
a real delta of n = 582,026 this takes .3 (k = n/100) to .6 (k = n/2) of the time of ``np.partition``.
"""

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import LocalError

# Sign, exponent and 3 bits of the mantissa: 8 buckets for each power of two.
_LOW_BITS = 20
_INFINITY = 0x7F800000 >> _LOW_BITS
_BUCKETS = 0x80000000 >> _LOW_BITS
# The histogram goes over the vector in blocks whose temporaries stay in the cache.
_BLOCK = 2**16


def largest(vector: NDArray[np.float32], k: int) -> NDArray[np.uint32]:
    """The sorted indices of the ``k`` largest magnitudes of ``vector`` (n,), without zeros.

    Of equal magnitudes the lowest index is kept first. Raises ``LocalError`` for a negative k and for
    a value that is not finite.
    """
    if k < 0:
        raise LocalError(f"top_k: k={k} is negative")
    magnitudes = np.abs(vector)  # (n,)
    counts = _histogram(magnitudes)
    if counts[_INFINITY:].any():
        first = int(np.argmin(np.isfinite(vector)))
        raise LocalError(f"top_k: vector[{first}] is {vector[first]}, not finite")
    kept = magnitudes > 0
    if k < np.count_nonzero(kept):
        bound = _largest_left_out(magnitudes, counts, k)
        kept = magnitudes > bound
        ties = np.flatnonzero(magnitudes == bound)
        kept[ties[: k - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept).astype(np.uint32)


def _histogram(magnitudes: NDArray[np.float32]) -> NDArray[np.int64]:
    """How many of ``magnitudes`` (n,) lie in each bucket, shape (2048,)."""
    counts = np.zeros(_BUCKETS, np.int64)
    bits = magnitudes.view(np.uint32)
    for start in range(0, bits.size, _BLOCK):
        buckets = (bits[start : start + _BLOCK] >> _LOW_BITS).astype(np.intp)
        counts += np.bincount(buckets, minlength=_BUCKETS)
    return counts


def _largest_left_out(
    magnitudes: NDArray[np.float32], counts: NDArray[np.int64], k: int
) -> np.float32:
    """The (k+1)-th largest of ``magnitudes`` (n,), k < n."""
    at_least = np.cumsum(counts[::-1])[::-1]  # elements in this bucket and all above it
    bucket = int(np.flatnonzero(at_least > k)[-1])
    low, high = (np.array([bucket, bucket + 1], np.uint32) << _LOW_BITS).view(np.float32)
    inside = magnitudes[(magnitudes >= low) & (magnitudes < high)]
    place = int(at_least[bucket]) - k - 1  # within the bucket, ascending
    bound: np.float32 = np.partition(inside, place)[place]
    return bound
