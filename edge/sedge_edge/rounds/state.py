"""What the agent must not lose over power loss, and every way in which it changes.

Each change is a new ``AgentState``, written whole before it is believed: when the disk refuses, the
old one still holds, on disk and in memory.

What is kept of a run is worth as much as the run: a head that never left the device, a residual, a model
to predict with. So a run makes room for another only when none of the device's last ``MAX_RUNS`` orders
was its own, and the log says so; as long as there is none such, the newcomer's orders are declined.
"""

from typing import TypeVar

import msgspec

from sedge_edge.rounds.global_model import named, versions
from sedge_edge.rounds.storage import Record
from sedge_edge.training.job import Kept, Outcome
from sedge_protocol.errors import SedgeError
from sedge_protocol.wire.frame import next_incarnation
from sedge_protocol.wire.messages import EVALUATE, Order
from sedge_protocol.wire.transfer import DEFAULT_CHUNK_BYTES

SCHEMA = 1
# Runs that the device keeps something of: a bundle and, at most, five vectors of the model's size each.
MAX_RUNS = 16
# How long to wait after the disk has refused.
DISK_RETRY_S = 30.0
# An order that was under way in so many starts of the agent, and in none of them to its end, is given up:
# once may be a power cut, three times are the job itself, most likely its need for memory.
MAX_STARTS = 3

V = TypeVar("V")


class TooManyRuns(SedgeError):
    """Every run that is kept is in use; an order of another one cannot be done."""


class TooManyStarts(SedgeError):
    """An order was begun in several starts of the agent, and none of them lived to its end."""


class RunState(msgspec.Struct, frozen=True):
    """What the device knows of one run: its bundle, the decoded global model ``base``, what it has kept."""

    bundle: bytes
    base: bytes
    round: int = 0
    kept: Kept = Kept()


class Pending(msgspec.Struct, frozen=True):
    """An update that has no receipt yet."""

    run: str
    round: int
    blob: bytes


class Attempt(msgspec.Struct, frozen=True):
    """In how many starts an order was begun and not ended; ``incarnation`` is the last of them."""

    round: int
    model_hash: bytes
    starts: int
    incarnation: int


class AgentState(msgspec.Struct, frozen=True):
    """Everything that must survive, committed as one.

    Since schema 1: ``incarnation`` and ``coordinator_incarnation`` keep old frames from being played back;
    ``orders`` (by run) and ``outbox`` are the work at hand; ``chunk_bytes`` is what the link was last found
    to carry; ``recent`` are the runs of the last ``MAX_RUNS`` orders, oldest first; ``attempts`` (by run)
    are at jobs that have not come to an end; ``key`` is the fingerprint of the keys that both
    incarnations belong to, empty in older journals.
    """

    incarnation: int = 0
    coordinator_incarnation: int = 0
    runs: dict[str, RunState] = msgspec.field(default_factory=dict[str, RunState])
    orders: dict[str, Order] = msgspec.field(default_factory=dict[str, Order])
    outbox: tuple[Pending, ...] = ()
    chunk_bytes: int = DEFAULT_CHUNK_BYTES
    recent: tuple[str, ...] = ()
    attempts: dict[str, Attempt] = msgspec.field(default_factory=dict[str, Attempt])
    key: bytes = b""

    def pending(self, run: str, number: int) -> Pending | None:
        """The update of a round that still waits for its receipt."""
        return next((p for p in self.outbox if (p.run, p.round) == (run, number)), None)

    def kept_for(self, order: Order) -> Kept:
        """What the device keeps of the order's run; nothing for another bundle."""
        run = self.runs.get(order.run)
        return Kept() if run is None or run.bundle != order.bundle.sha256 else run.kept

    def succeeds(self, order: Order) -> bool:
        """Whether what an order's job has left is still of use: for it, or for a newer one that came since.

        Not once the run was cancelled, or goes on with another bundle.
        """
        now = self.orders.get(order.run)
        if now is None or now.round < order.round:
            return False
        return now.round == order.round or now.bundle.sha256 == order.bundle.sha256

    def attempt(self, order: Order) -> Attempt | None:
        """What is known of this very order's starts; another coordinator may use its run's name again."""
        found = self.attempts.get(order.run)
        same = found is not None and (found.round, found.model_hash) == (
            order.round,
            order.model_hash,
        )
        return found if same else None

    def hopeless(self, order: Order) -> bool:
        """Whether the order has ended the agent, and not the other way round, too often."""
        found = self.attempt(order)
        return (
            found is not None
            and found.starts >= MAX_STARTS
            and found.incarnation != self.incarnation
        )

    def unused(self) -> str | None:
        """Of the runs that seem to be over the one that was worked for longest ago; None without any."""
        used = {*self.recent, *self.orders}
        return next((run for run in self.runs if run not in used), None)

    def blobs(self) -> set[bytes]:
        """Every blob, vector, mask and patch that is still needed."""
        found = {waiting.blob for waiting in self.outbox}
        for order in self.orders.values():
            found.update(manifest.sha256 for manifest in named(order))
            found.update(versions(order))
        for run in self.runs.values():
            found.update((run.bundle, run.base))
            found |= run.kept.names()
        return found


