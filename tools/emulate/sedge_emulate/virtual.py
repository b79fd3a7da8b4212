"""One virtual device: the real agent core, with a disk, a link and a life from the plan.

    plan ── power, cuts, full disks ──> VirtualDevice ──> Agent (sedge_edge)
    agent ── Send, Subscribe ──> MemoryBroker       agent ── Work ──> Crew

Without power nothing of the device is left but what its agent had committed. A job ends when the plan
says so in virtual time, whatever this host needs for it; its result is waited for only then. It follows
from the order and from what the device keeps, so workers begin it as soon as the device has its order:
they train while the model is still on its way.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from sedge_edge.agent import Agent, AgentEffect, Identity, Work
from sedge_edge.rounds.global_model import named
from sedge_edge.rounds.state import AgentState
from sedge_edge.training.job import Job
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.attack import NOBODY, AttackConfig
from sedge_emulate.clock import Alarm, Clock
from sedge_emulate.crew import Crew
from sedge_emulate.host import DeviceDisk, HostDisk
from sedge_emulate.link import MemoryBroker, Port
from sedge_emulate.memo import Memo, job_key
from sedge_emulate.meter import Meter
from sedge_emulate.plan import DevicePlan, EventKind
from sedge_emulate.worker import Finished, Request
from sedge_protocol.errors import CodecError, DataError, LocalError, StorageError
from sedge_protocol.wire.effects import Note, Send, Subscribe
from sedge_protocol.wire.messages import Order

# What our brokers take (cloud/mosquitto.conf).
MAX_PACKET_BYTES = 400_000
# From a link to a connection: TCP and MQTT, a few round trips.
CONNECT_S = 0.2


class MemoryRecord:
    """What an agent has committed, in memory: it outlives the device's power, not this process."""

    def __init__(self) -> None:
        self._value: AgentState | None = None

    def load(self) -> AgentState | None:
        """What was last committed."""
        return self._value

    def commit(self, value: AgentState) -> None:
        """Replace the value."""
        self._value = value


@dataclass(frozen=True)
class World:
    """What all virtual devices of a fleet share.

    ``name`` stands for data, trainer and versions in the names of jobs; ``steps`` gives the number of
    training steps of a device's order. ``attack`` says who is hostile.
    """

    clock: Clock
    broker: MemoryBroker
    crew: Crew
    memo: Memo
    disk: HostDisk
    home: Path
    name: bytes
    steps: Callable[[int, Order], int]
    attack: AttackConfig = NOBODY


