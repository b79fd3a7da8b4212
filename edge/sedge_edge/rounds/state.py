"""The agent's durable state, and all changes that it can undergo.

Each change is a new ``AgentState``, which is committed to disk before it takes effect in memory. If the
commit fails, the old state stays in force in both places.

The state that a device keeps for a run cannot be restored: a head that never left the device, a residual, a
model to predict with. So a run is evicted to make room for another only if none of the device's last
``MAX_RUNS`` orders was for it, and the log says so. If there is no such run, orders of new runs are
declined.
"""

from collections.abc import Callable, Collection
from typing import TypeVar

import msgspec

from sedge_edge.jobs.global_model import base_versions, named_blobs, recut, repeats, with_held_steps
from sedge_edge.jobs.job import Kept, Outcome
from sedge_edge.jobs.storage import DurableValue, ReadableBlobs
from sedge_edge.rounds.budget import Spent
from sedge_edge.rounds.frozen_data import frozen_names
from sedge_edge.rounds.run_state import RunState
from sedge_edge.rounds.taken_policies import TakenPolicy, remembered
from sedge_protocol.errors import SedgeError, StorageError
from sedge_protocol.wire.frame import next_incarnation
from sedge_protocol.wire.messages import EVALUATE, MAX_RUNS, Count, Order, Round
from sedge_protocol.wire.refusals import TOO_MANY_RUNS, TOO_MANY_STARTS
from sedge_protocol.wire.transfer import DEFAULT_CHUNK_BYTES
from sedge_protocol.wire.work import Hash, Step

SCHEMA = 3
# How many seconds to wait after a disk write has failed.
DISK_RETRY_S = 30.0
# An order is refused once this many starts of the agent have begun it without finishing it. One may be a
# power cut, but after three the job itself is at fault, most likely because memory runs out.
MAX_STARTS = 3

V = TypeVar("V")


class TooManyRuns(SedgeError):
    """There is no room for another run, because all runs that the device keeps are in use."""


class TooManyStarts(SedgeError):
    """The agent has begun the same order in several starts, and survived none of them."""

    @classmethod
    def of(cls, order: Order) -> "TooManyStarts":
        """Return the error for this order."""
        where = f"run {order.run}, round {order.round}"
        return cls(TOO_MANY_STARTS.format(where=where, starts=MAX_STARTS))


class Pending(msgspec.Struct, frozen=True):
    """An update that has no receipt yet."""

    run: str
    round: int
    blob: bytes


class Attempt(msgspec.Struct, frozen=True):
    """Counts the starts of the agent that have begun an order without finishing it."""

    round: Round
    """The round of the order."""
    model_hash: Hash
    """The model hash of the order, because another coordinator may reuse the run's name."""
    starts: Count
    """The number of starts that have begun the order."""
    incarnation: Count
    """The start count of the last such start."""


class Stopped(msgspec.Struct, frozen=True):
    """Where to continue an order's job that was stopped on purpose."""

    round: Round
    """The round of the order."""
    checkpoint: Hash
    """The blob to continue from."""