class Memory:
    """The state and its journal. Every method raises ``StorageError``, and then changes nothing."""

    def __init__(self, journal: Record[AgentState]) -> None:
        self._journal = journal
        self.state = journal.load() or AgentState()

    def start(self, clock_s: int, key: bytes) -> None:
        """A new start of the agent: its count grows, and is at least the clock's, if that can be right.

        With new keys both counts begin anew: no old frame has their MAC.
        """
        state = self.state
        if state.key not in (b"", key):
            state = msgspec.structs.replace(state, incarnation=0, coordinator_incarnation=0)
        incarnation = next_incarnation(state.incarnation, clock_s)
        self._save(
            incarnation=incarnation, coordinator_incarnation=state.coordinator_incarnation, key=key
        )

    def heard(self, coordinator_incarnation: int) -> None:
        """The coordinator's present start; an older one than before has proved that it is alive (Peer)."""
        if coordinator_incarnation != self.state.coordinator_incarnation:
            self._save(coordinator_incarnation=coordinator_incarnation)

    def accept(self, order: Order) -> str | None:
        """Take an order on, in place of an older one of its run; gives the run that makes room for it.

        Raises ``TooManyRuns`` for one of a new run while all that are kept are in use.
        """
        state, runs, gone = self.state, self.state.runs, None
        recent = (*state.recent, order.run)[-MAX_RUNS:]
        held = runs.keys() | state.orders.keys()
        if order.run not in held and len(held) >= MAX_RUNS:
            gone = state.unused()
            if gone is None:
                self._save(recent=recent)
                where = f"run {order.run}, round {order.round}"
                found = f"found {len(held)} other runs, each with one of the last {MAX_RUNS} orders"
                raise TooManyRuns(f"{where}: {found}, expected one that seems to be over")
            runs = _without(runs, gone)
        self._save(orders={**state.orders, order.run: order}, runs=runs, recent=recent)
        return gone

    def begin(self, order: Order) -> None:
        """An order's job begins; counted once for each start of the agent."""
        state, known = self.state, self.state.attempt(order)
        if known is not None and known.incarnation == state.incarnation:
            return
        starts = 1 if known is None else known.starts + 1
        used = {*state.recent, *state.orders}
        attempts = {run: attempt for run, attempt in state.attempts.items() if run in used}
        attempts[order.run] = Attempt(order.round, order.model_hash, starts, state.incarnation)
        self._save(attempts=attempts)

    def interrupt(self, run: str) -> None:
        """A run's job was stopped on purpose: it says nothing against its order."""
        self._save(attempts=_without(self.state.attempts, run))

    def drop(self, run: str) -> None:
        """The order of a run will not be done."""
        state = self.state
        self._save(orders=_without(state.orders, run), attempts=_without(state.attempts, run))

    def refuse(self, run: str) -> None:
        """The order of a run will not be done, nor will it when it comes again."""
        self._save(orders=_without(self.state.orders, run))

    def finish(self, order: Order, outcome: Outcome) -> None:
        """An order is done: what it left is the device's now, its update waits, a newer order stays.

        An evaluation with another bundle leaves all as it was: the last training's is the run's own.
        """
        known = self.state.runs.get(order.run)
        if order.task == EVALUATE and known is not None and known.bundle != order.bundle.sha256:
            known = msgspec.structs.replace(known, round=order.round)
        else:
            known = RunState(order.bundle.sha256, order.model_hash, order.round, outcome.kept)
        runs = {**_without(self.state.runs, order.run), order.run: known}
        waiting = Pending(order.run, order.round, outcome.update)
        others = [p for p in self.state.outbox if (p.run, p.round) != (order.run, order.round)]
        done = (order.run, order.round)
        self._save(
            orders={run: o for run, o in self.state.orders.items() if (run, o.round) != done},
            runs=runs,
            outbox=(*others, waiting),
            attempts=_without(self.state.attempts, order.run),
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


def _without(table: dict[str, V], key: str) -> dict[str, V]:
    return {name: value for name, value in table.items() if name != key}
