"""Decodes the client models of a round's devices, and of their groups, on demand."""

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
    """The client models of a run's devices; ``hello`` returns a device's last hello.

    ``rows`` are prefetched rows of all devices, and group members, that will be needed. If ``rows`` is
    None, each device's row is read when needed.
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
        """Free the decoded models.

        They stay cached while planning because a device may be in many groups.
        """
        self._members.clear()

    def of(self, device: str) -> ClientModel:
        """Return a device's client model, with its group."""
        group = TrustedModels(self, self._groups.get(device, ()))
        return replace(self.alone(device), group=group)

    def alone(self, device: str) -> ClientModel:
        """Return a device's client model, without its group."""
        if not self._groups:
            return self._load(device)
        name = device.encode()
        return self._members.get(name) or self._members.put(name, self._load(device))

    def member(self, device: str) -> ClientModel:
        """Return a device's client model for use by others, with its update scaled by ``counted``."""
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
class TrustedModels:
    """The trusted models of these devices, in this order, each decoded when iteration reaches it.

    A member may have become untrusted since the group was formed. An update that was shortened in the
    global model is shortened here as well. An update that came too late to be compared is left out.
    """

    models: ClientModels
    devices: tuple[str, ...]

    def __iter__(self) -> Iterator[ClientModel]:
        clients = map(self.models.member, self.devices)
        return (client for client in clients if client.trusted)


def _client_bytes(client: ClientModel) -> int:
    trained = 0 if client.trained is None else client.trained.nbytes
    return trained + (0 if client.sent is None else vector_bytes(client.sent))
