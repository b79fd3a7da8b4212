"""The core of a device's agent. It is single-threaded and keeps its state on disk.

    order    it is accepted, and committed before anything else happens
      -> fetching   the blobs that it names and that are not on disk yet (fetching.py)
      -> working    one job runs at a time, in a worker thread (job.py); its start is committed
      -> outbox     the outcome is committed: own model, residual, and the update to send
      -> uploading  the update is offered again after every reconnection (outbox.py)
      -> receipt    the coordinator has stored or rejected the update, which is deleted only now

Every arrow is one commit (state.py), so a crash repeats at most the step that it interrupted. A job saves a
checkpoint only if a gate, the budget or a shutdown stops it. ``now`` is monotonic seconds. Effects are
returned only after the state that they announce is on disk.
"""

import logging
from collections.abc import Callable

import numpy as np

from sedge_edge.jobs.global_model import repeats, steps_left
from sedge_edge.jobs.job import Outcome
from sedge_edge.jobs.storage import Blobs, DurableValue, FolderVectors, Vectors
from sedge_edge.rounds.admission import OrderAdmission
from sedge_edge.rounds.budget import Budget
from sedge_edge.rounds.collecting import Collecting
from sedge_edge.rounds.disk_waits import DiskWaits
from sedge_edge.rounds.effects import AgentEffect as AgentEffect
from sedge_edge.rounds.effects import FetchedChunk, KeepCertificate, SpanEnd
from sedge_edge.rounds.effects import StartJob as StartJob
from sedge_edge.rounds.fetching import Fetches
from sedge_edge.rounds.handshake import Handshake
from sedge_edge.rounds.handshake import Identity as Identity
from sedge_edge.rounds.keyring import Keyring
from sedge_edge.rounds.outbox import Outbox
from sedge_edge.rounds.places import Permits
from sedge_edge.rounds.resuming import job_for
from sedge_edge.rounds.retention import Retention
from sedge_edge.rounds.state import AgentState, StateStore
from sedge_edge.rounds.taken_settings import OwnSettings, TakenSettings
from sedge_edge.rounds.waiting import Gate, GateWatch
from sedge_protocol.errors import RemoteError, SedgeError, StorageError
from sedge_protocol.wire import messages, topics
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import Frame, open_frame
from sedge_protocol.wire.messages import Message, Order
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.signing_keys import SigningKeys

# How soon to retry a job after a gate has closed, and so how often gates can make it write a checkpoint.
GATE_RETRY_S = 60.0


