"""One virtual device: the real agent core with a disk and a link; the plan decides when it fails.

    plan   ── power, cuts, full disks ──> VirtualDevice ──> Agent (sedge_edge)
    agent  ── Send, Subscribe         ──> MemoryBroker
    agent  ── StartJob                ──> WorkerPool

After a power cut, only the state that the agent has committed is left. A job ends when the plan says so
in virtual time, however long this host takes to compute it. Only at that time does the emulation wait
for its result. A job depends only on the order and on the device's kept state, so a worker can begin it
as soon as the device has its order, while the model is still being transferred in virtual time.
"""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from sedge_edge.agent import Agent, AgentEffect, Identity, StartJob
from sedge_edge.jobs.global_model import named_blobs
from sedge_edge.jobs.job import Job
from sedge_edge.rounds.effects import FetchSpan, KeepCertificate, StopSpan
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_edge.rounds.state import AgentState
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.attack import NOBODY, Attack
from sedge_emulate.meter import Meter
from sedge_emulate.virtual.clock import Alarm, Clock
from sedge_emulate.virtual.disk import DeviceDisk, HostDisk
from sedge_emulate.virtual.link import MemoryBroker, Port
from sedge_emulate.virtual.plan import DevicePlan, EventKind
from sedge_emulate.virtual.result_cache import ResultCache, job_key
from sedge_emulate.workers.pool import WorkerPool
from sedge_emulate.workers.worker import Finished, Request
from sedge_protocol.errors import CodecError, ConfigError, DataError, LocalError, StorageError
from sedge_protocol.wire.effects import Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.messages import Order

# The packet limit of Sedge's brokers (cloud/mosquitto.conf).
MAX_PACKET_BYTES = 400_000
# The time to connect once the link is up: TCP and MQTT take a few round trips.
CONNECT_S = 0.2


class MemoryRecord:
    """Holds an agent's committed state in memory.

    It survives the device's power cuts, but not this process.
    """

    def __init__(self) -> None:
        self._value: AgentState | None = None

    def load(self) -> AgentState | None:
        """Return the last committed state, or None if nothing has been committed yet."""
        return self._value

    def commit(self, value: AgentState) -> None:
        """Replace the committed state."""
        self._value = value


@dataclass(frozen=True)
class World:
    """The objects that all virtual devices of a fleet share.

    ``name`` is a digest of the data, the trainer and the versions; every job key includes it. ``steps``
    returns the number of training steps that an order takes on a device. ``attack`` tells which devices
    are hostile.
    """

    clock: Clock
    broker: MemoryBroker
    pool: WorkerPool
    cache: ResultCache
    disk: HostDisk
    home: Path
    name: bytes
    steps: Callable[[int, Order], int]
    attack: Attack = NOBODY