class VirtualDevice:
    """A device of the fleet, from its first power-on to its leaving."""

    def __init__(self, number: int, identity: Identity, plan: DevicePlan, world: World) -> None:
        self.number = number
        self.identity = identity
        self.plan = plan
        self.meter = Meter()
        self.reboots = -1
        self.cuts = 0
        self._world = world
        self._disk = DeviceDisk(world.disk)
        self._record = MemoryRecord()
        self._port = Port(identity.device, plan.link, self.meter, self._receive)
        self._agent: Agent | None = None
        self._covered = True
        self._life = 0
        self._begun: _Begun | None = None
        self._past: list[_Begun] = []
        self._at_work = False
        self._orders: dict[str, Order] = {}
        self._alarm = Alarm(world.clock, self._poll)
        self._log = logging.getLogger(f"sedge.edge.{identity.device}")
        self._events = plan.events()
        world.broker.add(self._port)
        self._next_event()

    def close(self) -> None:
        """Say goodbye: the run is over."""
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
                case Work():
                    self._work(effect.job)
                case _:
                    broker.unsubscribe(port, effect.topic)
        if self._agent is not None:
            self._look_ahead(self._agent.state)
            self._alarm.set(self._agent.timer())

    def _look_ahead(self, state: AgentState) -> None:
        """Begin the job of an order that has just come, where this host can bring what it needs.

        Should the device come to ask for another job after all, this one was done for nothing.
        """
        if self._at_work or state.orders is self._orders:
            return
        self._orders = state.orders
        for order in state.orders.values():
            if all(self._world.disk.bring(manifest.sha256) for manifest in named(order)):
                self._begin(Job(order, **state.kept_for(order)))
                return

    def _work(self, job: Job) -> None:
        world, begun = self._world, self._begin(job)
        finish = partial(self._finish, job.order, begun.key, begun.future, self._life)
        self._at_work = True
        world.clock.at(world.clock.now + begun.seconds, finish)

    def _begin(self, job: Job) -> "_Begun":
        """The job, unless it was begun already, be it before the power went: no job is done twice."""
        world, order = self._world, job.order
        attack = world.attack.of(self.number)
        key = job_key(world.name, self.identity.device, job, attack)
        if self._begun is not None and self._begun.key == key:
            return self._begun
        self._require_model(order)
        steps = world.steps(self.number, order)
        seconds = self.plan.job_s(order.run, order.round, steps)
        # The worker may find all of this on the host's disk: it stays until the device takes it.
        holds = (order.model_hash, *(manifest.sha256 for manifest in named(order)))
        for name in holds:
            world.disk.hold(name)
        for step in order.steps:  # one that came inside the order is no file yet
            world.disk.bring(step.blob.sha256)
        known = world.memo.find(key)
        if known is None:
            future = world.crew.submit(
                Request(self.number, job, world.home, key, seconds, attack), steps
            )
        else:
            future = Future()
            future.set_result(known)
        begun = _Begun(key, future, seconds, holds)
        self._let_go(begun)
        return begun

    def _require_model(self, order: Order) -> None:
        known = None if self._agent is None else self._agent.state.runs.get(order.run)
        if order.work.keep and known is not None and known.model is None:
            raise LocalError(
                f"round {order.round}: {self.identity.device} is to keep {order.work.keep} of its own "
                "model, which virtual devices keep only where every order asks for it"
            )

    def _let_go(self, coming: "_Begun | None" = None) -> None:
        """Another job, or none, takes the place of the one that was begun: what was for that alone goes.

        A worker may still be at it: it then goes with a later one, once the worker has written its last.
        """
        past = self._past if self._begun is None else [*self._past, self._begun]
        self._begun = coming
        self._past = [begun for begun in past if not begun.future.done()]
        busy = {begun.key for begun in (*self._past, coming) if begun is not None}
        for begun in past:
            if begun.future.done():
                self._clear(begun, begun.key in busy)

    def _clear(self, begun: "_Begun", again: bool) -> None:
        """Let go of a job's files; not of those that it wrote where it is being done ``again``."""
        disk, future = self._world.disk, begun.future
        for name in begun.holds:
            disk.release(name)
        if again or future.cancelled() or future.exception() is not None:
            return
        outcome = future.result().outcome
        # Not what is named by its content: another job may have found it here and count on it.
        for vector in (outcome.model, outcome.residual, outcome.part, outcome.gradient):
            if vector is not None:
                disk.drop(vector)

    def _finish(self, order: Order, key: bytes, future: "Future[Finished]", life: int) -> None:
        """The job's time is over: take its result, if the device that began it is still the same.

        Raises what is this host's fault: its disk, its processes, our own code.
        """
        if life != self._life or self._agent is None:
            return
        self._at_work = False
        now, world = self._world.clock.now, self._world
        if self._disk.full:
            self._do(self._agent.failed(StorageError("disk full (emulated)"), now))
            return
        if not future.done():
            world.crew.flush()
        try:
            finished = future.result()
        except (CodecError, DataError, TrainingDiverged) as exc:
            self._let_go()
            self._do(self._agent.failed(exc, now))
            return
        world.memo.keep(key, finished)
        self._keep(order, finished)
        self._let_go()
        if world.memo.caught_up:
            world.disk.go_live()
        self._do(self._agent.finished(finished.outcome, now))

    def _keep(self, order: Order, finished: Finished) -> None:
        """What the job has left on the host's disk is the device's now."""
        outcome = finished.outcome
        self._disk.write(finished.update)
        for name in (order.model_hash, *outcome.kept):
            self._disk.take(name)


@dataclass(frozen=True)
class _Begun:
    """A job that is being done or is done; ``holds`` are the files that stay for it."""

    key: bytes
    future: "Future[Finished]"
    seconds: float
    holds: tuple[bytes, ...]
