"""Agent and coordinator joined by a hostile link, under a virtual clock, killed between any two writes.

Nothing here is mocked but the wire, the clock and the training itself (softmax regression in numpy,
deterministic). The one invariant says it all: whatever the faults, the run ends with exactly the bytes
of the run without faults, so no update was lost, counted twice, or computed from a wrong start.
"""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.fleet import EMPTY_PROGRAM, Crash, bundle_of

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import EXACT, WHOLE, CodecConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.runs.run import RunState
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import Summary
from sedge_edge.agent import Agent, Identity, StartJob
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import CODECS, WorkerContext, run_job
from sedge_edge.training.trainer import Predictor, Trained, TrainingState, TrainRequest
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.effects import Send, Subscribe, Unsubscribe
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.topics import down, hint, shard_of
from sedge_protocol.wire.update import Metrics

INPUTS, CLASSES = 40, 1200  # n = 49,200: three 64 KiB chunks of float32, so transfers have a middle
LAYOUT = Layout.of(
    [("body.weight", (CLASSES, INPUTS), Role.PARAMETER), ("head.bias", (CLASSES,), Role.PARAMETER)]
)
FLEET = "sim"


class SoftmaxTrainer:
    """A trainer without a runtime: one full-batch step an epoch."""

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        """Deterministic in all arguments but ``stopped``."""
        current, training = request.theta.copy(), request.training
        for _ in range(training.local_epochs):
            error = softmax(current, examples.inputs)
            error[np.arange(len(error)), examples.targets.astype(int)] -= 1.0
            weight = error.T @ examples.inputs.astype(np.float32) / len(error)
            slope = np.concatenate([weight.reshape(-1), error.mean(axis=0)])
            current -= np.float32(training.learning_rate) * slope.astype(np.float32)
        return Trained(current, 1.0, training.local_epochs)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Accuracy of theta (n,)."""
        right = softmax(theta, examples.inputs).argmax(axis=1) == examples.targets
        return Metrics(1.0, float(right.mean()), len(right))

    def predictor(self, theta: Theta) -> Predictor:
        """Class probabilities (N, C)."""
        return partial(softmax, theta)


def softmax(theta: Theta, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    """Probabilities (N, C)."""
    weight = theta[: INPUTS * CLASSES].reshape(CLASSES, INPUTS)
    logits = inputs.astype(np.float32) @ weight.T + theta[INPUTS * CLASSES :]
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    result: NDArray[np.float32] = exponents / exponents.sum(axis=1, keepdims=True)
    return result


class Crashing:
    """Wraps a store, journal or blob folder: now and then the process dies just before or after a call."""

    def __init__(self, inner: object, faults: "Faults") -> None:
        self._inner = inner
        self._faults = faults

    def __getattr__(self, name: str) -> object:
        attribute = getattr(self._inner, name)
        if name == "blobs":
            return Crashing(attribute, self._faults)
        if not callable(attribute) or name == "close":
            return attribute

        def call(*args: object, **kwargs: object) -> object:
            self._faults.maybe_crash()
            result = attribute(*args, **kwargs)
            self._faults.maybe_crash()
            return result

        return call


class Faults:
    """Seeded bad luck."""

    def __init__(
        self,
        seed: int,
        crash: float,
        drop: float,
        corrupt: float,
        disk: float,
        slowest_s: float = 0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.crash, self.drop, self.corrupt, self.disk = crash, drop, corrupt, disk
        self.slowest_s = slowest_s
        self.crashes = self.dropped = self.corrupted = self.full = 0

    def hit(self, chance: float) -> bool:
        """Whether it happens now."""
        return chance > 0 and self.rng.random() < chance

    def maybe_crash(self) -> None:
        """Die, or find the disk full."""
        if self.hit(self.crash):
            self.crashes += 1
            raise Crash
        if self.hit(self.disk):
            self.full += 1
            raise StorageError("the disk is full (simulated)")

    def deliver(self, payload: bytes) -> list[bytes]:
        """What becomes of a message: lost, damaged, doubled or whole."""
        if self.hit(self.drop):
            self.dropped += 1
            return []
        if self.hit(self.corrupt) and payload:  # a hint has nothing in it
            self.corrupted += 1
            damaged = bytearray(payload)
            damaged[int(self.rng.integers(len(damaged)))] ^= 1 << int(self.rng.integers(8))
            return [bytes(damaged[: int(self.rng.integers(1, len(damaged) + 1))])]
        return [payload, payload] if self.hit(self.drop) else [payload]


@dataclass(frozen=True)
class Ending:
    """A run's last state, the bytes of its global model, and its rounds."""

    state: RunState
    model: bytes
    rounds: list[Summary]