class VirtualDevice:
    """A device of the fleet, from its first power-on until it leaves."""

    def __init__(self, number: int, identity: Identity, plan: DevicePlan, world: World) -> None:
        self.number = number
        self.identity = identity
        self.plan = plan
        self.meter = Meter()
        self.central: tuple[float, float] | None = None
        self.reboots = -1
        self.cuts = 0
        self._world = world
        self._disk = DeviceDisk(world.disk)
        self._record = MemoryRecord()
        self._port = Port(identity.device, plan.link, self.meter, self._receive)
        self._agent: Agent | None = None
        self._covered = True
        self._life = 0
        self._begun: _StartedJob | None = None
        self._past: list[_StartedJob] = []
        self._at_work = False
        self._orders: dict[str, Order] = {}
        self._alarm = Alarm(world.clock, self._poll)
        self._log = logging.getLogger(f"sedge.edge.{identity.device}")
        self._events = plan.events()
        world.broker.add(self._port)
        self._next_event()

    def close(self) -> None:
        """Send a goodbye, because the run has ended."""
        if self._agent is not None and self._port.up:
            self._do(self._agent.goodbye())

    def _next_event(self) -> None:
        event = next(self._events, None)
        if event is not None:
            self._world.clock.at(event.at_s, partial(self._happen, event.kind))

    def _happen(self, kind: EventKind) -> None:
        match kind:
            case EventKind.POWER_ON:
                self._power_on()
            case EventKind.POWER_OFF | EventKind.LEAVE:
                self._power_off()
            case EventKind.LINK_UP:
                self._covered = True
                self._connect_soon()
            case EventKind.LINK_DOWN:
                self._covered = False
                self._lose_link()
            case EventKind.DISK_FULL:
                self._disk.full = True
            case EventKind.DISK_FREE:
                self._disk.full = False
        if kind is not EventKind.LEAVE:
            self._next_event()

    def _power_on(self) -> None:
        self._life += 1
        self.reboots += 1
        rng = np.random.default_rng([self._world.name[0], self.number, self._life])
        self._agent = Agent(self.identity, self._disk, self._record, rng, 1)
        self._connect_soon()

    def _power_off(self) -> None:
        self._life += 1
        self._agent, self._at_work = None, False
        self._alarm.clear()
        self._world.broker.cut(self._port)

    def _lose_link(self) -> None:
        if self._port.up:
            self.cuts += 1
        self._world.broker.cut(self._port)
        if self._agent is not None:
            self._agent.disconnected()

    def _connect_soon(self) -> None:
        self._world.clock.at(self._world.clock.now + CONNECT_S, partial(self._connect, self._life))

    def _connect(self, life: int) -> None:
        if life == self._life and self._agent is not None and self._covered and not self._port.up:
            self._world.broker.connect(self._port, self._agent.will())
            self._do(self._agent.connected(self._world.clock.now, MAX_PACKET_BYTES))

    def _receive(self, topic: str, frame: bytes) -> None:
        if self._agent is not None:
            self._do(self._agent.receive(topic, frame, self._world.clock.now))

    def _poll(self) -> None:
        if self._agent is not None:
            self._do(self._agent.poll(self._world.clock.now))

    def _do(self, effects: list[AgentEffect]) -> None:
        broker, port = self._world.broker, self._port
        for effect in effects:
            match effect:
                case Send():
                    broker.send_up(port, effect.topic, effect.payload)
                case Subscribe():
                    broker.subscribe(port, effect.topic)
                case Note():
                    self._log.log(effect.level, "%s", effect.text)
                case StartJob():
                    self._work(effect.job)
                case FetchSpan() | StopSpan() | KeepCertificate():
                    raise AssertionError("a virtual fleet has no web server and no certificates")
                case Unsubscribe():
                    broker.unsubscribe(port, effect.topic)
        if self._agent is not None:
            self._look_ahead(self._agent.state)
            self._alarm.set(self._agent.timer())

    def _look_ahead(self, state: AgentState) -> None:
        """Begin the job of an order that has just arrived, if this host has or can get its inputs.

        If the device then asks for a different job, this work is wasted.
        """
        if self._at_work or state.orders is self._orders:
            return
        self._orders = state.orders
        for order in state.orders.values():
            if all(map(self._world.disk.bring, self._named(order))):
                self._begin(Job(order, state.kept_for(order)))
                return

    def _work(self, job: Job) -> None:
        world, begun = self._world, self._begin(job)
        finish = partial(self._finish, job.order, begun.key, begun.future, self._life)
        self._at_work = True
        world.clock.at(world.clock.now + begun.seconds, finish)

    def _begin(self, job: Job) -> "_StartedJob":
        """Begin the job unless it began earlier, perhaps before a power cut: no job is trained twice."""
        world, order = self._world, job.order
        attack = world.attack.of(self.number)
        key = job_key(world.name, self.identity.device, job, attack)
        if self._begun is not None and self._begun.key == key:
            return self._begun
        self._require_model(order)
        steps = world.steps(self.number, order)
        seconds = self.plan.job_s(order.run, order.round, steps)
        # The worker reads these files from the host's disk, so they are held until the device has its own
        # copies.
        holds = (order.model_hash, *self._named(order))
        for name in holds:
            world.disk.hold(name)
        cached = world.cache.find(key)
        if cached is None:
            future = world.pool.submit(
                Request(self.number, job, world.home, key, seconds, attack), steps
            )
        else:
            future = Future()
            future.set_result(cached)
        begun = _StartedJob(key, future, seconds, holds)
        self._let_go(begun)
        return begun

    def _named(self, order: Order) -> Iterator[bytes]:
        """Yield the names of the blobs that a job reads, including frozen data if the bundle has any."""
        yield from (manifest.sha256 for manifest in named_blobs(order))
        facts = bundle_facts(order.bundle.sha256, self._world.disk)
        if facts is not None and facts.frozen is not None:
            yield facts.frozen.blob.sha256

    def _require_model(self, order: Order) -> None:
        state = None if self._agent is None else self._agent.state.runs.get(order.run)
        if order.work.keep and state is not None and state.kept.model is None:
            raise LocalError(
                f"round {order.round}: {self.identity.device} must keep {order.work.keep} of its own "
                "model, which virtual devices do only if every order asks for it"
            )

    def _let_go(self, coming: "_StartedJob | None" = None) -> None:
        """Replace the current job with ``coming``, and release the files that only the old job needed.

        If a worker is still busy with the old job, a later call releases its files, once the worker has
        finished.
        """
        past = self._past if self._begun is None else [*self._past, self._begun]
        self._begun = coming
        self._past = [begun for begun in past if not begun.future.done()]
        busy = {begun.key for begun in (*self._past, coming) if begun is not None}
        for begun in past:
            if begun.future.done():
                self._clear(begun, begun.key in busy)

    def _clear(self, begun: "_StartedJob", again: bool) -> None:
        """Release a job's files. Files that it wrote are kept if the same job is being done ``again``."""
        disk, future = self._world.disk, begun.future
        for name in begun.holds:
            disk.release(name)
        if again or future.cancelled() or future.exception() is not None:
            return
        # Files named by their content are kept, because another job may rely on them.
        own = msgspec.structs.replace(future.result().outcome.kept, mask=None, patch=None)
        for vector in own.names():
            disk.drop(vector)

    def _finish(self, order: Order, key: bytes, future: "Future[Finished]", life: int) -> None:
        """Take a job's result at the virtual time when the job ends, unless the device has restarted since.

        Errors of the host itself, in its disk, its processes or Sedge's code, are raised.
        """
        if life != self._life or self._agent is None:
            return
        self._at_work = False
        now, world = self._world.clock.now, self._world
        if self._disk.full:
            self._do(self._agent.failed(StorageError("disk full (emulated)"), now))
            return
        if not future.done():
            world.pool.flush()
        try:
            finished = future.result()
        except (CodecError, ConfigError, DataError, TrainingDiverged) as exc:
            self._let_go()
            self._do(self._agent.failed(exc, now))
            return
        world.cache.keep(key, finished)
        self.central = finished.central or self.central
        self._keep(order, finished)
        self._let_go()
        if world.cache.caught_up:
            world.disk.go_live()
        self._do(self._agent.finished(finished.outcome, now))

    def _keep(self, order: Order, finished: Finished) -> None:
        """Make the device a holder of the files that the job left on the host's disk."""
        self._disk.write(finished.update)
        for name in (order.model_hash, *finished.outcome.kept.names()):
            self._disk.take(name)


@dataclass(frozen=True)
class _StartedJob:
    """A started job, which may already be done. ``holds`` names the files to release after it."""

    key: bytes
    future: "Future[Finished]"
    seconds: float
    holds: tuple[bytes, ...]
