"""A cache that is limited in bytes. Correctness never depends on it."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """Values by name; the least recently used go first.

    ``size`` gives a value's bytes. All values together have at most ``limit``: one larger than that is not
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
        """The value of this name, or None if it is not (or no longer) cached."""
        if name not in self._values:
            return None
        self._values.move_to_end(name)
        return self._values[name]

    def put(self, name: bytes, value: V) -> V:
        """Cache a value, replacing an earlier one of this name, and return it."""
        if name in self._values:
            self._held -= self._size(self._values.pop(name))
        self._values[name] = value
        self._held += self._size(value)
        while self._held > self._limit:
            self._held -= self._size(self._values.popitem(last=False)[1])
        return value
