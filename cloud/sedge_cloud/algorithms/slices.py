"""Work in slices, done here one after another or wherever the coordinator sends them.

The slices, and the order in which their results are combined, depend on the task alone, never on who works
on it. So the bytes are the same with one process and with many hosts.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class Compute(Protocol):
    """Where slices are computed."""

    def map(self, function: Callable[[S, T], R], shared: S, slices: Iterable[T]) -> Iterator[R]:
        """``function(shared, slice)`` of each slice, in their order; each host gets ``shared`` once."""
        ...


class InPlace:
    """This process."""

    def map(self, function: Callable[[S, T], R], shared: S, slices: Iterable[T]) -> Iterator[R]:
        """``function(shared, slice)`` of each slice, in their order."""
        return (function(shared, one) for one in slices)


IN_PLACE = InPlace()
