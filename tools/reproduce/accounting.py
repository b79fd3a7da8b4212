"""Computes, when a round opens, the bytes that FedPURIN's paper would count for the previous round.

They are reported in addition to the bytes on the wire. The coordinator's store determines each device's
last upload and next start vector, so both are planned again from it.
"""

from dataclasses import dataclass

from sedge_cloud.runs.client_models import ClientModels
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.strategies.fedpurin import FedPURIN, accounted_bytes


@dataclass(frozen=True)
class Mean:
    """A device's average bytes in a round: ``up`` for the upload, ``down`` for the next start vector."""

    round: int
    up: float
    down: float


def accounted(store: Store, devices: tuple[str, ...]) -> Mean | None:
    """Return the last round's cost as the paper counts it.

    Returns None before the first round ends, and for strategies other than FedPURIN.
    """
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
