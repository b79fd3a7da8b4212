"""The agent: a device's side of every round, as a state machine without I/O.

    order    accepted, and committed before anything else happens
      -> fetching   the blobs it names that are not on disk yet (fetching.py)
      -> working    one job at a time, in the shell's worker thread (work.perform); its start is committed
      -> outbox     the outcome committed: own model, residual, and the update to send
      -> uploading  offered again after every reconnection (outbox.py)
      -> receipt    the coordinator stored it, or never will; only then is the update dropped

Every arrow is one commit (state.py), so a crash repeats at most the step it fell into. ``now`` is
monotonic seconds. Effects go out after the state they speak of is on disk.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeAlias

import msgspec
import numpy as np

from sedge_edge.rounds.fetching import Fetches
from sedge_edge.rounds.global_model import BrokenSteps, needed
from sedge_edge.rounds.outbox import Outbox
from sedge_edge.rounds.presence import Greeting
from sedge_edge.rounds.state import (
    DISK_RETRY_S,
    MAX_RUNS,
    MAX_STARTS,
    AgentState,
    Memory,
    TooManyRuns,
    TooManyStarts,
)
from sedge_edge.rounds.storage import Blobs, FolderVectors, Record, Vectors
from sedge_edge.training.job import Job, Outcome
from sedge_protocol.errors import RemoteError, SedgeError, StorageError
from sedge_protocol.wire import effects, messages, topics
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import HEADER, Frame, open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Message, Order
from sedge_protocol.wire.peer import Peer

# Topic, MQTT properties and our own header beside a chunk.
PACKET_OVERHEAD = HEADER.size + 4096
# As the coordinator does of a device: whoever can publish here is not to fill the log.
WARN_EVERY_S = 3600.0
# A job whose end finds the disk full was hours of a battery for nothing: each waits twice as long as the
# one before, up to this.
LONGEST_REST_S = 1800.0


@dataclass(frozen=True)
class Work:
    """Do this job in the worker, then call ``finished`` or ``failed``."""

    job: Job


AgentEffect: TypeAlias = effects.Effect | Work


@dataclass(frozen=True)
class Identity:
    """Who the device is and what it says of itself in its hello."""

    device: str
    fleet: str
    keys: DeviceKeys
    hello: messages.Hello


class Agent:
    """The device's core. Every method that can cause something returns the effects, in order.

    ``vectors`` are what never travels; without them they lie among the blobs.
    """

    def __init__(
        self,
        identity: Identity,
        blobs: Blobs,
        journal: Record[AgentState],
        rng: np.random.Generator,
        incarnation: int,
        vectors: Vectors | None = None,
    ) -> None:
        self.identity = identity
        self.blobs = blobs
        self.vectors: Vectors = FolderVectors(blobs) if vectors is None else vectors
        self._memory = Memory(journal)
        self._memory.start(incarnation, identity.keys.fingerprint)
        fleet, device = identity.fleet, identity.device
        self.peer = Peer(
            topics.up(fleet, device),
            identity.keys.up,
            identity.keys.down,
            self.state.incarnation,
            self.state.coordinator_incarnation,
        )
        self._down = topics.down(fleet, device)
        self._fetches = Fetches(fleet, blobs, self.vectors.has, self.peer, rng)
        self._outbox = Outbox(self._memory, blobs, self.peer, rng)
        self._greeting = Greeting(identity.hello, self.peer, rng)
        self._connected = False
        self._working: Order | None = None
        self._not_before = self._warn_at = 0.0
        self._work_at: float | None = None
        self._rest_s = 0.0
        self._needed: set[bytes] | None = None
        self._collect_after = 0.0

    @property
    def state(self) -> AgentState:
        """What is on disk."""
        return self._memory.state

    @property
    def welcomed(self) -> bool:
        """Whether the coordinator has answered this connection's hello."""
        return self._connected and self._greeting.answered

    @property
    def idle(self) -> bool:
        """Whether there is neither an order nor an update left."""
        return not self.state.orders and not self.state.outbox

    def will(self) -> tuple[str, bytes]:
        """Topic and payload that the broker is to publish when it loses us; begins a new session."""
        return self._greeting.will()

    def goodbye(self) -> list[AgentEffect]:
        """Say that we leave on purpose."""
        return [self._greeting.goodbye()]

    def connected(self, now: float, max_packet_bytes: int) -> list[AgentEffect]:
        """The link is up: say hello, ask for what is missing, offer what is waiting."""
        self._connected = True
        self._greeting.begin(now)
        self._outbox.connected(now, max_packet_bytes - PACKET_OVERHEAD)
        return [*self._fetches.connected(now), *self.poll(now)]

    def disconnected(self) -> None:
        """The link is down; work goes on without it."""
        self._connected = False
        self._fetches.disconnected()
        self._outbox.disconnected()

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = [self._outbox.timer()]
        due += [self._not_before] if self._not_before else [self._fetches.timer(), self._work_at]
        if self._connected:
            due.append(self._greeting.timer())
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> list[AgentEffect]:
        """Everything that is due now. A full disk stops new work, not what makes room: the uploads."""
        found: list[AgentEffect] = [*self._greeting.poll(now)] if self._connected else []
        found += self._outbox.poll(now)
        if now < self._not_before:
            return found
        self._not_before = 0.0
        orders = list(self.state.orders.values())
        steps: tuple[Callable[[], list[AgentEffect]], ...] = (
            lambda: [*self._fetches.sync(orders, now)],
            lambda: self._start_work(orders, now),
        )
        found += self._collect(now)
        for step in steps:  # no room for a download is no reason not to work on what is here
            try:
                found += step()
            except StorageError as exc:
                found += self._wait_for_disk(exc, now)
        return [*found, *self._fetches.poll(orders, now)]

    def receive(self, topic: str, payload: bytes, now: float) -> list[AgentEffect]:
        """A message from the broker. Bad bytes are counted and noted, and change nothing."""
        try:
            if topic != self._down:
                return self._chunk(open_frame(payload, topic, None), now)
            opened = self.peer.open(payload, topic)
            if opened is None:
                return self._unheard(payload, now)
            frame, message = opened
            if message is None:
                return self._chunk(frame, now)
            self._memory.heard(frame.incarnation)
            overtaken = frame.seq < self.peer.window.top
            if isinstance(message, Order) and (overtaken or not self._greeting.greeted):
                # What overtook it may have been its receipt or its cancellation; and until the first
                # welcome of this start nobody can say what has.
                return [Note(logging.INFO, "dropped an overtaken order; it comes again if wanted")]
            return [*self._message(frame, message, now), *self.poll(now)]
        except RemoteError as exc:
            self.peer.counters["refused"] += 1
            return [Note(logging.WARNING, f"dropped a frame on {topic}: {exc}")]
        except StorageError as exc:  # once for all the chunks that are on their way
            return [] if now < self._not_before else self._wait_for_disk(exc, now)

    def finished(self, outcome: Outcome, now: float) -> list[AgentEffect]:
        """The job at hand is done: commit what it left, then offer the update.

        A newer order of its run may have come meanwhile. What is done then comes late, and counts for
        less; but else a device that needs longer than a round would never come to anything.
        """
        order, self._working, self._needed = self._working, None, None
        try:
            if order is not None and self.state.succeeds(order):
                self._memory.finish(order, outcome)
        except StorageError as exc:  # the order stands, and is done again when the disk is back
            return self._rest(exc, now)
        self._rest_s = 0.0
        return self.poll(now)

    def failed(self, error: SedgeError, now: float) -> list[AgentEffect]:
        """The job at hand cannot be done: tell the coordinator, unless the disk may yet recover."""
        done, self._working, self._needed = self._working, None, None
        if isinstance(error, StorageError):
            return self._rest(error, now)
        where = f"run {done.run}, round {done.round}: " if done else ""
        found: list[AgentEffect] = [Note(logging.ERROR, f"{where}{error}")]
        order = self.state.orders.get(done.run) if done else None
        if done is not None and order is not None and order.round == done.round:
            try:
                found += self._give_up(order, error)
            except StorageError as exc:
                return [*found, *self._wait_for_disk(exc, now)]
        return [*found, *self.poll(now)]

    def interrupted(self) -> list[AgentEffect]:
        """The job at hand was stopped on purpose; the order is still there for the next start."""
        order, self._working, self._needed = self._working, None, None
        try:
            if order is not None:
                self._memory.interrupt(order.run)
        except StorageError as exc:
            return [Note(logging.ERROR, str(exc))]
        return []

    def _unheard(self, payload: bytes, now: float) -> list[AgentEffect]:
        """A sound frame that the replay window refused: said, if a coordinator may speak in vain."""
        known, incarnation = self.peer.window.incarnation, HEADER.unpack_from(payload)[5]
        if (
            incarnation >= known or now < self._warn_at
        ):  # the same start: a broker has repeated a frame
            return []
        self._warn_at = now + WARN_EVERY_S
        text = (
            f"the coordinator is not heard: its start count {incarnation} is below {known}, "
            "which it had before. If its state was wiped, restart this agent; otherwise "
            "somebody repeats old frames"
        )
        return [Note(logging.WARNING, text)]

    def _give_up(self, order: Order, error: SedgeError) -> list[AgentEffect]:
        """The order as it stands cannot be done: without its steps, or not at all."""
        if isinstance(error, BrokenSteps):
            self._memory.accept(msgspec.structs.replace(order, steps=()))
            text = f"run {order.run}, round {order.round}: fetching the whole model instead"
            return [Note(logging.WARNING, text)]
        self._memory.drop(order.run)
        return [self._decline(order, error)]

    def _decline(self, order: Order, error: SedgeError) -> AgentEffect:
        reason = type(error).__name__
        decline = messages.Decline(order.run, order.round, reason, str(error)[:1000])
        return self.peer.message(decline)

    def _message(self, frame: Frame, message: Message, now: float) -> list[AgentEffect]:
        match message:
            case messages.Welcome():
                return [*self._greeting.welcome(message, now)]
            case Order():
                return self._order(message)
            case messages.Cancel():
                return self._cancel(message)
            case messages.Have():
                self._outbox.have(frame.transfer, message, now)
                return []
            case messages.Busy():
                self._outbox.busy(frame.transfer, message, now)
                return []
            case messages.Committed() | messages.Reject():
                return self._receipt(message)
            case messages.Refusal():
                text = f"the coordinator refuses: {message.reason} {message.detail}"
                return [Note(logging.ERROR, text)]
            case _:
                raise RemoteError(f"{type(message).__name__} is not for a device")

    def _order(self, order: Order) -> list[AgentEffect]:
        known = self.state.orders.get(order.run)
        done = self.state.pending(order.run, order.round)
        if done is not None or (known is not None and known.round == order.round):
            return []  # the coordinator asks again; the upload's own retries answer it
        if self.state.hopeless(order):  # it has not heard our decline
            return self._refuse(order)
        if order.step:  # journaled without: from here on it is a blob like others
            if order.steps and sha256(order.step).digest() == order.steps[-1].blob.sha256:
                self.blobs.write(order.step)
            order = msgspec.structs.replace(order, step=b"")
        try:
            gone = self._memory.accept(order)
        except TooManyRuns as exc:
            return [Note(logging.ERROR, str(exc)), self._decline(order, exc)]
        found: list[AgentEffect] = []
        if gone is not None:
            text = f"run {gone} is forgotten, with its model: none of the last {MAX_RUNS} orders was its"
            found.append(Note(logging.WARNING, text))
        text = f"run {order.run}, round {order.round}: {order.task}"
        return [*found, Note(logging.INFO, text)]

    def _cancel(self, message: messages.Cancel) -> list[AgentEffect]:
        order = self.state.orders.get(message.run)
        if order is None or message.round not in (0, order.round):
            return []
        self._memory.drop(message.run)
        return [Note(logging.INFO, f"run {message.run}: cancelled: {message.reason}")]

    def _receipt(self, message: messages.Committed | messages.Reject) -> list[AgentEffect]:
        waiting = self.state.pending(message.run, message.round)
        if waiting is None or waiting.blob != message.sha256:
            return []
        self._memory.deliver(waiting)
        self._work_at = None  # its bytes are room for a job that had none
        where = f"run {message.run}, round {message.round}"
        if isinstance(message, messages.Committed):
            late = " (late)" if message.late else ""
            return [Note(logging.INFO, f"{where}: update stored by the coordinator{late}")]
        text = f"{where}: update rejected: {message.reason} {message.detail}"
        return [Note(logging.ERROR, text)]

    def _chunk(self, frame: Frame, now: float) -> list[AgentEffect]:
        found = self._fetches.chunk(frame, now)
        return [*found, *self.poll(now)] if found else []

    def _collect(self, now: float) -> list[AgentEffect]:
        """Delete the blobs that nothing needs any more; a file that cannot be deleted stops nothing."""
        needed = self.state.blobs()
        # A job may be writing blobs that no state names yet.
        if self._working is not None or needed == self._needed or now < self._collect_after:
            return []
        try:
            self.blobs.collect(needed, 0.0)
        except StorageError as exc:
            self._collect_after = now + DISK_RETRY_S
            self.peer.counters["storage_errors"] += 1
            return [Note(logging.ERROR, str(exc))]
        self._needed = needed
        return []

    def _start_work(self, orders: list[Order], now: float) -> list[AgentEffect]:
        """Begin the oldest order whose blobs are all here, and that has not ended the agent too often."""
        if self._working is not None or now < (self._work_at or 0.0):
            return []
        self._work_at = None
        found: list[AgentEffect] = []
        for order in orders:
            if self.state.hopeless(order):
                found += self._refuse(order)
            elif all(self.blobs.has(m.sha256) for m in needed(order, self.vectors.has)):
                self._memory.begin(order)
                self._working = order
                return [*found, *self._job(order)]
        return found

    def _refuse(self, order: Order) -> list[AgentEffect]:
        """An order that the agent does not survive: not another time, so that the other runs go on."""
        self._memory.refuse(order.run)
        where = f"run {order.run}, round {order.round}"
        text = f"{where}: the agent was killed or lost power in each of {MAX_STARTS} attempts at it"
        error = TooManyStarts(f"{text}, expected one to end; is there enough memory?")
        return [Note(logging.ERROR, str(error)), self._decline(order, error)]

    def _job(self, order: Order) -> list[AgentEffect]:
        """The order with what the device itself has kept of its run."""
        found: list[AgentEffect] = []
        kept = self.state.kept_for(order)
        for what, name in kept.items():
            # What fails its hash on reading is set aside, and is then no longer there.
            if name is not None and not self.vectors.has(name):
                kept[what] = None
                text = f"run {order.run}: the device's own {what} is damaged; going on without it"
                found.append(Note(logging.ERROR, text))
        return [*found, Work(Job(order, **kept))]

    def _rest(self, error: StorageError, now: float) -> list[AgentEffect]:
        """The disk refused what a job has left, or what it needs: the job was for nothing."""
        self._rest_s = min(max(DISK_RETRY_S, 2 * self._rest_s), LONGEST_REST_S)
        self._work_at = now + self._rest_s
        return self._wait_for_disk(error, now)

    def _wait_for_disk(self, error: StorageError, now: float) -> list[AgentEffect]:
        """The disk refused: nothing was lost; try again in half a minute."""
        self._not_before = now + DISK_RETRY_S
        self.peer.counters["storage_errors"] += 1
        return [Note(logging.ERROR, str(error))]
