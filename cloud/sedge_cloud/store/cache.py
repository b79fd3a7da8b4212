"""What was computed and may be wanted again, up to so many bytes. Correctness never depends on it."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """Values by name; those not wanted for the longest time go first.

    ``size`` tells a value's bytes. The sizes add up to at most ``limit``: what is larger by itself is not
    kept at all.
    """

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self._limit = limit
        self._size = size
        self._held = 0
        self._values: OrderedDict[bytes, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, name: bytes) -> V | None:
        """The value of this name, or None when it is not here (any more)."""
        if name not in self._values:
            return None
        self._values.move_to_end(name)
        return self._values[name]

    def put(self, name: bytes, value: V) -> V:
        """Keep a value, in place of an earlier one of the name; gives it back."""
        if name in self._values:
            self._held -= self._size(self._values.pop(name))
        self._values[name] = value
        self._held += self._size(value)
        while self._held > self._limit:
            self._held -= self._size(self._values.popitem(last=False)[1])
        return value
