"""Computes shares of counts exactly in decimal.

Floats would be off: as floats, .29 * 100 is below 29, and .07 * 100 is above 7.
"""

import math
from fractions import Fraction


def floor_of(share: float, count: int) -> int:
    """Return ``share`` * ``count``, rounded down."""
    return math.floor(_of(share, count))


def ceil_of(share: float, count: int) -> int:
    """Return ``share`` * ``count``, rounded up."""
    return math.ceil(_of(share, count))


def _of(share: float, count: int) -> Fraction:
    # Exact for the shortest decimal that prints as this float.
    return Fraction(str(float(share))) * count
