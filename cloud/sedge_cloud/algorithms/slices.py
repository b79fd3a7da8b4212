"""Splits work into slices, computed in this process or on the coordinator's cluster.

The slices, and the order in which their results are combined, depend on the task alone, never on who
computes them. The resulting bytes are therefore the same with one process as with many hosts.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Compute(Protocol):
    """Computes the slices of a task, in this process or elsewhere."""

    def map(self, function: Callable[[S, T], R], shared: S, slices: Iterable[T]) -> Iterator[R]:
        """Yield ``function(shared, slice)`` for each slice, in order; each host gets ``shared`` once."""
        ...


class InPlace:
    """Computes the slices of a task in this process, one after another."""

    def map(self, function: Callable[[S, T], R], shared: S, slices: Iterable[T]) -> Iterator[R]:
        """Yield ``function(shared, slice)`` for each slice, in order."""
        return (function(shared, one) for one in slices)


IN_PLACE = InPlace()
