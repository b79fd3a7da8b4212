"""What must hold whatever happens, judged from what was seen: the invariants of docs/developing.md.

The judge sees frames where they are sent and where they reach a device, every commit of a device's journal,
every training, and in the end the coordinator's rows. It decodes updates and adds them up by itself.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from tests.hunt.training import SoftmaxTrainer

from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.run import StrategyState
from sedge_cloud.store.database import Store
from sedge_cloud.store.leases import ProcessRow
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import RoundReceipts, UpdateRow
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.jobs.storage import Vectors
from sedge_edge.rounds.state import AgentState
from sedge_protocol.codec import decode
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import HEADER, Kind, open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Committed, Message, Order, Reject, decode_body
from sedge_protocol.wire.topics import down, up
from sedge_protocol.wire.transfer import CREDIT
from sedge_protocol.wire.update import Report, decode_update


class Violation(AssertionError):
    """An invariant that did not hold."""


@dataclass(frozen=True)
class Made:
    """An update as its device made it; ``sent`` is its vector (n,) decoded, ``left`` the residual (n,)."""

    round: int
    report: Report
    sent: Theta
    left: Theta


class Judge:
    """Sees what happens in one run of devices with these keys; raises ``Violation``."""

    def __init__(
        self, run: str, layout: Layout, keys: Mapping[str, DeviceKeys], now: Callable[[], float]
    ) -> None:
        self._run, self._layout, self._keys, self._now = run, layout, keys, now
        self.adds_up = True  # whether the run's model is the mean of updates, all elements exact
        nothing = np.zeros(layout.size, np.float32)
        # Of each device: its journal with the residual (n,) of that time, and what else its disk may have.
        self._journal = {name: (AgentState(), nothing) for name in keys}
        self._on_disk = {name: [journal] for name, journal in self._journal.items()}
        self._made: dict[tuple[str, bytes], Made] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._told: set[tuple[str, int, bytes]] = set()
        self._committed: set[tuple[str, int, bytes]] = set()
        self._models: dict[int, bytes] = {}
        self._thetas: dict[int, Theta] = {}
        self._closed: dict[int, frozenset[str]] = {}
        self._chunks: dict[str, Counter[tuple[bytes, int]]] = defaultdict(Counter)
        self._up = {self._topic(up, name): name for name in keys}
        self._down = {self._topic(down, name): name for name in keys}

    def require(self, invariant: str, holds: bool, text: str) -> None:
        if not holds:
            raise Violation(f"{invariant}: {text}")

    # The link.

    def sent(self, send: Send) -> None:
        """A frame leaves its sender."""
        if send.topic in self._up and send.payload[3] == Kind.CHUNK:
            head = HEADER.unpack_from(send.payload)
            self._chunks[self._up[send.topic]][head[7], head[8]] += 1
        elif send.topic in self._down:
            name = self._down[send.topic]
            message = self._opened(name, send.payload)
            if isinstance(message, Order) and message.run == self._run:
                known = self._models.setdefault(message.round, message.model_hash)
                text = f"round {message.round} begins from another model than it did"
                self.require("I6", known == message.model_hash, text)
            elif isinstance(message, Committed):
                self._answered(name, message)

    def told(self, name: str, payload: bytes) -> None:
        """A frame reaches a device, whole or not."""
        try:
            message = self._opened(name, payload)
        except Exception:
            return  # damaged, or of another
        if isinstance(message, Committed | Reject):
            self._told.add((name, message.round, message.sha256))

    # The devices.

    def tries(self, name: str, state: AgentState) -> None:
        """A journal is about to be replaced."""
        before, left = self._journal[name]
        run, old = state.runs.get(self._run), before.runs.get(self._run)
        if old is not None:
            self.require(
                "I4", run is not None and run.round >= old.round, f"{name}'s round goes back"
            )
        order = state.orders.get(self._run)
        if order is not None and run is not None:
            text = f"{name} takes round {order.round} after it has done round {run.round}"
            self.require("I4", order.round >= run.round, text)
        for gone in set(before.outbox) - set(state.outbox):
            text = f"{name} forgets its update of round {gone.round} without a receipt"
            self.require("I3", (name, gone.round, gone.blob) in self._told, text)
        for waiting in set(state.outbox) - set(before.outbox):
            left = self._made[name, waiting.blob].left
        self._on_disk[name].append((state, left))

    def committed(self, name: str) -> None:
        """A journal has been replaced, for good."""
        self._journal[name] = self._on_disk[name][-1]
        del self._on_disk[name][:-1]

    def remembers(self, name: str, state: AgentState | None) -> None:
        """A device starts from this journal: what it committed last, or tried since.

        What it tried is not flushed by being read: a power cut may yet undo it.
        """
        known = self._on_disk[name]
        found = [at for at, (tried, _) in enumerate(known) if tried == (state or AgentState())]
        text = f"{name} starts from a journal that it had not committed last"
        self.require("I6", bool(found), text)
        del known[found[-1] + 1 :]
        self._journal[name] = known[-1]

    def trained(
        self, name: str, job: Job, outcome: Outcome, trainer: SoftmaxTrainer, vectors: Vectors
    ) -> None:
        blob = vectors._blobs.read(outcome.update)  # type: ignore[attr-defined]  # pyright: ignore
        report, payload = decode_update(blob)
        nothing = np.zeros(self._layout.size, np.float32)
        sent = decode(bytes(payload), self._layout.size).dense() if payload else nothing
        residual = outcome.kept.residual
        left = nothing if residual is None else vectors.read(residual, self._layout)
        _, before = self._journal[name]
        order = job.order
        self._blobs[outcome.update] = blob
        if order.task != "train":
            self._made[name, outcome.update] = Made(order.round, report, sent, before)
            return
        self._made[name, outcome.update] = Made(order.round, report, sent, left)
        if self.adds_up:
            learned = trainer.ended - trainer.began
            text = f"{name}, round {order.round}: what it learned is neither sent nor kept"
            self.require("residual", _same(sent + left, learned + before, learned), text)
            start = hashlib.sha256(trainer.began.astype("<f4").tobytes()).digest()
            text = f"{name}, round {order.round}: it trains from another model than its order's"
            self.require("I4", start == order.model_hash, text)

    # The coordinator.

    def watch(self, store: Store) -> None:
        """A process starts: what its rows name is there, and it does not write once it was replaced."""
        for sha256 in Garbage(store).named_blobs():
            self.require("I2", not store.missing_reason(sha256), "a row names a blob that is gone")
        db, commit, join = store._db, store._db.commit, store.join
        joins = False

        def joined(*given: Any) -> ProcessRow:  # who was replaced begins anew
            nonlocal joins
            joins = True
            try:
                return join(*given)
            finally:
                joins = False

        def committed(*, quiet: bool = False) -> None:
            token = store.token
            if token is not None and not joins:
                rows = db.execute("SELECT token FROM processes").fetchall()
                self.require("fence", not rows or (token,) in rows, "a replaced process writes")
            commit(quiet=quiet)

        setattr(db, "commit", committed)  # noqa: B010
        setattr(store, "join", joined)  # noqa: B010

    def closed(self, summary: Summary) -> None:
        """A round closes, or somebody says once more that it has."""
        devices = frozenset(device.device for device in summary.devices)
        known = self._closed.setdefault(summary.round, devices)
        self.require("I6", known == devices, f"round {summary.round} was closed with others")
        self.require("I1", len(devices) == len(summary.devices), "a device counts twice")
        self.require("I9", not summary.declined, "a device has declined that never did")

    def at_end(self, store: Store, faults: int) -> None:
        """The run has ended after so many faults: look at what is stored."""
        rows = [row for row in store.rounds(self._run) if not row.open]
        run = next(row for row in store.runs() if row.run == self._run)
        self.require("I8", run.status == "finished", f"the run has ended as {run.status}")
        summaries = {
            row.round: msgspec.msgpack.decode(row.summary or b"", type=Summary) for row in rows
        }
        updates = {
            row.round: store.received(self._run, row.round) for row in store.rounds(self._run)
        }
        named = store.named_blobs()
        for row in rows:
            self.closed(summaries[row.round])
            if row.round in self._models:
                text = f"round {row.round} began from another model than its orders say"
                self.require("I6", row.model_hash == self._models[row.round], text)
            received = updates[row.round]
            for update in received.receipts:
                self._stored(store, update, named)
            counted = {update.device for update in received.counted}
            closed = sorted(self._closed[row.round])
            text = f"round {row.round}: updates of {sorted(counted)}, counted are {closed}"
            late = frozenset(summaries[row.round].late)
            self.require("I1", late | counted == late | self._closed[row.round], text)
        for name, number, sha256 in self._committed & self._told:
            kept = {(update.device, update.blob) for update in updates[number].receipts}
            text = f"{name} has a receipt for round {number} that the store has not"
            self.require("I2", (name, sha256) in kept, text)
        self._add_up(
            store, summaries, updates, msgspec.msgpack.decode(run.state, type=StrategyState)
        )
        self._sent_again(faults)

    def _answered(self, name: str, message: Committed) -> None:
        number, sha256 = message.round, message.sha256
        self._committed.add((name, number, sha256))
        made = self._made.get((name, sha256))
        text = f"an update for round {number} is taken from {name}, which made none"
        self.require("I9", made is not None and made.round == number, text)
        on_time = self._closed.get(number)
        if not message.late and on_time is not None:
            self.require(
                "I1", name in on_time, f"{name} is on time for round {number}, which was closed"
            )

    def _stored(self, store: Store, update: UpdateRow, named: Collection[bytes]) -> None:
        name, number = update.device, update.round
        made = self._made.get((name, update.blob))
        text = f"round {number} has an update of {name}, which made none"
        self.require("I9", made is not None and made.round == number, text)
        if not update.rejected and update.blob in named:
            kept = store.update_blob(update.blob)
            text = f"the update of {name} for round {number} is not as it was sent"
            self.require("I2", kept == self._blobs[update.blob], text)

    def _add_up(
        self,
        store: Store,
        summaries: Mapping[int, Summary],
        updates: Mapping[int, RoundReceipts],
        state: StrategyState,
    ) -> None:
        """Each model is the one before and the mean of what counted in between, once each."""
        last = decode(store.blobs.read(state.model), self._layout.size).dense()
        self.require("I5", bool(np.isfinite(last).all()), "the model is not finite")
        if not self.adds_up:
            return
        expected = self._first
        for number in sorted(summaries):
            summary = summaries[number]
            if summary.task != "train":
                continue
            row_updates = {
                u.device: u for u in updates[number].receipts if not u.rejected and not u.late
            }
            for late in updates[number].late:
                if late.device in summary.late:
                    row_updates.setdefault(late.device, late)
            text = f"round {number} counts late updates of {summary.late} that it has not"
            self.require("I1", set(summary.late) <= row_updates.keys(), text)
            made = [self._made[u.device, u.blob] for u in row_updates.values()]
            total = sum(one.report.num_examples for one in made)
            if total:
                for one in made:
                    share = one.report.num_examples / total
                    expected = (expected + share * one.sent).astype(np.float32)
        text = "the model is not the sum of what the rounds counted"
        self.require("I1", _same(expected, last, last - self._first), text)

    @property
    def _first(self) -> Theta:
        return np.random.default_rng(1).normal(0, 0.1, self._layout.size).astype(np.float32)

    def _sent_again(self, faults: int) -> None:
        for name, chunks in self._chunks.items():
            again = sum(chunks.values()) - len(chunks)
            most = 2 * CREDIT * faults
            self.require("I10", again <= most, f"{name} sent {again} chunks again, at most {most}")

    def _opened(self, name: str, payload: bytes) -> Message | None:
        topic = next(topic for topic, device in self._down.items() if device == name)
        frame = open_frame(payload, topic, self._keys[name].down)
        return None if frame.kind is Kind.CHUNK else decode_body(frame.kind, frame.body)

    def _topic(self, of: Callable[[str, str], str], name: str) -> str:
        return of("sim", name)


def _same(one: Theta, other: Theta, change: Theta) -> bool:
    """Whether two vectors (n,) differ by rounding alone, next to what changes them."""
    return float(np.linalg.norm(one - other)) <= 1e-3 * float(np.linalg.norm(change)) + 1e-6
