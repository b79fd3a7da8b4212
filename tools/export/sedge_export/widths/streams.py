"""Finds which dimensions of a model must be narrowed together, by unifying streams of channels.

A dimension is a product of streams and plain extents, slowest first: a flattened image of 64 channels and
16 positions is (stream of 64, 16), a batch of 32 is (32,). Two dimensions that must have the same
channels are tied, which merges their streams. A stream that is cut, or tied to something that cannot
change, is fixed: it becomes a plain extent. This module knows nothing about operators.
"""

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Part: TypeAlias = "Stream | int"
Dim: TypeAlias = tuple[Part, ...]


class Stream:
    """Channels that can be left out.

    ``parts`` is the dimension with which the stream was unified; None while the stream is free.
    """

    def __init__(self, extent: int, name: str) -> None:
        self.extent = extent
        self.name = name
        self.parts: Dim | None = None


class Streams:
    """All streams of one model, and the reasons why some were fixed."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def fresh(self, extent: int, name: str) -> Dim:
        """Return a new dimension.

        A single channel can never be left out, so it does not become a stream.
        """
        return (Stream(extent, name),) if extent > 1 else ()

    def fix(self, dim: Dim, why: str) -> Dim:
        """Fix all streams in the dimension for the reason ``why`` ('' for none).

        Returns the plain extent.
        """
        for part in resolved(dim):
            if isinstance(part, Stream):
                if why:
                    self.reasons.append(f"{part.name} {why}")
                part.parts = (part.extent,)
        return resolved(dim)

    def tie(self, first: Dim, second: Dim, why: str) -> Dim:
        """Unify two dimensions. If they do not match, fix both for the reason ``why``.

        Returns the result.
        """
        one, other = _unlike(resolved(first), resolved(second))
        for free, bound in ((other, one), (one, other)):
            if len(free) == 1 and isinstance(free[0], Stream) and _streams(bound):
                free[0].parts = bound
                return resolved(first)
        self.fix(one, why)
        self.fix(other, why)
        return resolved(first)

    def regroup(self, dims: Sequence[Dim], shape: Sequence[int], why: str) -> list[Dim]:
        """Distribute the elements over another shape. A stream that would be cut is fixed."""
        flat = resolved([part for dim in dims for part in dim])
        grouped: list[Dim] = []
        for extent in shape:
            taken: list[Part] = []
            while extent > 1:
                head, *rest = flat
                size = _extent(head)
                if extent % size == 0:
                    taken.append(head)
                    flat, extent = tuple(rest), extent // size
                elif isinstance(head, Stream):
                    flat = resolved((*self.fix((head,), why), *rest))
                elif size % extent == 0:
                    taken.append(extent)
                    flat, extent = (size // extent, *rest), 1
                else:  # neither divides the other: no common boundary
                    for dim in dims:
                        self.fix(dim, why)
                    return [resolved((wanted,)) for wanted in shape]
            grouped.append(resolved(taken))
        return grouped


def resolved(dim: Iterable[Part]) -> Dim:
    """Express a dimension in its current streams. Neighbouring plain extents are multiplied."""
    parts: list[Part] = []
    pending = list(dim)[::-1]
    while pending:
        part = pending.pop()
        if isinstance(part, Stream) and part.parts is not None:
            pending += part.parts[::-1]
        elif isinstance(part, int) and parts and isinstance(parts[-1], int):
            parts[-1] *= part
        elif part != 1:
            parts.append(part)
    return tuple(parts)


def extent_of(dim: Dim) -> int:
    """Return the number of elements of a dimension."""
    return math.prod(_extent(part) for part in dim)


def _extent(part: Part) -> int:
    return part.extent if isinstance(part, Stream) else part


def _streams(dim: Dim) -> bool:
    return any(isinstance(part, Stream) for part in dim)


def _unlike(first: Dim, second: Dim) -> tuple[Dim, Dim]:
    """Strip the common prefix and suffix from both."""
    while first and second and _same(first[0], second[0]):
        first, second = first[1:], second[1:]
    while first and second and _same(first[-1], second[-1]):
        first, second = first[:-1], second[:-1]
    return first, second


def _same(first: Part, second: Part) -> bool:
    """Return True if both are the same stream, or plain and equal."""
    if isinstance(first, Stream) or isinstance(second, Stream):
        return first is second
    return first == second
