"""The client models of a round's devices and of their groups, decoded on demand."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sedge_cloud.runs.capabilities import widest
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.vectors import vector_bytes
from sedge_cloud.store.cache import Cache
from sedge_cloud.store.rows import ClientModelRow
from sedge_cloud.strategy import ClientModel, Groups
from sedge_protocol.wire.messages import Hello

Hellos = Callable[[str], Hello | None]


class ClientModels:
    """The models of a run's devices; ``hello`` gives a device's last hello.

    ``rows`` are prefetched rows of devices, and of their groups, that will be needed; these are not read
    again. Without them each device's row is read when needed.
    """

    def __init__(
        self,
        run: Run,
        run_store: RunStore,
        groups: Groups,
        hello: Hellos,
        rows: Mapping[str, ClientModelRow] | None = None,
    ) -> None:
        self._run = run
        self._run_store = run_store
        self._groups = groups
        self._hello = hello
        self._rows = rows
        self._members: Cache[ClientModel] = Cache(run_store.memory, _client_bytes)

    def forget(self) -> None:
        """Free decoded models: they are kept because a device is in many groups, until planning ends."""
        self._members.clear()

    def of(self, device: str) -> ClientModel:
        """A device's client model, with its group."""
        group = Group(self, self._groups.get(device, ()))
        return replace(self.alone(device), group=group)

    def alone(self, device: str) -> ClientModel:
        """A device's client model, without its group."""
        if not self._groups:
            return self._load(device)
        name = device.encode()
        return self._members.get(name) or self._members.put(name, self._load(device))

    def member(self, device: str) -> ClientModel:
        """A device's client model for use by others: shortened by the factor from its round."""
        client = self.alone(device)
        if client.counted in (0, 1):
            return client
        name = b"\0" + device.encode()
        return self._members.get(name) or self._members.put(name, client.shortened)

    def _load(self, device: str) -> ClientModel:
        hello = self._hello(device)
        row = None if self._rows is None else self._rows.get(device)
        if row is None and self._rows is not None:
            client = ClientModel(device=device)
        else:
            client = self._run_store.client_model(self._run, device, row)
        if hello is None:
            return client
        return replace(client, memory_mb=hello.memory_mb, widest=widest(self._run, hello))


@dataclass(frozen=True)
class Group:
    """The trusted models of these devices, in this order; each is decoded when the iteration reaches it.

    A member may have become untrusted since the group was made. An update that entered the global model
    shortened is shortened here as well; one that came too late for the comparison is left out.
    """

    models: ClientModels
    devices: tuple[str, ...]

    def __iter__(self) -> Iterator[ClientModel]:
        clients = map(self.models.member, self.devices)
        return (client for client in clients if client.trusted)


def _client_bytes(client: ClientModel) -> int:
    trained = 0 if client.trained is None else client.trained.nbytes
    return trained + (0 if client.sent is None else vector_bytes(client.sent))
