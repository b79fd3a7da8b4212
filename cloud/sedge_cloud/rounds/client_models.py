"""What the cloud knows of devices while it plans a round: each with its group, made when asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sedge_cloud.store.cache import Cache
from sedge_cloud.store.runs import Groups, Ledger, Run
from sedge_cloud.store.vectors import vector_bytes
from sedge_cloud.strategy import Memory
from sedge_protocol.wire.messages import Hello

# Members of groups are asked for again and again: 50 of 1,229,002 parameters fit.
CACHED_MEMBERS_BYTES = 256 * 2**20

Hellos = Callable[[str], Hello | None]


class Memories:
    """The memories of a run's devices; ``hello`` gives what a device has last said of itself."""

    def __init__(self, run: Run, ledger: Ledger, groups: Groups, hello: Hellos) -> None:
        self._run = run
        self._ledger = ledger
        self._groups = groups
        self._hello = hello
        self._members: Cache[Memory] = Cache(CACHED_MEMBERS_BYTES, _memory_bytes)

    def of(self, device: str) -> Memory:
        """What is known of a device, and of those that it learns with."""
        group = Group(self, self._groups.get(device, ()))
        return replace(self.alone(device), group=group)

    def alone(self, device: str) -> Memory:
        """What is known of a device, its group left out."""
        if not self._groups:
            return self._made(device)
        name = device.encode()
        return self._members.get(name) or self._members.put(name, self._made(device))

    def _made(self, device: str) -> Memory:
        hello = self._hello(device)
        found = self._ledger.memory(self._run, device)
        return found if hello is None else replace(found, memory_mb=hello.memory_mb)


@dataclass(frozen=True)
class Group:
    """The trusted memories of these devices, in this order; each is made when it is come to.

    A member may have lost its trust after the group was made. What was shortened on its way into the
    global model, or came too late to be compared, would reach the others whole from here.
    """

    memories: Memories
    devices: tuple[str, ...]

    def __iter__(self) -> Iterator[Memory]:
        known = map(self.memories.alone, self.devices)
        return (memory for memory in known if memory.trusted)


def _memory_bytes(memory: Memory) -> int:
    trained = 0 if memory.trained is None else memory.trained.nbytes
    return trained + (0 if memory.sent is None else vector_bytes(memory.sent))
