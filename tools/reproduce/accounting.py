"""Bytes as FedPURIN counts them, in addition to those on the wire, computed when each round opens.

A device's last upload and its next start are planned again from the coordinator's store, of which they are
a pure function.
"""

from dataclasses import dataclass

from sedge_cloud.runs.client_models import ClientModels
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.strategies.fedpurin import FedPURIN, accounted_bytes


@dataclass(frozen=True)
class Mean:
    """Bytes of a device in a round, on average: ``up`` in it, ``down`` for the start that follows it."""

    round: int
    up: float
    down: float


def accounted(store: Store, devices: tuple[str, ...]) -> Mean | None:
    """The last round's cost by that count, seen from the open one; None for another strategy."""
    run, run_store = Run(store.runs()[0], store), RunStore(store)
    strategy = run.strategy
    context = run_store.context(run)
    if not isinstance(strategy, FedPURIN) or context.round == 0:
        return None
    clients = ClientModels(run, run_store, context.groups, lambda device: None)
    up = down = 0.0
    for device in devices:
        client = clients.of(device)
        assignment = strategy.plan(context, client)
        found = accounted_bytes(context, client, assignment, strategy.beta)
        up, down = up + found.up, down + found.down
    return Mean(context.round, round(up / len(devices)), round(down / len(devices)))
