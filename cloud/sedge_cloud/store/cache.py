"""Caches that share one limit in bytes. Correctness never depends on them."""

from collections import OrderedDict
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar

from sedge_protocol.host.memory_limit import memory_mb

V = TypeVar("V")

# The share of the machine's memory that caches may use, and the memory to assume if it is unknown.
SHARE = 0.05
UNKNOWN_MB = 1000
_OWNERS = count()


class Memory:
    """The memory that several caches share: at most ``limit`` bytes, of which ``held`` are in use."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        # Maps (cache, name) to (value, size), least recently used first.
        self.entries: OrderedDict[tuple[int, bytes], tuple[Any, int]] = OrderedDict()

    @staticmethod
    def of_machine(share: float = SHARE) -> "Memory":
        """Return a memory limited to a share of the memory that this process may use."""
        return Memory(int(share * (memory_mb() or UNKNOWN_MB) * 10**6))


class Cache(Generic[V]):
    """Caches values by name, within the limit of ``memory``; ``size`` returns a value's size in bytes."""

    def __init__(self, memory: Memory, size: Callable[[V], int]) -> None:
        self._memory = memory
        self._size = size
        self._owner = next(_OWNERS)

    def get(self, name: bytes) -> V | None:
        """Return the value cached under this name; None if there is none, or no longer."""
        entries, key = self._memory.entries, (self._owner, name)
        if key not in entries:
            return None
        entries.move_to_end(key)
        value: V = entries[key][0]
        return value

    def put(self, name: bytes, value: V) -> V:
        """Cache a value, replacing any earlier value of this name. Returns the value.

        A value larger than the limit is not cached. The least recently used entries are evicted to make
        room for any other value.
        """
        self.drop(name)
        memory, size = self._memory, self._size(value)
        if size <= memory.limit:
            memory.entries[self._owner, name] = value, size
            memory.held += size
            while memory.held > memory.limit:
                memory.held -= memory.entries.popitem(last=False)[1][1]
        return value

    def fill(self, name: bytes, value: V) -> V:
        """Cache a value under a new name, but only if nothing must be evicted for it. Returns the value."""
        if self._memory.held + self._size(value) <= self._memory.limit:
            self.put(name, value)
        return value

    def drop(self, name: bytes) -> None:
        """Remove the value cached under this name, if there is one."""
        _, size = self._memory.entries.pop((self._owner, name), (None, 0))
        self._memory.held -= size

    def clear(self) -> None:
        """Drop this cache's entries; other caches in the same memory keep theirs."""
        for owner, name in list(self._memory.entries):
            if owner == self._owner:
                self.drop(name)