class AgentState(msgspec.Struct, frozen=True):
    """Everything that must survive a restart, committed as a whole.

    ``incarnation`` and ``coordinator_incarnation`` prevent the replay of old frames. ``key`` is the
    fingerprint of the keys to which they belong. The pending work consists of the ``orders``, keyed by run,
    and the ``outbox``. ``chunk_bytes`` is the last chunk size that the link could carry. ``recent`` lists
    the runs of the last ``MAX_RUNS`` orders, oldest first. ``attempts`` counts unfinished jobs, also keyed
    by run; the jobs in ``stopped`` can continue from a checkpoint. ``waits`` tells people why no work is
    being done, and ``spent`` counts towards the device's limits. ``policies`` are the ones that allowed
    each run's last order, and ``settings`` are the coordinator's. ``replaced`` maps the ids of replaced
    signing keys to the new public keys.
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
    waits: str = ""
    stopped: dict[str, Stopped] = msgspec.field(default_factory=dict[str, Stopped])
    spent: Spent = Spent()
    policies: dict[str, TakenPolicy] = msgspec.field(default_factory=dict[str, TakenPolicy])
    settings: bytes = b""
    replaced: dict[str, bytes] = msgspec.field(default_factory=dict[str, bytes])

    def pending(self, run: str, number: int) -> Pending | None:
        """Return a round's update if it still awaits its receipt."""
        return next((p for p in self.outbox if (p.run, p.round) == (run, number)), None)

    def newest_bundle(self) -> bytes | None:
        """Return the hash of the last order's bundle, skipping runs that are no longer kept."""
        for run in reversed([*self.runs, *self.orders, *self.recent]):
            if run in self.orders:
                return self.orders[run].bundle.sha256
            if run in self.runs:
                return self.runs[run].bundle
        return None

    def kept_for(self, order: Order) -> Kept:
        """Return the kept state of the order's run, which is empty if it belongs to a different bundle."""
        run = self.runs.get(order.run)
        return Kept() if run is None or not run.goes_on(order) else run.kept

    def still_wants(self, order: Order) -> bool:
        """Return True if the outcome of an order's job is still useful, even if only as a late update.

        The outcome is not useful if the run was cancelled, has continued with a different bundle, or has
        another order of the same round.
        """
        current = self.orders.get(order.run)
        if current is None:
            return False
        newer = current.round > order.round and current.first_bundle == order.first_bundle
        return newer or repeats(current, order)

    def attempt(self, order: Order) -> Attempt | None:
        """Return the attempts at exactly this order, because other orders may reuse the name of its run."""
        last = self.attempts.get(order.run)
        if last is None or (last.round, last.model_hash) != (order.round, order.model_hash):
            return None
        return last

    def attempts_exhausted(self, order: Order) -> bool:
        """Return True if ``MAX_STARTS`` earlier starts began the order without finishing it."""
        last = self.attempt(order)
        return (
            last is not None and last.starts >= MAX_STARTS and last.incarnation != self.incarnation
        )

    def continued_orders(self, has: Callable[[bytes], bool]) -> list[Order]:
        """Return the orders with the steps kept from their runs. ``has`` checks if a blob is on disk."""
        found: list[Order] = []
        for order in self.orders.values():
            run = self.runs.get(order.run)
            if run is not None:
                order = with_held_steps(order, run.base, run.steps, has)
            found.append(order)
        return found

    def evictable(self) -> str | None:
        """Return the least recently used run that seems to be over, or None if there is none."""
        used = {*self.recent, *self.orders}
        return next((run for run in self.runs if run not in used), None)

    def needed(self, blobs: ReadableBlobs) -> set[bytes]:
        """Return the names of all blobs needed, including the frozen data of the bundles in ``blobs``."""
        bundles = [order.bundle.sha256 for order in self.orders.values()]
        bundles += [run.bundle for run in self.runs.values()]
        return self.blobs() | frozen_names(bundles, blobs)

    def blobs(self) -> set[bytes]:
        """Return the names of all blobs, vectors, masks and patches that are still needed."""
        names = {waiting.blob for waiting in self.outbox}
        for order in self.orders.values():
            names.update(manifest.sha256 for manifest in named_blobs(order))
            names.update(base_versions(order))
        for run, stopped in self.stopped.items():
            waiting = self.orders.get(run)
            if waiting is not None and waiting.round == stopped.round:
                names.add(stopped.checkpoint)
        for entry in self.runs.values():
            names.update((entry.bundle, entry.base))
            names.update(step.blob.sha256 for step in entry.steps)
            names.update(step.base_hash for step in entry.steps[:1])
            names |= entry.kept.names()
        return names


