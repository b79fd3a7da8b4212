"""Caches that share one bound in bytes. Correctness never depends on them."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

from sedge_protocol.host.memory_limit import memory_mb

V = TypeVar("V")

# The share of the machine's memory that caches may take, and the memory of a machine that does not tell.
SHARE = 0.05
UNKNOWN_MB = 1000
_OWNERS = count()


class Memory:
    """What several caches hold together, at most ``limit`` bytes; the least recently used go first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0
        self._entries: OrderedDict[tuple[int, bytes], tuple[Any, int]] = OrderedDict()

    @staticmethod
    def of_machine(share: float = SHARE) -> "Memory":
        """A share of the memory that this process may use."""
        return Memory(int(share * (memory_mb() or UNKNOWN_MB) * 10**6))

    @property
    def held(self) -> int:
        """The bytes of all values."""
        return self._held

    def get(self, key: tuple[int, bytes]) -> Any:
        """A value, or None if it is not (or no longer) here."""
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def put(self, key: tuple[int, bytes], value: Any, size: int) -> None:
        """Hold a value, in place of an earlier one. One that is larger than the limit is not held."""
        self.drop(key)
        if size > self._limit:
            return
        self._entries[key] = value, size
        self._held += size
        while self._held > self._limit:
            self._held -= self._entries.popitem(last=False)[1][1]

    def drop(self, key: tuple[int, bytes]) -> None:
        """Forget a value, if it is here."""
        if key in self._entries:
            self._held -= self._entries.pop(key)[1]

    def drop_all(self, owner: int) -> None:
        """Forget every value of one cache."""
        for key in [key for key in self._entries if key[0] == owner]:
            self.drop(key)


class Cache(Generic[V]):
    """Values by name, within the bound of ``memory``; ``size`` gives a value's bytes."""

    def __init__(self, memory: Memory, size: Callable[[V], int]) -> None:
        self._memory = memory
        self._size = size
        self._owner = next(_OWNERS)

    def get(self, name: bytes) -> V | None:
        """The value of this name, or None if it is not (or no longer) cached."""
        value: V | None = self._memory.get((self._owner, name))
        return value

    def put(self, name: bytes, value: V) -> V:
        """Cache a value, replacing an earlier one of this name, and return it."""
        self._memory.put((self._owner, name), value, self._size(value))
        return value

    def drop(self, name: bytes) -> None:
        """Forget the value of this name."""
        self._memory.drop((self._owner, name))

    def clear(self) -> None:
        """Forget everything."""
        self._memory.drop_all(self._owner)
