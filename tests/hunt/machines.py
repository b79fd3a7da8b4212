"""The machines of a simulated fleet: its devices, and the processes of its coordinator.

The cores, the store and the device's files are the product's own. A machine says what it wants to have
done next and when; the world (world.py) lets it, or does not.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from paho.mqtt.client import topic_matches_sub
from tests.fleet import EMPTY_PROGRAM, bundle_of
from tests.hunt.judge import Judge
from tests.hunt.timeline import Timeline, wall_at
from tests.hunt.training import CLASSES, INPUTS, LAYOUT, SoftmaxTrainer, data_of

from sedge_cloud.admin.runs import start_run
from sedge_cloud.company import Company
from sedge_cloud.config import RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.processes.membership import Membership
from sedge_cloud.recorder import Recorder
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_edge.agent import Agent, Identity
from sedge_edge.jobs.job import Job
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.training.job import CODECS, WorkerContext, run_job
from sedge_protocol.errors import SedgeError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.topics import ITSELF, all_up, cloud, down, hint, shard_of, up

FLEET, RUN = "sim", "run"
DEVICES = ("d0", "d1", "d2")
MAX_PACKET = 16_000  # bytes, the least that is served: models and updates have several chunks then
LOOK_S = 5.0  # how often a process looks for what commands have changed


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
    return device.encode().ljust(32, b".")


class Machine(ABC):
    """A machine, and what runs on it while it is ``up``; it may be ``still``, and go on later.

    ``life`` counts how often that has ended. ``due_at`` keeps ``due`` until the machine does something.
    """

    def __init__(self, name: str, folder: Path, time: Timeline, judge: Judge) -> None:
        self.name, self.folder, self.time, self.judge = name, folder, time, judge
        self.up = self.still = False
        self.life = 0
        self.due_at: float | None = None

    @property
    def runs(self) -> bool:
        return self.up and not self.still

    @abstractmethod
    def begin(self, starts: int) -> Sequence[object]:
        """Start what runs here, after so many starts in all; the effects."""

    @abstractmethod
    def due(self) -> float:
        """When ``step`` is due."""

    @abstractmethod
    def step(self) -> Sequence[object]:
        """Do what is due."""

    @abstractmethod
    def listens(self, topic: str) -> bool:
        """Whether the broker sends it what is published there."""

    @abstractmethod
    def receive(self, topic: str, payload: bytes) -> Sequence[object]:
        """A frame arrives."""

    def end(self) -> None:
        """What runs here ends, and takes along what was in memory."""
        self.life += 1
        self.up = self.still = False


class KeptJournal(Journal[AgentState]):
    def __init__(self, device: str, folder: Path, judge: Judge) -> None:
        super().__init__(folder / "journal", AgentState, SCHEMA)
        self._device, self._judge, self._blobs = device, judge, folder / "blobs"

    def load(self) -> AgentState | None:
        value = super().load()
        self._judge.remembers(self._device, value)
        for waiting in () if value is None else value.outbox:
            text = f"{self._device} has lost its update of round {waiting.round}"
            self._judge.require("I3", (self._blobs / waiting.blob.hex()).exists(), text)
        return value

    def commit(self, value: AgentState) -> None:
        self._judge.tries(self._device, value)
        super().commit(value)
        self._judge.committed(self._device)


class Device(Machine):
    """A device and its agent, which trains on ``bundle``; ``seed`` is of the agent's own chance."""

    agent: Agent

    def __init__(
        self, name: str, folder: Path, time: Timeline, judge: Judge, bundle: bundles.Bundle, seed: int
    ) -> None:  # fmt: skip
        super().__init__(name, folder, time, judge)
        self._bundle, self._seed = bundle, seed
        self._down, self._hint = down(FLEET, name), hint(FLEET, shard_of(name))
        self.connected = False
        self.subscriptions = set[str]()

    def begin(self, starts: int) -> Sequence[object]:
        hello = Hello(bytes(16), "sim", ("onnxruntime",), ("zstd",), CODECS, 10, 10)
        identity = Identity(self.name, FLEET, DeviceKeys.of(secret_of(self.name)), hello)
        journal = KeptJournal(self.name, self.folder, self.judge)
        rng = np.random.default_rng([self._seed, starts])
        blobs = BlobFolder(self.folder)
        self.agent = Agent(identity, blobs, journal, rng, int(self.time.wall))
        return self.connect()

    def connect(self) -> Sequence[object]:
        self.agent.will()
        self.connected = True
        return self.agent.connected(self.time.now, MAX_PACKET)

    def disconnect(self) -> None:
        self.connected, self.due_at = False, None
        self.subscriptions.clear()
        self.agent.disconnected()

    def due(self) -> float:
        return self.agent.timer() or math.inf

    def step(self) -> Sequence[object]:
        return self.agent.poll(self.time.now)

    def listens(self, topic: str) -> bool:
        """Its own topic, its shard's hints, and the blobs that it has asked for."""
        ours = topic in (self._down, self._hint) or topic in self.subscriptions
        return self.connected and ours

    def receive(self, topic: str, payload: bytes) -> Sequence[object]:
        if topic == self._down:
            self.judge.told(self.name, payload)
        return self.agent.receive(topic, payload, self.time.now)

    def work(self, job: Job) -> Sequence[object]:
        examples, trainer = data_of(DEVICES.index(self.name)), SoftmaxTrainer()
        agent, now = self.agent, self.time.now
        place = WorkerContext(
            agent.blobs, agent.vectors, examples, examples,
            lambda sha256: (self._bundle, trainer), lambda: False, lambda: 0.0,
        )  # fmt: skip
        try:
            outcome = run_job(job, place)
            self.judge.trained(self.name, job, outcome, trainer, agent.vectors)
        except SedgeError as exc:
            return agent.failed(exc, now)
        return agent.finished(outcome, now)

    def end(self) -> None:
        super().end()
        self.connected = False
        self.subscriptions.clear()


