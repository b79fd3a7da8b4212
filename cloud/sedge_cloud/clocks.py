"""The two clocks: the loop's, which drives all timers, and the wall clock, which dates rows."""

from collections.abc import Callable
from typing import TypeAlias

# Converts loop time to wall-clock time, both in seconds.
Wall: TypeAlias = Callable[[float], float]


def as_it_is(now: float) -> float:
    """Return ``now`` unchanged: under virtual time, the loop's clock is the only one."""
    return now
