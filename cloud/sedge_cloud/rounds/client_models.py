"""What the cloud knows of devices while it plans a round: each with its group, made when asked for."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sedge_cloud.store.cache import Cache
from sedge_cloud.store.runs import Run, RunStore
from sedge_cloud.store.vectors import vector_bytes
from sedge_cloud.strategy import ClientModel, Groups
from sedge_protocol.wire.messages import Hello

# Members of groups are asked for again and again: 50 of 1,229,002 parameters fit.
CACHED_MEMBERS_BYTES = 256 * 2**20

Hellos = Callable[[str], Hello | None]


class ClientModels:
    """The models of a run's devices; ``hello`` gives what a device has last said of itself."""

    def __init__(self, run: Run, run_store: RunStore, groups: Groups, hello: Hellos) -> None:
        self._run = run
        self._run_store = run_store
        self._groups = groups
        self._hello = hello
        self._members: Cache[ClientModel] = Cache(CACHED_MEMBERS_BYTES, _client_bytes)

    def of(self, device: str) -> ClientModel:
        """What is known of a device, and of those that it learns with."""
        group = Group(self, self._groups.get(device, ()))
        return replace(self.alone(device), group=group)

    def alone(self, device: str) -> ClientModel:
        """What is known of a device, its group left out."""
        if not self._groups:
            return self._made(device)
        name = device.encode()
        return self._members.get(name) or self._members.put(name, self._made(device))

    def _made(self, device: str) -> ClientModel:
        hello = self._hello(device)
        found = self._run_store.client_model(self._run, device)
        return found if hello is None else replace(found, memory_mb=hello.memory_mb)


@dataclass(frozen=True)
class Group:
    """The trusted models of these devices, in this order; each is made when it is come to.

    A member may have lost its trust after the group was made. What was shortened on its way into the
    global model, or came too late to be compared, would reach the others whole from here.
    """

    models: ClientModels
    devices: tuple[str, ...]

    def __iter__(self) -> Iterator[ClientModel]:
        known = map(self.models.alone, self.devices)
        return (client for client in known if client.trusted)


def _client_bytes(client: ClientModel) -> int:
    trained = 0 if client.trained is None else client.trained.nbytes
    return trained + (0 if client.sent is None else vector_bytes(client.sent))
