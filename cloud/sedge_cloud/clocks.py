"""The two clocks: the loop's, which drives all timers, and the wall clock, which dates rows."""

from collections.abc import Callable
from typing import TypeAlias

# From a time of the loop to the wall-clock time, in seconds.
Wall: TypeAlias = Callable[[float], float]


def as_it_is(now: float) -> float:
    """For virtual time, where the loop's clock is the only one."""
    return now
