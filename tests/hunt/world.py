"""Agents and coordinators joined by a hostile link, under a virtual clock, on disks that forget.

Nothing here stands in for the product but the wire, the clock, what disks keep, and the training. A machine
is killed, or loses its power, at any call by which it changes a file or a row, and between any two effects.
Where two processes serve the fleet, one of them may stand still at such a call for longer than its lease.
``judge.py`` says what must hold.
"""

import heapq
import math
import shutil
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from paho.mqtt.client import topic_matches_sub
from tests.fleet import EMPTY_PROGRAM, Crash, bundle_of
from tests.hunt.chance import Chance
from tests.hunt.disk import Disks
from tests.hunt.judge import Judge
from tests.hunt.training import CLASSES, INPUTS, LAYOUT, SoftmaxTrainer, data_of

from sedge_cloud import company as companies
from sedge_cloud.admin.runs import start_run
from sedge_cloud.company import Company
from sedge_cloud.config import RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed
from sedge_cloud.processes.membership import Membership
from sedge_cloud.recorder import Recorder
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.sqlite import Sqlite
from sedge_edge.agent import Agent, Identity, StartJob
from sedge_edge.jobs.job import Job
from sedge_edge.rounds import state as agent_state
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.training.job import CODECS, WorkerContext, run_job
from sedge_protocol.errors import SedgeError, StorageError
from sedge_protocol.host import blobs as blob_files
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.effects import Send, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Decline, Hello
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.topics import ITSELF, all_up, cloud, down, hint, shard_of, up

FLEET, RUN = "sim", "run"
DEVICES = ("d0", "d1", "d2")
MAX_PACKET = 16_000  # bytes, the least that is served: models and updates have several chunks then
EPOCH = 1.8e9  # the wall clock at the virtual 0
FAULTS_UNTIL_S, ENDS_UNTIL_S, LOOK_S = 120.0, 4000.0, 5.0
LINK = {"drop": 0.04, "double": 0.03, "damage": 0.02, "late": 0.03, "replay": 0.02, "cut": 0.008}


@dataclass
class Machine:
    """A device, or a process of the coordinator: what runs on it while it is up."""

    name: str
    folder: Path
    up: bool = False
    subscriptions: set[str] = field(default_factory=set[str])
    connected: bool = False
    still: bool = False  # it has been stopped, and goes on later
    life: int = 0


@dataclass
class Device(Machine):
    """A device and its agent."""

    agent: Agent = field(init=False)


class Link:
    """What ``Company`` asks of a link: this one is always up."""

    up = is_settled = True
    subscriptions: tuple[str, ...] = ()


@dataclass
class Process(Machine):
    """A process of the coordinator."""

    store: Store = field(init=False)
    core: Coordinator = field(init=False)
    company: Company | None = None
    recorder: Recorder = field(init=False)
    link: Link = field(default_factory=Link)
    reload_at: float = 0.0


class KeptJournal(Journal[AgentState]):
    """A journal whose commits the judge sees."""

    def __init__(self, device: str, folder: Path, judge: Judge) -> None:
        super().__init__(folder / "journal", AgentState, SCHEMA)
        self._device, self._judge, self._blobs = device, judge, folder / "blobs"

    def load(self) -> AgentState | None:
        """What is on the disk after a start."""
        value = super().load()
        self._judge.remembers(self._device, value)
        for waiting in () if value is None else value.outbox:
            text = f"{self._device} has lost its update of round {waiting.round}"
            self._judge.require("I3", (self._blobs / waiting.blob.hex()).exists(), text)
        return value

    def commit(self, value: AgentState) -> None:
        """Replace the value."""
        self._judge.tries(self._device, value)
        super().commit(value)
        self._judge.committed(self._device, value)