class Agent:
    """The device's core. Methods return the effects that they cause, in order.

    ``vectors`` stores the vectors that never leave the device. By default they are stored among the
    blobs. ``gate`` returns which gates are closed (waiting.py). ``retention`` chooses the runs to delete.
    ``settings`` contains the device's own limits; None sets no limits. ``permits`` says which URLs may be
    requested; None permits none. Unless ``pinned`` is None, every order needs a policy signed by one of
    these keys. Without ``keyring``, the device uses the identity's keys throughout.
    """

    def __init__(
        self,
        identity: Identity,
        blobs: Blobs,
        journal: DurableValue[AgentState],
        rng: np.random.Generator,
        incarnation: int,
        vectors: Vectors | None = None,
        gate: Gate | None = None,
        retention: Retention | None = None,
        permits: Permits | None = None,
        pinned: SigningKeys | None = None,
        keyring: Keyring | None = None,
        settings: OwnSettings | None = None,
    ) -> None:
        self.identity = identity
        self._keyring = keyring
        self.blobs = blobs
        self.vectors: Vectors = FolderVectors(blobs) if vectors is None else vectors
        self._store = StateStore(journal, blobs.settle)
        self._store.start(incarnation, identity.keys.fingerprint)
        fleet, device, hello = identity.fleet, identity.device, identity.hello
        keys = keyring.keys if keyring else identity.keys
        heard = self.state.coordinator_incarnation
        self.peer = Peer(
            topics.up(fleet, device), keys.up, keys.down, self.state.incarnation, heard
        )
        self._down = topics.down(fleet, device)
        self._hint = topics.hint(fleet, topics.shard_of(device))
        self._fetches = Fetches(
            fleet, blobs, self.vectors.has, self.peer, rng, hello.memory_mb, permits
        )
        self._outbox = Outbox(self._store, blobs, self.peer, rng)
        self.handshake = Handshake(hello, self.peer, rng, lambda: self.state.runs)
        self.budget = Budget(settings and settings.own.limits, self.state.spent, incarnation)
        self._settings = TakenSettings(settings, self._store, self.handshake, self.budget)
        self._store.spent = self.budget.commit
        given = self._store, blobs, self.peer, self.budget, frozenset(hello.codecs), pinned
        self._admission = OrderAdmission(*given)
        self._declines = self._admission.declines
        self._waiting = GateWatch(self.budget.gate(gate))
        counters, retention = self.peer.counters, retention or Retention()
        self._disk, self._connected = DiskWaits(counters), False
        self._collecting = Collecting(self._store, blobs, retention, counters)
        self._working: Order | None = None

    @property
    def state(self) -> AgentState:
        """The state on disk."""
        return self._store.state

    @property
    def welcomed(self) -> bool:
        """Whether the coordinator has answered this connection's hello with a welcome."""
        return self._connected and self.handshake.welcomed

    @property
    def idle(self) -> bool:
        """Whether there are neither orders to work on nor updates to send."""
        return not self.state.orders and not self.state.outbox

    def will(self) -> tuple[str, bytes]:
        """Begin a new session. Returns the topic and the payload of the session's MQTT will."""
        return self.handshake.will()

    def goodbye(self) -> list[AgentEffect]:
        """Tell the coordinator that the device is disconnecting on purpose."""
        return [self.handshake.goodbye()]

    def connected(self, now: float, max_packet_bytes: int) -> list[AgentEffect]:
        """Handle a new connection: send the hello, request missing blobs, offer pending updates."""
        self._connected = True
        self.handshake.connected(now, max_packet_bytes)
        self._outbox.connected(now, max_packet_bytes)
        return [*self._fetches.connected(now), *self.poll(now)]

    def other_password(self) -> str | None:
        """Switch to the other keys, because the broker refuses these. Returns their password, or None."""
        if self._keyring is None or not self._keyring.turn():
            return None
        keys = self._keyring.keys
        self.peer.change_keys(keys.up, keys.down)
        return keys.password

    def disconnected(self) -> None:
        """Handle the loss of the connection. A running job continues without it."""
        self._connected = False
        self._fetches.disconnected()
        self._outbox.disconnected()

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        due = [self._waiting.timer(), None if self._waiting.closed.link else self._outbox.timer()]
        waits = self._disk.disk_at
        due += [self._fetches.timer(), self._disk.job_at] if waits is None else [waits]
        due.append(self.handshake.timer() if self._connected else None)
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float) -> list[AgentEffect]:
        """Do what is due now. A full disk stops new work, but not uploads, because they make room."""
        self.budget.passed(now)
        self._waiting.look(now)
        effects = self._say(now)
        if not self._waiting.closed.link:
            effects += self._outbox.poll(now)
        if not self._disk.waits(now):
            effects += [*self._work(now), *self._say(now)]
        return effects

    def _say(self, now: float) -> list[AgentEffect]:
        """Send a hello if one is due, including one that reports that work has stopped or resumed."""
        no_room = "" if self._working else self._fetches.refused
        why = self._waiting.reason(self._disk.why or no_room)
        effects: list[AgentEffect] = [*self.handshake.waits(why, now)]
        if effects and not self._disk.why:
            try:
                self._store.waits(why)
            except StorageError as exc:
                effects.append(self._disk.refused(exc, now))
        return [*effects, *self.handshake.poll(now)] if self._connected else effects

    def _work(self, now: float) -> list[AgentEffect]:
        """Fetch blobs and start a job. A closed gate stops both, because no job could start."""
        try:
            if self._disk.disk_at is not None:
                self._store.probe()
            self._disk.works(bool(self.state.orders))
            if self.budget.owes:
                self._store.probe()
        except StorageError as exc:
            return [self._disk.refused(exc, now)]
        steps: tuple[Callable[[], list[AgentEffect]], ...] = (
            lambda: [*self._declines.impossible()],
            lambda: [*self._fetches.sync(() if self._waiting.closed else self._orders(), now)],
            lambda: self._next_job(self._orders(), now),
        )
        effects: list[AgentEffect] = [] if self._working else [*self._collecting.poll(now)]
        for step in steps:  # a download that does not fit must not block a job that is ready
            try:
                effects += step()
            except StorageError as exc:
                effects.append(self._disk.refused(exc, now))
        return [*effects, *self._fetches.poll(now)]

    def _orders(self) -> list[Order]:
        return self.state.continued_orders(self.blobs.has)

    def receive(self, topic: str, payload: bytes, now: float) -> list[AgentEffect]:
        """Handle a message from the broker. Malformed ones are counted and logged but change nothing."""
        self.budget.passed(now)
        self.budget.received(len(payload))
        effects: list[AgentEffect] = []
        try:
            if topic == self._hint:
                self.handshake.hinted(now)
                return self.poll(now)
            if topic != self._down:
                return self._chunk(open_frame(payload, topic, None), now)
            opened = self.peer.open(payload, topic)
            if opened is None:
                return [*self.handshake.replayed(payload, now)]
            frame, message = opened
            if message is None:
                return self._chunk(frame, now)
            is_new = frame.incarnation != self.state.coordinator_incarnation
            if is_new:  # a coordinator that has restarted may have lost its sessions
                self.handshake.begin(now)
            # A welcome is handled even if the disk is full, so that a hello can report it.
            if isinstance(message, messages.Welcome):
                self.peer.agree(message.versions)
                self._outbox.limit(message.max_packet)
                effects += self.handshake.welcome(message, now)
                if self._keyring is not None:
                    self._keyring.welcomed()
            if is_new and not self.budget.start():
                return effects
            self._store.heard_coordinator(frame.incarnation)
            if is_new or isinstance(message, messages.Welcome | Order):
                self._outbox.woken(now)
                self._fetches.woken(now)
            overtaken = frame.seq < self.peer.window.top
            if isinstance(message, Order) and (overtaken or not self.handshake.ever_welcomed):
                # The newer frame may have been the order's receipt or cancellation. Before the first
                # welcome since our start, we cannot know whether there was a newer frame.
                text = "dropped an order that a newer message overtook; it may be sent again"
                return [Note(logging.INFO, text)]
            return [*effects, *self._message(frame, message, now), *self.poll(now)]
        except RemoteError as exc:
            self.peer.counters["refused"] += 1
            note = Note(logging.WARNING, f"dropped a frame on {topic}: {exc}")
            order = messages.unreadable_order(exc) if self.handshake.ever_welcomed else None
            return [note] if order is None else [note, self._declines.message(order, exc)]
        except StorageError as exc:  # log the error only once for all the chunks in flight
            if not self._disk.waits(now):
                effects += [self._disk.refused(exc, now), *self._say(now)]
            return effects

    def finished(self, outcome: Outcome, now: float) -> list[AgentEffect]:
        """Commit the outcome of the current job, which has finished, and offer its update.

        If a newer order of the run has arrived, the update is late but still kept. Otherwise a device that
        is slower than a round would never contribute.
        """
        order = self._job_ended()
        try:
            if order is not None and self.state.still_wants(order):
                self._store.finish(order, outcome, steps_left(order, self.vectors.has) or ())
                self._fetches.places.received -= outcome.report.http_bytes
        except StorageError as exc:  # the order is kept, and the job will be repeated
            return [self._disk.refused_job(exc, now), *self._say(now)]
        self._disk.job_done()
        return self.poll(now)

    def failed(self, error: SedgeError, now: float) -> list[AgentEffect]:
        """Decline the order of the current job, which has failed. After a disk error, retry it instead."""
        done = self._job_ended()
        if isinstance(error, StorageError):
            return [self._disk.refused_job(error, now), *self._say(now)]
        self._disk.job_done()
        where = f"run {done.run}, round {done.round}: " if done else ""
        order = self.state.orders.get(done.run) if done else None
        note = Note(logging.ERROR, f"{where}{error}")
        if done is None or order is None or not repeats(order, done):
            return [note, *self.poll(now)]
        try:
            effects: list[AgentEffect] = [*self._declines.give_up(order, error)]
        except StorageError as exc:
            return [note, self._disk.refused(exc, now), *self._say(now)]
        return [*effects, *self.poll(now)]

    def has_examples(self, num_train: int, num_test: int, now: float) -> list[AgentEffect]:
        """Announce how many examples the device has now."""
        return [*self.handshake.has_examples(num_train, num_test, now)]

    def interrupted(self, checkpoint: bytes | None = None) -> list[AgentEffect]:
        """Record that the current job was stopped on purpose. It will continue from ``checkpoint``."""
        order = self._job_ended()
        try:
            if order is not None:
                self._store.interrupt(order, checkpoint)
        except StorageError as exc:
            return [Note(logging.ERROR, str(exc))]
        return []

    def _job_ended(self) -> Order | None:
        order, self._working = self._working, None
        self._collecting.job_ended()
        self.budget.works(False)
        return order

    def _message(self, frame: Frame, message: Message, now: float) -> list[AgentEffect]:
        match message:
            case messages.Welcome():
                return [*self._settings.welcomed(message, now)]
            case Order():
                return [*self._admission.order(message)]
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
            case messages.Renew() if self._keyring is not None:
                answer = self._keyring.answer(message.point, self.identity.hello.version)
                text = "renewing the secret; the current one stays valid until the new one is used"
                return [Note(logging.INFO, text), self.peer.message(answer)]
            case messages.Joined() if message.certificate and self.identity.hello.certificate:
                return [KeepCertificate(message.certificate)]
            case messages.Refusal():
                text = f"the coordinator refuses: {message.reason}: {message.detail}"
                return [Note(logging.ERROR, text)]
            case _:
                raise RemoteError(f"{type(message).__name__} is not a message for a device")

    def _cancel(self, message: messages.Cancel) -> list[AgentEffect]:
        order = self.state.orders.get(message.run)
        if order is None or message.round not in (0, order.round):
            return []
        self._store.drop(message.run)
        return [Note(logging.INFO, f"run {message.run}: cancelled: {message.reason}")]

    def _receipt(self, message: messages.Committed | messages.Reject) -> list[AgentEffect]:
        waiting = self.state.pending(message.run, message.round)
        if waiting is None or waiting.blob != message.sha256:
            return []
        self._store.remove_update(waiting)
        self._disk.job_at = None  # deleting the update may have made room for a waiting job
        where = f"run {message.run}, round {message.round}"
        if isinstance(message, messages.Committed):
            late = " (late)" if message.late else ""
            return [Note(logging.INFO, f"{where}: update stored by the coordinator{late}")]
        return [Note(logging.ERROR, f"{where}: update rejected: {message.reason} {message.detail}")]

    def _chunk(self, frame: Frame, now: float) -> list[AgentEffect]:
        effects = self._fetches.chunk(frame, now)
        return [*effects, *self.poll(now)] if effects else []

    def fetched(self, part: FetchedChunk | SpanEnd, now: float) -> list[AgentEffect]:
        """Handle an HTTP response to a ``FetchSpan``: a chunk, or the end of the span."""
        self.budget.passed(now)
        if isinstance(part, FetchedChunk):
            self.budget.received(len(part.data))
        try:
            effects = self._fetches.fetched(part, now)
        except StorageError as exc:
            return [*self._fetches.places.halt(), self._disk.refused(exc, now), *self._say(now)]
        return [*effects, *self.poll(now)] if effects or isinstance(part, SpanEnd) else []

    def _next_job(self, orders: list[Order], now: float) -> list[AgentEffect]:
        """Start the oldest order whose blobs are all on disk and whose attempts are not used up."""
        if self._working is not None or now < (self._disk.job_at or 0.0):
            return []
        self._disk.job_at = None
        effects: list[AgentEffect] = []
        for order in orders:
            if self.state.attempts_exhausted(order):
                self._store.refuse(order.run)
                effects += self._declines.exhausted(order)
            elif self._waiting.closed:
                self._disk.job_at = now + GATE_RETRY_S
                return effects
            elif self._fetches.missing(order):
                continue
            elif (impossible := self._admission.impossible(order)) is not None:
                effects += self._declines.give_up(order, impossible)
            else:
                self._store.begin(order)
                self._working = order
                self._disk.job_begins()
                self.budget.works(True)
                http_bytes = self._fetches.places.received
                job, notes = job_for(order, self.state, self.blobs, self.vectors, http_bytes)
                return [*effects, *notes, StartJob(job)]
        return effects
