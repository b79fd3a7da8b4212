"""The two clocks: the loop's, which drives all timers, and the wall clock, which dates rows."""

from collections.abc import Callable
from typing import TypeAlias

# The time on the wall clock, in seconds, at a time of the loop.
Wall: TypeAlias = Callable[[float], float]


def as_it_is(now: float) -> float:
    """Where there is no other clock than the loop's: virtual time."""
    return now