def lay(folder: Path, config: RunConfig) -> None:
    """A coordinator's folder with a run, and the bundle that it is of."""
    # The program is a name only: the simulation trains in numpy.
    made = bundle_of(LAYOUT, {"gradient": EMPTY_PROGRAM}, INPUTS, CLASSES, name="softmax")
    init = np.random.default_rng(1).normal(0, 0.1, LAYOUT.size).astype(np.float32)
    bundles.save(folder / "bundle", made, init)
    store = open_folder(folder / "cloud", durable=False)
    start_run(store, RUN, folder / "bundle", config)
    for name in DEVICES:
        store.add_device(name, secret_of(name))
    store.require_fleet(FLEET)
    store.close()


def secret_of(device: str) -> bytes:
    """A device's secret."""
    return device.encode().ljust(32, b".")


class World:
    """A fleet on a copy of the folder that ``lay`` made, served by so many ``processes``."""

    def __init__(self, folder: Path, laid: Path, chance: Chance, processes: int = 1) -> None:
        shutil.copytree(laid, folder, dirs_exist_ok=True)
        self.folder, self.chance, self.now = folder, chance, 0.0
        self.trace: list[str] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = self._starts = self._depth = 0
        self._acting: Machine | None = None
        self._heard: list[Send] = []  # what an eavesdropper has
        self.deaf: dict[str, float] = {}  # until when nothing reaches a device
        keys = {name: DeviceKeys.of(secret_of(name)) for name in DEVICES}
        self.judge = Judge(RUN, LAYOUT, keys, lambda: self.now)
        self.disks = Disks(lambda: EPOCH + self.now, self._called)
        self._bundle, _ = bundles.load(folder / "bundle")
        self.devices = {name: Device(name, folder / name) for name in DEVICES}
        self.processes = [Process(f"cloud{i}", folder / "cloud") for i in range(processes)]
        self._machines: list[Machine] = [*self.processes, *self.devices.values()]

    @contextmanager
    def used(self) -> Generator["World"]:
        """The world's clock and disks in place of this machine's."""
        clock = SimpleNamespace(time=lambda: EPOCH + self.now, monotonic=lambda: self.now)
        with pytest.MonkeyPatch.context() as patch, self.disks.used():
            patch.setattr(Sqlite, "clock", property(lambda db: repr(EPOCH + self.now)))
            patch.setattr(companies, "time", clock)
            patch.setattr(blob_files, "time", clock)
            # A device that dies in three starts of one job declines it, which is another ending.
            patch.setattr(agent_state, "MAX_STARTS", 10**6)
            try:
                for machine in self._machines:
                    self._boot(machine)
                yield self
            finally:
                self._acting = None
                for process in self.processes:
                    self._close(process)

    # Time.

    def run(self) -> None:
        """Let time pass until the run has ended, and judge it."""
        while not self.ended():
            self.judge.require("I8", self.now < ENDS_UNTIL_S, "the run has not ended")
            self.turn()
        self.chance.is_over = True
        # That the second process takes its shards interrupts, too.
        self.judge.at_end(self._audited(), len(self.chance.struck) + len(self.processes) - 1)

    def turn(self) -> None:
        """Let time pass to what comes next."""
        self.chance.is_over |= self.now >= FAULTS_UNTIL_S
        due = [(self._due(machine), machine) for machine in self._machines if self._runs(machine)]
        first = min((at for at, _ in due), default=self.now + LOOK_S)
        first = min(max(first, self.now + 0.01), self.now + LOOK_S)
        if self._queue and self._queue[0][0] <= first:
            at, _, action = heapq.heappop(self._queue)
            self.now = max(self.now, at)
            action()
            return
        self.now = first
        for at, machine in due:
            if at <= first:
                self._act(machine, partial(self._step, machine))

    def _due(self, machine: Machine) -> float:
        """When a machine next wants to do something."""
        if isinstance(machine, Device):
            return machine.agent.timer() or math.inf
        assert isinstance(machine, Process)
        due = min(machine.core.timer() or math.inf, machine.reload_at)
        return due if machine.company is None else min(due, machine.company.timer())

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time; first in, first out among equals."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._order, action))

    def ended(self) -> bool:
        """Whether the store says so, and every device knows what became of its updates."""
        if not all(self._runs(machine) for machine in self._machines):
            return False
        states = [device.agent.state for device in self.devices.values()]
        if any(state.outbox or state.orders for state in states):
            return False
        return self.processes[0].store.runs()[0].status != "running"

    def restart(self, machine: Machine) -> None:
        """A machine's processes end, and begin again."""
        self._ends(machine)
        self._boot(machine)

    # What befalls machines.

    def _runs(self, machine: Machine) -> bool:
        return machine.up and not machine.still

    def _act(self, machine: Machine, call: Callable[[], Sequence[object]]) -> None:
        """Let a machine do something, and what follows from it; it may end in the middle."""
        if not self._runs(machine):
            return
        before, self._acting, life = self._acting, machine, machine.life
        try:
            for effect in call():
                self._called(between=True)
                self._carry_out(machine, effect)
        except (Crash, StorageError, sqlite3.ProgrammingError) as exc:
            self._acting = None
            if machine.life != life:
                return  # it was gone already, and its database closed
            if isinstance(exc, sqlite3.ProgrammingError):
                raise
            self._note(f"{machine.name} ends: {exc}")
            if exc.args == ("power",):
                self._power_fails(machine)
            self._ends(machine)
            self.later(0.5, partial(self._boot, machine))
        finally:
            self._acting = before

    def _called(self, between: bool = False) -> str:
        """What happens at a call of whoever acts: it may be killed, its power fail, its disk be full."""
        who = self._acting
        if who is None:
            return ""
        place = f"{who.name} {'effect' if between else 'call'}"
        kind = self.chance.strike(place, kill=0.003, power=0.003, full=0.002, pause=0.004)
        if not kind:
            return ""
        if kind == "pause":
            self._pause(who)
            return ""
        if kind == "full":
            self._note(f"{who.name}: {kind}")
            return "" if between else kind
        self._acting = None
        raise Crash(kind)

    def _pause(self, who: Machine) -> None:
        """The process stands still where it is, while the others go on."""
        if self._depth or not isinstance(who, Process) or who.company is None:
            return
        if not who.up or who.store._db.in_transaction:
            return
        until, life = self.now + 8 + 12 * self.chance.share(f"{who.name} {self.now}"), who.life
        self._note(f"{who.name} stands still until {until:.1f} s")
        who.still, self._acting, self._depth = True, None, 1
        try:
            while self.now < until and not self.chance.is_over:
                self.turn()
        finally:
            who.still, self._depth = False, 0
        if who.life != life:
            raise Crash("it was gone meanwhile")
        self._acting = who

    def _power_fails(self, who: Machine) -> None:
        """The machine's disk is left with what it must keep, and with some of the rest."""
        place = f"power {who.name} {len(self.chance.struck)}"
        if isinstance(who, Process):
            restore = self.disks.rows_after_cut(who.folder)
            self._close(who)
            for other in self.processes:
                if other.up and other is not who:
                    self._ends(other)
                    self.later(0.5, partial(self._boot, other))
            restore()
        self.disks.cut(who.folder, self.chance, place)

    def _ends(self, machine: Machine) -> None:
        machine.life += 1
        machine.up = machine.connected = machine.still = False
        machine.subscriptions.clear()
        if isinstance(machine, Process):
            self._close(machine)

    def _close(self, process: Process) -> None:
        if hasattr(process, "store"):
            process.store.close()

    def _boot(self, machine: Machine) -> None:
        if machine.up:
            return
        self._starts += 1
        machine.up = True
        boot = self._begin_process if isinstance(machine, Process) else self._begin_agent
        self._act(machine, partial(boot, machine))  # type: ignore[arg-type]  # pyright: ignore

    def _begin_process(self, process: Process) -> Sequence[object]:
        process.store = open_folder(process.folder)
        self.judge.watch(process.store)
        members = None
        if len(self.processes) > 1:
            members = Membership(process.store, self.now, alone=False)
        process.core = core = Coordinator(
            FLEET,
            process.store,
            0.1,
            int(EPOCH + self.now),
            wall=lambda now: EPOCH + now,
            shared=members is not None,
        )
        process.company, process.link, process.reload_at = None, Link(), self.now
        process.link.subscriptions = (all_up(FLEET),)
        process.recorder = Recorder(core, lambda now: EPOCH + now)
        if members is not None:
            process.company = Company(core, members, alone=False)
            process.company.begin(process.link, process.recorder)
        return [*core.load(self.now), *core.connected(self.now, MAX_PACKET)]

    def _step(self, machine: Machine) -> Sequence[object]:
        if isinstance(machine, Device):
            return machine.agent.poll(self.now)
        assert isinstance(machine, Process)
        return self._serve(machine)

    def _serve(self, process: Process) -> Sequence[object]:
        """As ``Service.step`` does."""
        core, company, effects = process.core, process.company, list[object]()
        if company is not None:
            effects += company.poll(self.now)
        if self.now >= process.reload_at:
            process.reload_at = self.now + LOOK_S
            effects += core.load(self.now)
        effects += core.poll(self.now, 8)
        effects += company.signals(self.now) if company is not None else ()
        process.recorder.poll(self.now)
        return effects

    def _begin_agent(self, device: Device) -> Sequence[object]:
        secret = secret_of(device.name)
        hello = Hello(bytes(16), "sim", ("onnxruntime",), ("zstd",), CODECS, 10, 10)
        identity = Identity(device.name, FLEET, DeviceKeys.of(secret), hello)
        journal = KeptJournal(device.name, device.folder, self.judge)
        rng = np.random.default_rng([self.chance.seed, self._starts])
        device.agent = Agent(
            identity, BlobFolder(device.folder), journal, rng, int(EPOCH + self.now)
        )
        return self._connect(device)

    def _connect(self, device: Device) -> Sequence[object]:
        device.agent.will()
        device.connected = True
        return device.agent.connected(self.now, MAX_PACKET)

    def _cut(self, device: Device) -> None:
        """A device loses its link for a while, and what is on the way with it."""
        if not device.connected:
            return
        device.connected = False
        device.subscriptions.clear()
        device.agent.disconnected()
        life = device.life

        def again() -> None:
            if device.life == life:
                self._act(device, partial(self._connect, device))

        self.later(0.5 + 30 * self.chance.share(f"away {device.name} {self.now}"), again)

    # What machines do.

    def _carry_out(self, machine: Machine, effect: object) -> None:
        match effect:
            case Send():
                self._publish(machine, effect)
            case Subscribe():
                machine.subscriptions.add(effect.topic)
            case Unsubscribe():
                machine.subscriptions.discard(effect.topic)
            case StartJob() if isinstance(machine, Device):
                self.later(0.5, partial(self._work, machine, machine.life, effect.job))
            case RoundClosed():
                self.judge.closed(effect.summary)
            case _:
                pass

    def _work(self, device: Device, life: int, job: Job) -> None:
        """The worker thread's job; lost with its process."""
        if device.life != life:
            return
        examples, trainer = data_of(DEVICES.index(device.name)), SoftmaxTrainer()
        agent = device.agent
        place = WorkerContext(
            agent.blobs, agent.vectors, examples, examples,
            lambda sha256: (self._bundle, trainer), lambda: False, lambda: 0.0,
        )  # fmt: skip

        def work() -> Sequence[object]:
            try:
                outcome = run_job(job, place)
                self.judge.trained(device.name, job, outcome, trainer, agent.vectors)
            except SedgeError as exc:
                return agent.failed(exc, self.now)
            return agent.finished(outcome, self.now)

        self._act(device, work)

    # The link.

    def _publish(self, sender: Machine, send: Send) -> None:
        if isinstance(sender, Device) and not sender.connected:
            return
        self.judge.sent(send)
        place = f"link {sender.name}"
        kind = self.chance.strike(place, **LINK)
        delay = 0.02
        match kind:
            case "drop":
                return
            case "late":
                delay += 20 * self.chance.share(f"late {place} {self.now}")
            case "damage":
                send = Send(send.topic, self._damaged(send.payload))
            case "double":
                self.later(
                    delay + 5 * self.chance.share(f"double {place} {self.now}"),
                    partial(self._deliver, send),
                )
            case "replay":
                self._attack(place)
            case "cut":
                self._cut(self.devices[DEVICES[self.chance.pick(f"cut {self.now}", len(DEVICES))]])
            case _:
                pass
        self._heard.append(send)
        self.later(delay, partial(self._deliver, send))

    def _damaged(self, payload: bytes) -> bytes:
        if not payload:  # a hint has nothing in it
            return payload
        damaged = bytearray(payload)
        place = self.chance.pick(f"damage {self.now}", 8 * len(damaged))
        damaged[place // 8] ^= 1 << place % 8
        end = 1 + self.chance.pick(f"damage end {self.now}", 2 * len(damaged))
        return bytes(damaged[:end])

    def _attack(self, place: str) -> None:
        """Somebody without a key sends again what was heard, perhaps on another's topic, or makes it up."""
        name = DEVICES[self.chance.pick(f"victim {place} {self.now}", len(DEVICES))]
        keys = DeviceKeys.of(b"x" * 32)
        forged = Peer(up(FLEET, name), keys.up, keys.down, int(EPOCH), 0)
        self.later(0.01, partial(self._deliver, forged.message(Decline(RUN, 1, "Forged", ""))))
        orders = [send for send in self._heard if send.payload[3:4] == bytes([Kind.ORDER])]
        heard = orders if self.chance.share(f"which {place} {self.now}") < 0.5 else self._heard
        if heard:
            old = heard[self.chance.pick(f"replay {place} {self.now}", len(heard))]
            self.later(5 * self.chance.share(f"replay at {self.now}"), partial(self._deliver, old))
            if old.topic.endswith("/up"):
                self.later(0.03, partial(self._deliver, Send(up(FLEET, name), old.payload)))

    def _deliver(self, send: Send) -> None:
        """A message reaches whoever listens."""
        topic, payload = send.topic, send.payload
        for process in self.processes:
            if topic.startswith(cloud(FLEET, "")):
                self._act(process, partial(self._hear, process, topic, payload))
            elif topic.endswith("/up") and _listens(process.link.subscriptions, topic):
                self._act(process, partial(self._take, process, topic, payload))
        for device in self.devices.values():
            if not device.connected or self.now < self.deaf.get(device.name, 0.0):
                continue
            if topic == down(FLEET, device.name):
                self.judge.told(device.name, payload)
            elif topic not in {*device.subscriptions, hint(FLEET, shard_of(device.name))}:
                continue
            self._act(device, lambda d=device: d.agent.receive(topic, payload, self.now))  # type: ignore[misc]

    def _hear(self, process: Process, topic: str, payload: bytes) -> Sequence[object]:
        if process.company is None:
            return []
        has_changed, effects = process.company.hear(topic, payload, self.now)
        process.reload_at = self.now if has_changed else process.reload_at
        return effects

    def _take(self, process: Process, topic: str, payload: bytes) -> Sequence[object]:
        core, company = process.core, process.company
        if topic == up(FLEET, ITSELF):
            return []
        if company is not None and not company.admits(topic, payload, self.now):
            return []
        if not core.admits(topic, payload, self.now):
            return []
        return [*core.receive(topic, payload, self.now), *core.commit(self.now)]

    # What is left.

    def _audited(self) -> Store:
        return next(process.store for process in self.processes if process.up)

    def _note(self, text: str) -> None:
        self.trace.append(f"{self.now:8.2f} s  {text}")


@lru_cache(4096)
def _listens(subscriptions: tuple[str, ...], topic: str) -> bool:
    return any(topic_matches_sub(one, topic) for one in subscriptions)
