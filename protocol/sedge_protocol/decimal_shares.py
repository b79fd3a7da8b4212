"""Shares of counts, exact in decimal: as floats .29 * 100 is below 29, and .07 * 100 above 7."""

import math
from fractions import Fraction


def floor_of(share: float, count: int) -> int:
    """``share`` of ``count``, rounded down."""
    return math.floor(_of(share, count))


def ceil_of(share: float, count: int) -> int:
    """``share`` of ``count``, rounded up."""
    return math.ceil(_of(share, count))


def _of(share: float, count: int) -> Fraction:
    return Fraction(str(float(share))) * count  # of the shortest decimal that reads as the share