class World:
    """A coordinator and its devices, a virtual clock, and a link that obeys ``Faults``."""

    def __init__(self, folder: Path, config: RunConfig, devices: int, faults: Faults) -> None:
        self.folder, self.faults, self.now = folder, faults, 0.0
        self.names = [f"d{i}" for i in range(devices)]
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.order = 0
        self.deaf: dict[str, float] = {}  # until when nothing reaches a device
        self.subscriptions: dict[str, set[str]] = {name: set() for name in self.names}
        # The program is a name only: the simulation trains in numpy.
        made = bundle_of(LAYOUT, {"gradient": EMPTY_PROGRAM}, INPUTS, CLASSES, name="softmax")
        init = np.random.default_rng(1).normal(0, 0.1, LAYOUT.size).astype(np.float32)
        bundles.save(folder / "bundle", made, init)
        store = open_folder(folder / "cloud")
        start_run(store, "run", folder / "bundle", config)
        for i, name in enumerate(self.names):
            store.add_device(name, bytes([i]) * 32)
        store.close()
        self.starts = 0
        self.cloud = self.boot_cloud()
        self.agents = {name: self.boot_agent(name) for name in self.names}

    def boot_cloud(self) -> Coordinator:
        """A coordinator from what is on disk."""
        while True:
            self.starts += 1
            store = open_folder(self.folder / "cloud")
            store._db.execute("PRAGMA synchronous=OFF")  # no power is lost here, only processes
            try:
                core = Coordinator(FLEET, Crashing(store, self.faults), 0.1, self.starts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                self.do_cloud([*core.load(self.now), *core.connected(self.now)], core)
                return core
            except (Crash, StorageError):
                store.close()

    def boot_agent(self, name: str) -> Agent:
        """An agent from what is on disk."""
        secret = bytes([self.names.index(name)]) * 32
        hello = Hello(bytes(16), "sim", ("onnxruntime",), ("zstd",), CODECS, 10, 10)
        identity = Identity(name, FLEET, DeviceKeys.of(secret), hello)
        home = self.folder / name
        rng = np.random.default_rng([7, self.starts, len(self.queue)])
        while True:
            self.starts += 1
            try:
                blobs = Crashing(BlobFolder(home), self.faults)
                journal = Crashing(Journal(home / "journal", AgentState, SCHEMA), self.faults)
                agent = Agent(identity, blobs, journal, rng, self.starts)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
                agent.will()
                self.subscriptions[name].clear()
                self.agents_do(name, agent, agent.connected(self.now, 400_000))
                return agent
            except (Crash, StorageError):
                continue

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time; first in, first out among equals."""
        self.order += 1
        self.queue.append((self.now + delay_s, self.order, action))

    def do_cloud(self, effects: Sequence[object], core: Coordinator) -> None:
        """Carry the coordinator's effects out."""
        for effect in effects:
            self.faults.maybe_crash()
            if isinstance(effect, Send):
                self.publish(effect, 0.01)

    def agents_do(self, name: str, agent: Agent, effects: Sequence[object]) -> None:
        """Carry an agent's effects out."""
        for effect in effects:
            self.faults.maybe_crash()
            if isinstance(effect, Send):
                self.publish(effect, 0.01)
            elif isinstance(effect, Subscribe):
                self.subscriptions[name].add(effect.topic)
            elif isinstance(effect, Unsubscribe):
                self.subscriptions[name].discard(effect.topic)
            elif isinstance(effect, StartJob):
                self.later(0.5, lambda e=effect: self.work(name, agent, e))  # type: ignore[misc]

    def publish(self, send: Send, delay_s: float) -> None:
        """Hand a message to whoever listens when it arrives."""
        if self.faults.slowest_s:
            delay_s = float(self.faults.rng.uniform(delay_s, self.faults.slowest_s))
        for payload in self.faults.deliver(send.payload):
            if send.topic.endswith("/up"):
                self.later(delay_s, lambda p=payload: self.to_cloud(send.topic, p))  # type: ignore[misc]
            for name in self.names:
                listened = (down(FLEET, name), hint(FLEET, shard_of(name)))
                if send.topic in listened or "/blob/" in send.topic:
                    self.later(delay_s, lambda n=name, p=payload: self.to_agent(n, send.topic, p))  # type: ignore[misc]

    def to_cloud(self, topic: str, payload: bytes) -> None:
        """A message reaches the coordinator."""

        def taken() -> list[object]:
            if not self.cloud.admits(topic, payload, self.now):
                return []
            received = self.cloud.receive(topic, payload, self.now)
            return [*received, *self.cloud.commit(self.now)]

        self.guard_cloud(taken)

    def to_agent(self, name: str, topic: str, payload: bytes) -> None:
        """A message reaches a device, if it listens."""
        if self.now < self.deaf.get(name, 0.0):
            return
        if "/blob/" in topic and topic not in self.subscriptions[name]:
            return
        self.guard_agent(name, lambda agent: agent.receive(topic, payload, self.now))

    def guard_cloud(self, act: Callable[[], Sequence[object]]) -> None:
        """Let the coordinator act; restart it when it dies."""
        try:
            self.do_cloud(act(), self.cloud)
        except (Crash, StorageError):
            self.cloud.store.close()
            self.cloud = self.boot_cloud()

    def guard_agent(self, name: str, act: Callable[[Agent], Sequence[object]]) -> None:
        """Let an agent act; restart it when it dies."""
        agent = self.agents[name]
        try:
            self.agents_do(name, agent, act(agent))
        except (Crash, StorageError):
            self.agents[name] = self.boot_agent(name)

    def work(self, name: str, agent: Agent, effect: StartJob) -> None:
        """The worker thread's job; lost with its process."""
        if self.agents[name] is not agent:
            return
        examples = data_of(self.names.index(name))
        loaded, _ = bundles.load(self.folder / "bundle")
        place = WorkerContext(
            agent.blobs,
            agent.vectors,
            examples,
            examples,
            lambda sha256: (loaded, SoftmaxTrainer()),
            lambda: False,
            lambda: 0.0,
        )
        try:
            outcome = run_job(effect.job, place)
        except StorageError as exc:
            error = exc
            self.guard_agent(name, lambda a: a.failed(error, self.now))
            return
        except Crash:
            self.agents[name] = self.boot_agent(name)
            return
        self.guard_agent(name, lambda a: a.finished(outcome, self.now))

    def run(self, until_s: float) -> None:
        """Let time pass until the run has ended."""
        while not self.ended():
            assert self.now < until_s, f"the run has not ended after {until_s} virtual seconds"
            self.turn()

    def turn(self) -> None:
        """Let time pass to what comes next."""
        if self.faults.hit(0.002):
            self.cut(str(self.faults.rng.choice(self.names)))
        self.queue.sort(key=lambda item: item[:2])
        timers = [a.timer() for a in self.agents.values()] + [self.cloud.timer()]
        due = min((t for t in timers if t is not None), default=self.now + 1.0)
        step = min(due, self.now + 0.25)
        if self.queue and self.queue[0][0] <= step:
            at, _, action = self.queue.pop(0)
            self.now = max(self.now, at)
            action()
            return
        self.now = max(self.now + 0.001, step)
        self.guard_cloud(lambda: self.cloud.poll(self.now, 8))
        for name in self.names:
            self.guard_agent(name, lambda agent: agent.poll(self.now))

    def cut(self, name: str) -> None:
        """A device loses its link for a moment, and what was on the way with it."""
        agent = self.agents[name]
        agent.disconnected()
        self.subscriptions[name].clear()
        agent.will()
        self.guard_agent(name, lambda a: a.connected(self.now, 400_000))

    def ended(self) -> bool:
        """Whether the store says so; an event may fall into a crash."""
        if self.cloud.open:
            return False
        store = open_folder(self.folder / "cloud")
        try:
            return store.runs()[0].status != "running"
        finally:
            store.close()

    def final(self) -> Ending:
        """What the run came to."""
        store = open_folder(self.folder / "cloud")
        state = msgspec.msgpack.decode(store.runs()[0].state, type=RunState)
        rounds = [
            msgspec.msgpack.decode(row.summary or b"", type=Summary) for row in store.rounds("run")
        ]
        model = store.blobs.read(state.model)
        store.close()
        return Ending(state, model, rounds)


def data_of(device: int) -> Examples:
    """A device's examples."""
    rng = np.random.default_rng(device)
    inputs = rng.normal(size=(30, INPUTS)).astype(np.float32)
    return Examples(inputs, rng.integers(0, CLASSES, 30).astype(np.int64))


@pytest.fixture(scope="module", autouse=True)
def unflushed() -> Iterator[None]:
    """Flushing to disk is tested elsewhere: here only processes die."""

    def nothing(descriptor: int) -> None:
        return

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", nothing)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as name:
        yield Path(name)


CONFIGS = {
    "fedobp": RunConfig(
        strategy="fedobp",
        options={"quantile": 0.9995},
        num_rounds=4,
        codec=CodecConfig(values=ValueCoding.BF16, fraction=0.3),
    ),
    "fedavg-dense": RunConfig(strategy="fedavg", num_rounds=3, broadcast=WHOLE, codec=EXACT),
    "local": RunConfig(strategy="local_only", num_rounds=3),
}
QUIET = (0, 0, 0, 0, 0, 0)
HOSTILE = {
    "a hostile link": {"crash": 0.003, "drop": 0.05, "corrupt": 0.02, "disk": 0.002},
    # A broker that keeps the order of a connection still has several of them in turn, and clusters keep
    # none. A second training would change the residual, and the model that only the device has.
    "frames that overtake one another": {
        "crash": 0.002, "drop": 0.03, "corrupt": 0.01, "disk": 0.002, "slowest_s": 3.0,
    },
}  # fmt: skip
SEEDS = {"a hostile link": range(1, 7), "frames that overtake one another": range(7, 11)}


def play(folder: Path, name: str, faults: Faults) -> World:
    """Run a configuration with three devices to its end."""
    world = World(folder, of_three(name), 3, faults)
    world.run(until_s=20_000.0)
    return world


def of_three(name: str) -> RunConfig:
    """Nobody can be spared: otherwise no round waits for a device whose disk refuses."""
    return msgspec.structs.replace(
        CONFIGS[name],
        min_train_devices=3,
        min_available_devices=3,
        min_updates=3,
        deadline_s=86400.0,
    )


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, World]:
    """Every configuration without faults."""
    folder = tmp_path_factory.mktemp("quiet")
    return {name: play(folder / name, name, Faults(*QUIET)) for name in CONFIGS}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_quiet_run_ends_with_every_update(quiet: dict[str, World], name: str) -> None:
    world, config = quiet[name], CONFIGS[name]
    ending = world.final()
    assert [summary.round for summary in ending.rounds] == list(range(1, config.num_rounds + 2))
    assert all(len(summary.devices) == 3 for summary in ending.rounds)
    assert ending.state.round == config.num_rounds + 1
    assert not any(agent.state.outbox or agent.state.orders for agent in world.agents.values())


def test_who_hears_neither_hint_nor_the_first_questions_is_seen_in_the_end(
    folder: Path, quiet: dict[str, World]
) -> None:
    """It waits for an order, welcomed, when a coordinator starts of which it hears nothing for a minute."""
    world = World(folder, of_three("local"), 3, Faults(*QUIET))
    world.deaf["d1"] = 4.0  # until then there is no round
    while world.now < 3.0:
        world.turn()
    world.deaf["d0"] = world.now + 60.0
    world.cloud.store.close()
    world.cloud = world.boot_cloud()
    world.run(until_s=300.0)
    assert world.final() == quiet["local"].final()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(
    ("kind", "seed"), [(kind, seed) for kind, seeds in SEEDS.items() for seed in seeds]
)
def test_faults_change_nothing(
    folder: Path,
    quiet: dict[str, World],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: str,
    seed: int,
) -> None:
    # A device that dies in three starts of one job declines it, which is another ending.
    monkeypatch.setattr("sedge_edge.rounds.state.MAX_STARTS", 1000)
    faults = Faults(seed, **HOSTILE[kind])
    hostile = play(folder, name, faults)
    assert faults.crashes + faults.dropped + faults.corrupted + faults.full > 0
    assert hostile.final() == quiet[name].final()
