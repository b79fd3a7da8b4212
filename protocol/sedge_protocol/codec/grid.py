"""Rounds vectors to a grid: every value becomes a multiple of a spacing with three significant bits.

Values sent should be too small as often as too large, so elements are rounded to the nearest multiple, some
up and some down. Without rounding, an element is sent only once it is among the largest, so all elements
lag behind, by about two rounds of change if 3 % of them are sent.
"""

import math

import numpy as np

from sedge_protocol.codec.top_k import top_k
from sedge_protocol.codec.vector import SparseVector
from sedge_protocol.layout import Theta

# Outside this range of magnitudes, a spacing or its multiples might be subnormal or overflow in float32.
_SMALLEST, _LARGEST = 1e-30, 1e30


def nearest_multiples(vector: Theta, k: int, *, binary: bool = False) -> SparseVector:
    """Return the ``k`` largest elements of ``vector`` (n,), rounded to multiples of a spacing.

    Elements that round to 0 are left out. The spacing is the largest of 4, 5, 6 and 7 times a power of two
    that is at most twice the magnitude of rank 3k/4, so at least 3k/4 elements round to something other
    than 0. With ``binary`` it is the power of two nearest to that spacing, so that sums over many rounds
    have few significant bits; as few as about k/2 elements may then remain. A vector with fewer than 3k/4
    nonzero elements is not rounded. Raises the same errors as ``top_k``.
    """
    chosen, rank = top_k(vector, k), max(1, 3 * k // 4)
    if chosen.count < rank:
        return chosen
    least = float(np.partition(np.abs(chosen.values), chosen.count - rank)[chosen.count - rank])
    if not _SMALLEST < least < _LARGEST:
        return chosen
    mantissa, exponent = math.frexp(2 * least)
    spacing = math.ldexp(math.floor(8 * mantissa), exponent - 3)
    if binary:
        spacing = 2.0 ** round(math.log2(spacing))
    multiples = rounded(chosen.values, spacing)
    moved = np.flatnonzero(multiples)
    indices = moved.astype(np.uint32) if chosen.indices is None else chosen.indices[moved]
    return SparseVector(chosen.size, indices, multiples[moved])


def on_own_grid(values: Theta, levels: int) -> Theta:
    """Round ``values`` to multiples of the power of two nearest to their root mean square / ``levels``."""
    size = float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if values.size else 0.0
    if not _SMALLEST < size < _LARGEST:
        return values
    return rounded(values, 2.0 ** round(math.log2(size / levels)))


def rounded(values: Theta, spacing: float) -> Theta:
    """Round ``values`` to the nearest multiples of ``spacing``; a tie goes to the larger magnitude."""
    step = np.float32(spacing)
    counts = np.trunc(values / step + np.copysign(np.float32(0.5), values))
    multiples: Theta = counts * step
    multiples += 0  # turns -0.0 into 0.0, as sums do
    return multiples
