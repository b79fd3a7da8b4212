"""One virtual device among others: faults at every stage of its work cost time, and no bit.

Real agents and a real coordinator under virtual time; jobs are done in this process. Every second
each device's disk is checked: whatever it is said to hold is there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.emulate.workers.fleet_of_four import InlinePool, make_setup

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import BroadcastConfig, CodecConfig
from sedge_cloud.config import RunConfig, TrainingConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import Event, RoundClosed, RunEnded, UpdateReceived
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import Summary
from sedge_edge.agent import Agent, Identity
from sedge_edge.jobs.job import Job, Kept
from sedge_edge.rounds.waiting import OPEN, Closed
from sedge_edge.training.job import CODECS
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.device_classes import LinkConfig
from sedge_emulate.virtual import device as virtual_device
from sedge_emulate.virtual.clock import Clock
from sedge_emulate.virtual.device import MemoryRecord, VirtualDevice, World
from sedge_emulate.virtual.disk import HostDisk
from sedge_emulate.virtual.fleet import GATHER_S, VirtualCloud
from sedge_emulate.virtual.plan import EventKind, LinkPlan, PlanEvent, _draws_of
from sedge_emulate.virtual.result_cache import ResultCache
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Request
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import (
    ConfigError,
    DataError,
    LinkError,
    LocalError,
    SedgeError,
    StorageError,
)
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello, Order

DEVICES = 3
JOB_S = 10.0
STEPS = 6
SLOW = LinkConfig(delay_ms=50, up_kbit_s=8, down_kbit_s=64)
RUN = RunConfig(
    strategy="fedavg", num_rounds=3, min_train_devices=DEVICES, min_available_devices=DEVICES,
    deadline_s=500, broadcast=BroadcastConfig(values=ValueCoding.FP16, fraction=0.3),
    training=TrainingConfig(learning_rate=0.1),
    codec=CodecConfig(values=ValueCoding.BF16, fraction=0.3),
)  # fmt: skip
Played = tuple[bytes, list[Summary]]


@dataclass
class Life:
    """A plan that a test writes."""

    events_: list[PlanEvent] = field(default_factory=lambda: [PlanEvent(0.0, EventKind.POWER_ON)])
    job: float = JOB_S
    class_name: str = "test"
    number: int = 0

    @property
    def link(self) -> LinkPlan:
        return LinkPlan(SLOW, _draws_of(0, "test"))

    def events(self) -> Iterator[PlanEvent]:
        yield from self.events_

    def job_s(self, run: str, round: int, steps: int) -> float:
        assert steps == STEPS
        return self.job


class Lab:
    """A fleet under a test's hands."""

    def __init__(self, setup: WorkerSetup, folder: Path, *lives: Life, **run: Any) -> None:
        pool: Any = InlinePool(setup, hold=True)
        self.pool: InlinePool = pool
        self.events: list[Event] = []
        self.check_at = 0.0
        self.clock = Clock()
        self.store = open_folder(folder / "cloud", durable=False)
        start_run(self.store, "run", setup.bundle, msgspec.structs.replace(RUN, **run))
        core = Coordinator("emulated", self.store, GATHER_S, 1)
        self.cloud = VirtualCloud(self.clock, core, self.events.append)
        self.cache = ResultCache(folder / "cache")
        self.disk = HostDisk(folder / "disk", self.cache.caught_up, self.store.blobs)
        self.world = World(
            self.clock, self.cloud.broker, pool, self.cache, self.disk, folder / "disk",
            bytes(32), lambda number, order: STEPS,
        )  # fmt: skip
        lives = lives or (Life(), Life(), Life())
        self.devices = [self._device(number, life) for number, life in enumerate(lives)]
        self.cloud.start()

    def _device(self, number: int, life: Any) -> VirtualDevice:
        name, secret = f"device-{number}", bytes([number]) * 32
        self.store.add_device(name, secret)
        hello = Hello(bytes(16), "test", ("onnxruntime",), ("zstd",), CODECS, 30, 10)
        identity = Identity(name, "emulated", DeviceKeys.of(secret), hello)
        return VirtualDevice(number, identity, life, self.world)

    @property
    def ended(self) -> bool:
        return any(isinstance(event, RunEnded) for event in self.events)

    def until(self, condition: Callable[[], bool]) -> None:
        """Let things happen, and check the disks."""
        while not condition():
            assert self.clock.step(), "nothing happens any more"
            assert self.clock.now < 5000, "it goes on for ever"
            if self.clock.now >= self.check_at:
                self.check()
                self.check_at = self.clock.now + 1

    def wait(self, seconds: float) -> None:
        end = self.clock.now + seconds
        self.clock.at(end, lambda: None)
        self.until(lambda: self.clock.now >= end)

    def check(self) -> None:
        if not self.cache.caught_up:  # what was let go of before the kill is not there again
            return
        for device in self.devices:
            for name in device._disk._names:
                folders = (self.disk.vectors, self.disk.shared)
                kept = any((folder / name.hex()).exists() for folder in folders)
                assert kept or self.disk.has(name)

    def summaries(self) -> list[Summary]:
        return [event.summary for event in self.events if isinstance(event, RoundClosed)]

    def outcome(self) -> Played:
        """The last global model, and the rounds; closes the store."""
        run = Run(self.store.runs()[0], self.store)
        theta = RunStore(self.store).context(run).theta.tobytes()
        self.store.close()
        return theta, self.summaries()

    def play(self) -> Played:
        self.until(lambda: self.ended)
        return self.outcome()

    def agent_is(self, stage: str, number: int = 0) -> bool:
        """Whether a device's agent is there and at this stage."""
        agent = self.devices[number]._agent
        return agent is not None and STAGES[stage](agent)


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    return make_setup(tmp_path_factory.mktemp("setup"), devices=DEVICES, features=100)