class AlwaysUp:
    """What ``Company`` asks of a link."""

    up = is_settled = True

    def __init__(self) -> None:
        self.subscriptions: tuple[str, ...] = (all_up(FLEET),)


class Process(Machine):
    """A process of the coordinator; one that is ``shared`` is not the only one."""

    store: Store
    core: Coordinator
    company: Company | None = None
    _recorder: Recorder

    def __init__(self, name: str, folder: Path, time: Timeline, judge: Judge, shared: bool) -> None:
        super().__init__(name, folder, time, judge)
        self._shared, self._link = shared, AlwaysUp()
        self._reload_at = 0.0

    def begin(self, starts: int) -> Sequence[object]:
        """The process opens its store, joins the others, and connects."""
        now, time = self.time.now, self.time
        self.store = open_folder(self.folder)
        self.judge.watch(self.store)
        members = Membership(self.store, now, alone=False) if self._shared else None
        self.core = core = Coordinator(
            FLEET, self.store, 0.1, int(time.wall), wall=wall_at, shared=self._shared
        )
        self.company, self._link, self._reload_at = None, AlwaysUp(), now
        self._recorder = Recorder(core, wall_at)
        if members is not None:
            self.company = Company(core, members, alone=False)
            self.company.begin(self._link, self._recorder)
        return [*core.load(now), *core.connected(now, MAX_PACKET)]

    def due(self) -> float:
        """When ``step`` is due, at the latest to look for what commands have changed."""
        due = min(self.core.timer() or math.inf, self._reload_at)
        return due if self.company is None else min(due, self.company.timer())

    def step(self) -> Sequence[object]:
        core, company, now, effects = self.core, self.company, self.time.now, list[object]()
        if company is not None:
            effects += company.poll(now)
        if now >= self._reload_at:
            self._reload_at = now + LOOK_S
            effects += core.load(now)
        effects += core.poll(now, 8)
        effects += company.signals(now) if company is not None else ()
        self._recorder.poll(now)
        return effects

    def listens(self, topic: str) -> bool:
        """The other processes' signals, and the frames of its shards' devices."""
        return topic.startswith(_SIGNALS) or (
            topic.endswith("/up") and _matches(self._link.subscriptions, topic)
        )

    def receive(self, topic: str, payload: bytes) -> Sequence[object]:
        core, company, now = self.core, self.company, self.time.now
        if topic.startswith(_SIGNALS):
            return [] if company is None else self._hear(company, topic, payload)
        if topic == up(FLEET, ITSELF):
            return []
        if company is not None and not company.admits(topic, payload, now):
            return []
        if not core.admits(topic, payload, now):
            return []
        return [*core.receive(topic, payload, now), *core.commit(now)]

    def end(self) -> None:
        super().end()
        self.close()

    def close(self) -> None:
        if hasattr(self, "store"):
            self.store.close()

    def _hear(self, company: Company, topic: str, payload: bytes) -> Sequence[object]:
        has_changed, effects = company.hear(topic, payload, self.time.now)
        self._reload_at = self.time.now if has_changed else self._reload_at
        return effects


_SIGNALS = cloud(FLEET, "")


@lru_cache(4096)
def _matches(subscriptions: tuple[str, ...], topic: str) -> bool:
    return any(topic_matches_sub(one, topic) for one in subscriptions)