class StateStore:
    """The state and its journal. A method that raises ``StorageError`` has changed nothing in memory.

    ``settle`` makes all blobs durable that a commit may name. A commit that failed in its last step may be
    on disk nevertheless, and would take effect after a crash. So the blobs that it names are needed until
    another commit succeeds. ``spent`` returns how much of the limits has been spent, which every commit
    records.
    """

    def __init__(self, journal: DurableValue[AgentState], settle: Callable[[], None]) -> None:
        self._journal = journal
        self._settle = settle
        self._uncertain = set[bytes]()
        self._declined = tuple[bytes, ...]()
        self.state = journal.load() or AgentState()
        self.spent: Callable[[], Spent] = lambda: self.state.spent

    def needed(self, blobs: ReadableBlobs) -> set[bytes]:
        """Return the names of all blobs needed by the state in memory, or by one that may be on disk.

        They include the bundle of the last declined order, because the next order may use the same one.
        """
        declined = {*self._declined, *frozen_names(self._declined, blobs)}
        return self.state.needed(blobs) | self._uncertain | declined

    def start(self, clock_s: int, key: bytes) -> None:
        """Take a new start count.

        It is above the last one, and at least the clock's time if that is plausible. With new keys both
        start counts begin again, because no old frame has a valid MAC under the new keys.
        """
        state = self.state
        if state.key not in (b"", key):
            state = msgspec.structs.replace(state, incarnation=0, coordinator_incarnation=0)
        incarnation = next_incarnation(state.incarnation, clock_s)
        self._save(
            incarnation=incarnation,
            coordinator_incarnation=state.coordinator_incarnation,
            key=key,
            waits="",
        )

    def heard_coordinator(self, coordinator_incarnation: int) -> None:
        """Record the coordinator's start count. ``Peer`` has verified that a lower one is not a replay."""
        if coordinator_incarnation != self.state.coordinator_incarnation:
            self._save(coordinator_incarnation=coordinator_incarnation)

    def waits(self, why: str) -> None:
        """Record why no work is being done."""
        if why != self.state.waits:
            self._save(waits=why)

    def take_settings(self, coded: bytes) -> None:
        """Record new settings from the coordinator."""
        self._save(settings=coded)

    def replace_keys(self, replaced: dict[str, bytes]) -> None:
        """Record replaced signing keys: the new public keys, keyed by the ids of the old ones."""
        if replaced != self.state.replaced:
            self._save(replaced=replaced)

    def probe(self) -> None:
        """Commit only the amounts spent, to record them or to test whether the disk works again."""
        self._save()

    def accept(self, order: Order, policy: TakenPolicy | None = None) -> str | None:
        """Accept an order in place of the run's older one. Returns the run that was evicted for it, if any.

        ``policy`` is the policy that allows the order, if the device requires one. Raises ``TooManyRuns``
        for a new run while all kept runs are in use.
        """
        state, runs, evicted = self.state, self.state.runs, None
        recent = (*state.recent, order.run)[-MAX_RUNS:]
        names = runs.keys() | state.orders.keys()
        if order.run not in names and len(names) >= MAX_RUNS:
            evicted = state.evictable()
            if evicted is None:
                self._save(recent=recent)
                where = f"run {order.run}, round {order.round}"
                text = TOO_MANY_RUNS.format(where=where, runs=len(names), orders=MAX_RUNS)
                raise TooManyRuns(text)
            runs = _without(runs, evicted)
        policies = remembered(state.policies, order.run, policy)
        orders = {**state.orders, order.run: order}
        self._save(orders=orders, runs=runs, recent=recent, policies=policies)
        return evicted

    def recut(self, repeated: Order) -> None:
        """Give a kept order the chunk sizes of the repeated order, but keep chunks that have arrived.

        The link may have changed in the meantime, so that it cannot carry chunks of the old size.
        """
        order = self.state.orders.get(repeated.run)
        if order is None or not repeats(order, repeated):
            return
        again = recut(order, repeated)
        if again != order:
            self._save(orders={**self.state.orders, order.run: again})

    def strike_steps(self, order: Order) -> None:
        """Remove an order's steps and the steps kept from its run, because some of them are wrong."""
        runs, entry = self.state.runs, self.state.runs.get(order.run)
        if entry is not None:
            runs = {**runs, order.run: msgspec.structs.replace(entry, steps=())}
        without = msgspec.structs.replace(order, steps=())
        self._save(orders={**self.state.orders, order.run: without}, runs=runs)

    def begin(self, order: Order) -> None:
        """Record that an order's job is beginning, once per start of the agent."""
        state, last = self.state, self.state.attempt(order)
        if last is not None and last.incarnation == state.incarnation:
            return
        starts = 1 if last is None else last.starts + 1
        used = {*state.recent, *state.orders}
        attempts = {run: attempt for run, attempt in state.attempts.items() if run in used}
        attempts[order.run] = Attempt(order.round, order.model_hash, starts, state.incarnation)
        self._save(attempts=attempts)

    def interrupt(self, order: Order, checkpoint: bytes | None) -> None:
        """Record that a job was stopped on purpose, which does not count as a failed attempt."""
        state = self.state
        stopped = {run: s for run, s in state.stopped.items() if run in state.orders}
        stopped.pop(order.run, None)
        if checkpoint is not None:
            stopped[order.run] = Stopped(order.round, checkpoint)
        self._save(attempts=_without(state.attempts, order.run), stopped=stopped)

    def drop(self, run: str) -> None:
        """Remove the order of a run."""
        state = self.state
        self._save(
            orders=_without(state.orders, run),
            attempts=_without(state.attempts, run),
            stopped=_without(state.stopped, run),
        )

    def decline(self, order: Order) -> None:
        """Remove an order that the device cannot carry out."""
        self.drop(order.run)
        self._declined = (order.bundle.sha256,)

    def refuse(self, run: str) -> None:
        """Remove the order of a run, and remember to refuse it if it is repeated."""
        self._save(orders=_without(self.state.orders, run))

    def finish(self, order: Order, outcome: Outcome, steps: tuple[Step, ...] = ()) -> None:
        """Record that an order is done: store its outcome and queue its update. A newer order is kept.

        ``steps`` lead to the order's global model, unless the model itself is stored. Evaluating a
        different bundle does not change the run's kept state, which belongs to the bundle trained last.
        """
        entry = self.state.runs.get(order.run)
        if order.task == EVALUATE and entry is not None and not entry.goes_on(order):
            entry = msgspec.structs.replace(entry, round=order.round)
        else:
            names = order.bundle.sha256, order.model_hash
            versions = order.first_bundle, outcome.report.layout_hash
            entry = RunState(*names, order.round, outcome.kept, steps, *versions)
        runs = {**_without(self.state.runs, order.run), order.run: entry}
        waiting = Pending(order.run, order.round, outcome.update)
        others = [p for p in self.state.outbox if (p.run, p.round) != (order.run, order.round)]
        done = (order.run, order.round)
        self._save(
            orders={run: o for run, o in self.state.orders.items() if (run, o.round) != done},
            runs=runs,
            outbox=(*others, waiting),
            attempts=_without(self.state.attempts, order.run),
            stopped=_without(self.state.stopped, order.run),
        )

    def remove_update(self, waiting: Pending) -> None:
        """Remove an update whose receipt has arrived, or whose blob is lost."""
        self._save(outbox=tuple(p for p in self.state.outbox if p != waiting))

    def delete_runs(self, names: Collection[str]) -> None:
        """Delete the kept state of runs that have neither an order nor an update."""
        state = self.state
        self._save(
            runs={run: entry for run, entry in state.runs.items() if run not in names},
            attempts={run: attempt for run, attempt in state.attempts.items() if run not in names},
        )

    def set_chunk_bytes(self, chunk_bytes: int) -> None:
        """Set the chunk size to use from now on."""
        if chunk_bytes != self.state.chunk_bytes:
            self._save(chunk_bytes=chunk_bytes)

    def _save(self, **changes: object) -> None:
        state = msgspec.structs.replace(self.state, spent=self.spent(), **changes)
        self._settle()
        try:
            self._journal.commit(state)
        except StorageError:
            self._uncertain |= state.blobs()
            raise
        self._uncertain.clear()
        self.state = state


def _without(table: dict[str, V], key: str) -> dict[str, V]:
    return {name: value for name, value in table.items() if name != key}