@pytest.fixture(scope="module")
def undisturbed(setup: WorkerSetup, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Lab(setup, tmp_path_factory.mktemp("undisturbed")).play()


@pytest.fixture
def lab_of(setup: WorkerSetup, tmp_path: Path) -> Callable[..., Lab]:
    """A fleet of these lives under the usual run with other values in these fields."""
    return partial(Lab, setup, tmp_path)


@pytest.fixture
def lab(lab_of: Callable[..., Lab]) -> Lab:
    return lab_of()


def test_undisturbed(undisturbed: Played) -> None:
    theta, summaries = undisturbed
    assert len(theta) == 4 * 20_803  # more than one chunk
    assert [summary.task for summary in summaries] == ["train"] * 3 + ["evaluate"]
    assert all(len(summary.devices) == DEVICES for summary in summaries)


STAGES: dict[str, Callable[[Any], bool]] = {
    "fetching": lambda agent: bool(agent.blobs._parts),
    "working": lambda agent: agent._working is not None,
    "uploading": lambda agent: bool(agent.state.outbox),
}
FAULTS = {
    "power": (EventKind.POWER_OFF, EventKind.POWER_ON),
    "link": (EventKind.LINK_DOWN, EventKind.LINK_UP),
    "disk": (EventKind.DISK_FULL, EventKind.DISK_FREE),
}


# Shorter and longer than what the broker, the coordinator and the disk's retries wait for.
@pytest.mark.parametrize(
    ("stage", "fault", "lasting_s"),
    [
        ("fetching", "power", 1.0), ("fetching", "link", 70.0), ("fetching", "disk", 1.0),
        ("working", "power", 70.0), ("working", "power", 1.0), ("working", "link", 1.0),
        ("working", "disk", 70.0), ("uploading", "power", 1.0), ("uploading", "link", 70.0),
        ("uploading", "disk", 70.0),
    ],
)  # fmt: skip
def test_a_fault_costs_time_and_no_bit(
    lab_of: Callable[..., Lab], undisturbed: Played, stage: str, fault: str, lasting_s: float
) -> None:
    # Nobody can be spared: no round would wait for a device without disk otherwise.
    lab = lab_of(min_updates=DEVICES)
    device = lab.devices[1]
    begins, ends = FAULTS[fault]
    lab.until(lambda: lab.agent_is(stage, 1))
    lab.wait(0.1)
    assert lab.agent_is(stage, 1)
    device._happen(begins)
    lab.wait(lasting_s)
    device._happen(ends)
    assert lab.play() == undisturbed
    assert (device.reboots, device.cuts) == (fault == "power", fault == "link")
    # No job is trained twice, whatever has become of the device that began it.
    keys = [request.key for request in lab.pool.requests]
    assert len(set(keys)) == len(keys) == DEVICES * 4


def test_a_job_is_begun_while_its_blobs_are_on_their_way(lab: Lab) -> None:
    device = lab.devices[0]
    lab.until(lambda: bool(lab.pool.requests))
    assert not device._disk.has(begun_order(device).model.sha256)
    lab.pool.flush()  # and done: all that it needs is here
    assert lab.pool.errors == []
    lab.play()
    assert len(lab.pool.requests) == DEVICES * 4


def test_the_job_of_a_cancelled_order_is_done_for_nothing(lab: Lab, undisturbed: Played) -> None:
    """Another one takes its place, and its files go with the last device that needs them."""
    device = lab.devices[0]
    lab.until(lambda: device._begun is not None)
    begun = device._begun
    device._begin(Job(begun_order(device), Kept(mask=bytes(32))))
    assert begun is not None and device._begun is not begun
    assert all(lab.disk.has(name) for name in begun.holds[1:])
    assert lab.play() == undisturbed
    assert len(lab.pool.requests) == DEVICES * 4 + 2


@pytest.mark.parametrize("others", [1, 2])
def test_a_job_that_is_given_up_leaves_no_vector_behind(lab: Lab, others: int) -> None:
    """Nor where a worker ends it only afterwards, or where it is begun again after all, as it is here."""
    device = lab.devices[0]
    lab.until(lambda: device._begun is not None)
    order = begun_order(device)
    for seed in range(others):
        device._begin(Job(msgspec.structs.replace(order, seed=seed)))
    assert len(device._past) == others
    lab.play()  # checks that what devices hold is there
    assert device._past == []
    held = set[bytes]().union(*(one._disk._names for one in lab.devices))
    assert {bytes.fromhex(path.name) for path in lab.disk.vectors.iterdir()} <= held
    assert list(lab.disk.spare.iterdir()) != []


def test_newcomers_begin_from_the_whole_model(setup: WorkerSetup, tmp_path: Path) -> None:
    """The version before is on this host, for others; the delta from it may be on no device's disk."""
    run: dict[str, Any] = {"num_rounds": 8, "fraction_train": 0.01, "min_train_devices": 1}
    whole = Lab(setup, tmp_path / "whole", **run)
    expected = whole.play()
    assert len({device.device for s in expected[1] for device in s.devices}) == DEVICES
    lone = Lab(setup, tmp_path / "lone", **run)
    lone.disk._source = None  # jobs begin when their devices have fetched what they need
    assert lone.play() == expected
    assert lone.pool.errors == whole.pool.errors == []


def test_what_was_sent_before_the_link_broke_is_sent_twice_and_counted(lab: Lab) -> None:
    device = lab.devices[0]
    lab.until(lambda: lab.agent_is("uploading"))
    lab.wait(0.5)
    sent = device.meter.up.payload
    device._happen(EventKind.LINK_DOWN)
    lab.wait(5.0)
    device._happen(EventKind.LINK_UP)
    lab.until(lambda: device._agent is not None and not device._agent.state.outbox)
    assert 0 < device.meter.up.resent <= sent == device.meter.up.payload
    lab.store.close()


def test_a_device_that_leaves_never_comes_back(lab_of: Callable[..., Lab]) -> None:
    gone = Life([PlanEvent(0.0, EventKind.POWER_ON), PlanEvent(8.0, EventKind.LEAVE),
                 PlanEvent(9.0, EventKind.POWER_ON)])  # fmt: skip
    two = {"min_train_devices": 2, "min_available_devices": 2}
    lab = lab_of(gone, Life(), Life(), deadline_s=60, **two)
    _, summaries = lab.play()
    assert lab.devices[0]._agent is None
    assert {len(summary.devices) for summary in summaries} == {2}
    assert (summaries[0].cohort, summaries[-1].cohort) == (3, 2)


def test_events_of_the_plan_happen_when_it_says(lab_of: Callable[..., Lab]) -> None:
    kinds = EventKind
    life = Life([
        PlanEvent(1.0, kinds.POWER_ON), PlanEvent(2.0, kinds.LINK_DOWN), PlanEvent(3.0, kinds.POWER_OFF),
        PlanEvent(4.0, kinds.POWER_ON), PlanEvent(5.0, kinds.DISK_FULL), PlanEvent(6.0, kinds.LINK_UP),
        PlanEvent(7.0, kinds.DISK_FREE),
    ])  # fmt: skip
    lab = lab_of(life, Life(), Life())
    device = lab.devices[0]
    seen: list[tuple[bool, bool, bool]] = []
    for second in range(8):
        lab.clock.at(second + 0.5, lambda: seen.append(
            (device._agent is not None, device._port.up, device._disk.full)))  # fmt: skip
    lab.wait(8.0)
    assert seen == [
        (False, False, False), (True, True, False), (True, False, False), (False, False, False),
        (True, False, False), (True, False, True), (True, True, True), (True, True, False),
    ]  # fmt: skip
    assert (device.reboots, device.cuts) == (1, 1)
    lab.store.close()


def test_a_straggler_keeps_the_model_that_others_left_behind(lab_of: Callable[..., Lab]) -> None:
    """Its job is begun in a process while the others hold the decoded model, and ends when none does."""
    run = {"quorum": 0.5, "num_rounds": 12, "fraction_train": 0.6, "min_train_devices": 1}
    lab = lab_of(Life(job=2.5 * JOB_S), Life(), Life(), **run)
    lab.pool._hold = False  # jobs are done when they begin: only their holders protect files
    lab.play()
    late = [event for event in lab.events if isinstance(event, UpdateReceived) and event.late]
    assert "device-0" in {event.device for event in late}
    assert lab.pool.errors == []


def test_played_again_it_trains_nothing_anew(setup: WorkerSetup, tmp_path: Path) -> None:
    """Killed in the middle: a job given up for a power cut is not among those that are known."""

    def disturbed(lab: Lab) -> None:
        device = lab.devices[2]
        lab.until(lambda: lab.agent_is("working", 2))
        lab.wait(1.0)
        device._happen(EventKind.POWER_OFF)
        lab.wait(400.0)
        device._happen(EventKind.POWER_ON)

    whole = Lab(setup, tmp_path / "whole", quorum=0.6)
    disturbed(whole)
    expected = whole.play()

    killed = Lab(setup, tmp_path / "killed", quorum=0.6)
    disturbed(killed)
    killed.until(lambda: len(killed.summaries()) >= 2)
    killed.store.close()
    known = {path.name for path in (tmp_path / "killed" / "cache").glob("*/*")}
    assert len(known) > DEVICES
    (tmp_path / "killed" / "cloud").rename(tmp_path / "lost")

    again = Lab(setup, tmp_path / "killed", quorum=0.6)
    assert not again.cache.caught_up
    disturbed(again)
    assert again.play() == expected
    assert again.cache.caught_up
    assert known.isdisjoint((request.key or b"").hex() for request in again.pool.requests)


class Failing(InlinePool):
    """A pool in which some jobs fail: by default the second."""

    def __init__(
        self,
        setup: WorkerSetup,
        error: SedgeError,
        fails: Callable[[list[Request]], bool] = lambda requests: len(requests) == 2,
    ) -> None:
        super().__init__(setup)
        self.error, self.fails = error, fails

    def submit(self, request: Request, size: int) -> Any:
        future = super().submit(request, size)
        if not self.fails(self.requests):
            return future
        broken: Any = type(future)()
        broken.set_exception(self.error)
        return broken


@pytest.mark.parametrize("error", [LinkError("a worker died"), StorageError("this host's disk is full"),
                                   LocalError("a bug")], ids=lambda e: type(e).__name__)  # fmt: skip
def test_what_is_this_hosts_fault_ends_it(lab: Lab, setup: WorkerSetup, error: SedgeError) -> None:
    give(lab, Failing(setup, error))
    with pytest.raises(type(error), match=str(error)):
        lab.until(lambda: lab.ended)
    lab.store.close()


OF_A_DEVICE = TrainingDiverged("nan"), DataError("wrong labels"), ConfigError("fit", 1, "a tuple")


@pytest.mark.parametrize("error", OF_A_DEVICE, ids=lambda e: type(e).__name__)
def test_what_is_the_devices_fault_it_tells_the_coordinator(
    lab: Lab, setup: WorkerSetup, error: SedgeError
) -> None:
    give(lab, Failing(setup, error))
    _, summaries = lab.play()
    assert [len(summary.devices) for summary in summaries] == [2, 3, 3, 3]


def test_a_device_that_cannot_work_costs_less_than_one_that_does(
    lab_of: Callable[..., Lab], setup: WorkerSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What three devices download in a round: one works, one waits for a gate, one declines every order."""

    def gated(identity: Identity, disk: Any, record: Any, rng: Any, incarnation: int) -> Agent:
        closed = Closed("quiet hours") if identity.device == "device-1" else OPEN
        return Agent(identity, disk, record, rng, incarnation, gate=lambda: closed)

    monkeypatch.setattr(virtual_device, "Agent", gated)
    lab = lab_of(num_rounds=16, min_train_devices=1, min_available_devices=1)
    give(lab, Failing(setup, DataError("x has wrong rows"), lambda all_: all_[-1].device == 2))
    _, summaries = lab.play()
    took_part = [{d.device for d in summary.devices} for summary in summaries]
    assert took_part == [{"device-0"}] * (16 + 1)
    works, waits, _ = (device.meter.down.total for device in lab.devices)
    assert 100 * waits < works
    declined = [summary.round for summary in summaries if summary.declined]
    assert declined == [1, 2, 4, 8, 16, 17]  # the last is the evaluation, of all


def begun_order(device: VirtualDevice) -> Order:
    """The order that a device has just accepted."""
    assert device._agent is not None
    return next(iter(device._agent.state.orders.values()))


def give(lab: Lab, pool: Any) -> None:
    """Give all devices another pool."""
    for device in lab.devices:
        device._world = replace(lab.world, pool=pool)


def test_a_record_in_memory_keeps_the_last_value() -> None:
    record = MemoryRecord()
    assert record.load() is None
    state: Any = object()
    record.commit(state)
    assert record.load() is state
