"""What the agent must not lose over power loss, and every way in which it changes.

Each change is a new ``AgentState``, written whole before it is believed: when the disk refuses, the
old one still holds, on disk and in memory.
"""

from typing import TypeVar

import msgspec

from sedge_edge.work import Outcome
from sedge_protocol.journal import Journal
from sedge_protocol.messages import Order
from sedge_protocol.transfer import DEFAULT_CHUNK_BYTES, Manifest

SCHEMA = 1
# Runs whose models stay for `predict`; at 2.3 MB a model any SD card holds them.
MAX_RUNS = 4
# How long to wait after the disk has refused.
DISK_RETRY_S = 30.0

V = TypeVar("V")


class RunState(msgspec.Struct, frozen=True):
    """What the device keeps of one run: hashes of its model, its residual, and the cached blobs."""

    bundle: bytes
    base: bytes
    model: bytes | None = None
    residual: bytes | None = None
    round: int = 0


class Pending(msgspec.Struct, frozen=True):
    """An update that has no receipt yet."""

    run: str
    round: int
    blob: bytes


class AgentState(msgspec.Struct, frozen=True):
    """Everything that must survive, committed as one.

    Since schema 1: ``boot`` and ``coordinator_boot`` keep old frames from being played back; ``orders``
    (by run) and ``outbox`` are the work at hand; ``chunk_bytes`` is what the link was last found to
    carry.
    """

    boot: int = 0
    coordinator_boot: int = 0
    runs: dict[str, RunState] = msgspec.field(default_factory=dict[str, RunState])
    orders: dict[str, Order] = msgspec.field(default_factory=dict[str, Order])
    outbox: tuple[Pending, ...] = ()
    chunk_bytes: int = DEFAULT_CHUNK_BYTES

    def pending(self, run: str, number: int) -> Pending | None:
        """The update of a round that still waits for its receipt."""
        return next((p for p in self.outbox if (p.run, p.round) == (run, number)), None)

    def blobs(self) -> set[bytes]:
        """Every blob that is still needed."""
        named = {m.sha256 for order in self.orders.values() for m in manifests(order)}
        named |= {waiting.blob for waiting in self.outbox}
        for run in self.runs.values():
            named |= {h for h in (run.bundle, run.base, run.model, run.residual) if h is not None}
        return named


class Memory:
    """The state and its journal. Every method raises ``StorageError``, and then changes nothing."""

    def __init__(self, journal: Journal[AgentState]) -> None:
        self._journal = journal
        self.state = journal.load() or AgentState()

    def start(self, at_least: int) -> None:
        """A new start of the agent: its count grows, and is at least the given number."""
        self._save(boot=max(self.state.boot + 1, at_least))

    def heard(self, coordinator_boot: int) -> None:
        """The coordinator's newest start."""
        if coordinator_boot > self.state.coordinator_boot:
            self._save(coordinator_boot=coordinator_boot)

    def accept(self, order: Order) -> None:
        """Take an order on, in place of an older one of its run."""
        self._save(orders={**self.state.orders, order.run: order})

    def drop(self, run: str) -> None:
        """The order of a run will not be done."""
        self._save(orders=_without(self.state.orders, run))

    def finish(self, order: Order, outcome: Outcome) -> None:
        """An order is done: its model and residual are the device's now, its update waits."""
        known = RunState(
            order.bundle.sha256, order.model.sha256, outcome.model, outcome.residual, order.round
        )
        runs = {**_without(self.state.runs, order.run), order.run: known}
        waiting = Pending(order.run, order.round, outcome.update)
        others = [p for p in self.state.outbox if (p.run, p.round) != (order.run, order.round)]
        self._save(
            orders=_without(self.state.orders, order.run),
            runs=dict(list(runs.items())[-MAX_RUNS:]),
            outbox=(*others, waiting),
        )

    def deliver(self, waiting: Pending) -> None:
        """An update has its receipt, good or bad."""
        self._save(outbox=tuple(p for p in self.state.outbox if p != waiting))

    def cut(self, chunk_bytes: int) -> None:
        """The size of chunks from now on."""
        if chunk_bytes != self.state.chunk_bytes:
            self._save(chunk_bytes=chunk_bytes)

    def _save(self, **changes: object) -> None:
        state = msgspec.structs.replace(self.state, **changes)
        self._journal.commit(state)
        self.state = state


def manifests(order: Order) -> list[Manifest]:
    """The blobs that an order needs."""
    named = [order.bundle, order.model]
    return named if order.patch_blob is None else [*named, order.patch_blob]


def _without(table: dict[str, V], key: str) -> dict[str, V]:
    return {name: value for name, value in table.items() if name != key}
