"""The agent's shell with a link and a pool of its own: what goes where, and what ends the process."""

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.edge.harness import DEVICE, DOWN, FLEET, UP, DriftTrainer, Harness, examples, make_bundle
from tests.fleet import FakeLink

from sedge_edge import runtime as runtime_module
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.rounds import waiting
from sedge_edge.runtime import OpenBundles, Runtime, pooled_runtime
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import run_job
from sedge_edge.training.trainer import Trained, Trainer, TrainingDiverged, TrainingStopped
from sedge_protocol.errors import LocalError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.mqtt import BrokerSettings, Connected, Disconnected, LinkEvent, Received
from sedge_protocol.wire.bundle import Bundle, unpack
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Goodbye, Hello, Message, Offer, Welcome
from sedge_protocol.wire.topics import blob as blob_topic
from sedge_protocol.wire.topics import hint, shard_of
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.update import decode_update


class Shelf:
    """In place of ``OpenBundles``: bundles opened with the harness's trainer."""

    def __init__(self, device: Harness) -> None:
        self.device = device

    def open(self, blobs: BlobFolder, sha256: bytes) -> tuple[Bundle, Trainer]:
        return unpack(blobs.read(sha256)), self.device.trainer


class Gated(ThreadPoolExecutor):
    """A pool whose jobs wait for the gate, so that none ends within the step that starts it."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.gate = threading.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        def gated() -> Any:
            assert self.gate.wait(timeout=20), "nobody opened the gate"
            return fn(*args, **kwargs)

        return super().submit(gated)


class Bench:
    """A runtime on a harness's agent."""

    def __init__(self, folder: Path, pool: Gated) -> None:
        self.device = Harness(folder, gated=True)
        self.data = examples(), examples()
        self.pool = pool
        self.wakes = threading.Semaphore(0)
        shelf: Any = Shelf(self.device)
        self.runtime = pooled_runtime(
            self.device.agent,
            BrokerSettings("mqtt://nowhere", "pi-1"),
            lambda: self.data,
            shelf,
            pool,
            self.wakes.release,
            self.device.gate,
        )
        link: Any = self.runtime.link
        assert isinstance(link, FakeLink)
        self.link = link

    def happen(self, *events: LinkEvent) -> list[Message]:
        """Let the link report these; the control messages that were sent in answer."""
        self.link.events += events
        already = len(self.link.sent)
        self.runtime.step()
        return self.device.messages(self.link.sent[already:])

    def tell(self, message: Message) -> list[Message]:
        return self.happen(Received(DOWN, self.device.peer.seal(message)))

    def connect(self) -> None:
        self.link.will()
        (hello,) = self.happen(Connected(400_000))
        assert isinstance(hello, Hello)
        self.tell(Welcome(hello.nonce, "0", VERSIONS))

    def start_job(self) -> None:
        """Bring the device to where a job runs in the pool."""
        self.connect()
        order = self.device.order()
        self.device.stock()
        self.tell(order)
        self.pool.gate.set()

    def wait(self) -> None:
        assert self.wakes.acquire(timeout=20), "the pool never called wake"


@pytest.fixture(autouse=True)
def fake_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "MqttLink", FakeLink)


@pytest.fixture
def bench(tmp_path: Path, fake_link: None) -> Iterator[Bench]:
    with Gated(1) as pool:
        yield Bench(tmp_path, pool)


def test_the_link_is_asked_for_what_the_loop_needs(bench: Bench) -> None:
    assert bench.link.subscriptions == (DOWN, hint(FLEET, shard_of(DEVICE)))
    assert bench.link.will()[0] == UP
    assert (bench.runtime.fileno(), bench.runtime.wants_write()) == (17, True)
    assert bench.runtime.timer() == 1e12
    bench.link.will()
    bench.happen(Connected(400_000))  # a hello is out, and due again
    assert bench.runtime.timer() < 1e12
    bench.link.due = 5.0
    assert bench.runtime.timer() == 5.0
    bench.happen(Disconnected("cut", 1.0))
    assert not bench.device.agent.welcomed


def test_a_job_runs_in_the_pool_and_its_update_is_offered(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        bench.start_job()
        bench.wait()
        assert bench.runtime.timer() == 0.0
        (offer,) = bench.happen()
        assert isinstance(offer, Offer)
        assert bench.runtime.timer() > 0.0
        assert "run run, round 1: train" in caplog.text
        assert {record.name for record in caplog.records} == {"sedge.edge.pi-1"}


def test_a_job_takes_new_examples_and_the_next_hello_says_how_many(bench: Bench) -> None:
    train, test = bench.data
    bench.data = Examples(train.inputs[:5], train.targets[:5]), test
    bench.start_job()
    bench.wait()
    (hello,) = [one for one in bench.happen() if isinstance(one, Hello)]
    assert (hello.num_train, hello.num_test) == (5, len(test.targets))
    (waiting,) = bench.device.agent.state.outbox
    report, _ = decode_update(bench.device.agent.blobs.read(waiting.blob))
    assert report.num_examples == 5


def test_it_listens_to_blobs_for_as_long_as_it_misses_them(bench: Bench) -> None:
    bench.connect()
    order = bench.device.order()
    bench.tell(order)
    wanted = [blob_topic("test", m.transfer) for m in (order.bundle, order.model)]
    assert sorted(bench.link.topics) == sorted(wanted)
    feed(bench, order.model)
    assert bench.link.topics == [blob_topic("test", order.bundle.transfer)]


def feed(bench: Bench, manifest: Manifest) -> None:
    """A blob arrives on the fleet's topic."""
    for index in range(manifest.count):
        bench.runtime._do(bench.device.chunk(manifest, index))


class Patient(DriftTrainer):
    """A trainer that works until it is told to stop."""

    def __init__(self) -> None:
        self.began = threading.Event()

    def train(self, *args: Any, **kwargs: Any) -> Trained:
        self.began.set()
        for _ in range(2000):
            if args[2]():  # stopped
                raise TrainingStopped("epoch 1 of 1, step 1: stopped")
            threading.Event().wait(0.01)
        raise AssertionError("nobody stopped the training")


class Elsewhere:
    """Whoever does the jobs, when the test says so."""

    def __init__(self, device: Harness) -> None:
        self.device = device
        self.jobs: list[tuple[Job, Future[Outcome]]] = []
        self.wakes = self.stops = 0
        settings = BrokerSettings("mqtt://nowhere", "pi-1")
        self.runtime = Runtime(device.agent, settings, self.work, self.wake, self.stop)

    def work(self, job: Job) -> Future[Outcome]:
        self.jobs.append((job, Future()))
        return self.jobs[-1][1]

    def wake(self) -> None:
        self.wakes += 1

    def stop(self) -> None:
        self.stops += 1

    def start_job(self) -> None:
        """An order whose blobs are all there."""
        self.device.connect()
        order = self.device.order()
        self.device.stock()
        link: Any = self.runtime.link
        link.will()
        link.events += [Received(DOWN, self.device.peer.seal(order))]
        self.runtime.step()


def test_jobs_may_be_done_elsewhere(tmp_path: Path) -> None:
    elsewhere = Elsewhere(device := Harness(tmp_path))
    elsewhere.start_job()
    ((job, future),) = elsewhere.jobs
    assert job == Job(device.on_disk().orders["run"])
    elsewhere.runtime.step()
    assert not device.on_disk().outbox
    assert elsewhere.wakes == 0
    future.set_result(run_job(job, device.place()))
    assert elsewhere.wakes == 1
    assert elsewhere.runtime.timer() == 0.0
    elsewhere.runtime.step()
    assert [waiting.round for waiting in device.on_disk().outbox] == [1]
    assert len(elsewhere.jobs) == 1


@pytest.mark.parametrize("error", [LocalError("a bug"), ZeroDivisionError("a bug")])
def test_our_own_bugs_end_the_process(tmp_path: Path, error: Exception) -> None:
    elsewhere = Elsewhere(device := Harness(tmp_path))
    elsewhere.start_job()
    elsewhere.jobs[0][1].set_exception(error)
    with pytest.raises(type(error)):
        elsewhere.runtime.step()
    elsewhere.runtime.close()  # still says goodbye
    link: Any = elsewhere.runtime.link
    assert link.closed
    assert device.on_disk().attempts["run"].starts == 1  # and does not take it for a stop


def test_close_does_not_wait_for_a_job_that_has_not_begun(tmp_path: Path) -> None:
    elsewhere = Elsewhere(device := Harness(tmp_path))
    elsewhere.start_job()
    elsewhere.runtime.close()
    assert elsewhere.jobs[0][1].cancelled()
    assert elsewhere.stops == 1
    assert list(device.on_disk().orders) == ["run"]
    assert device.on_disk().attempts == {}


def test_a_job_that_is_done_when_the_agent_stops_is_kept(tmp_path: Path) -> None:
    """Training may have taken hours, and an evaluation at its end does not ask whether to stop."""
    elsewhere = Elsewhere(device := Harness(tmp_path))
    elsewhere.start_job()
    ((job, future),) = elsewhere.jobs
    link: Any = elsewhere.runtime.link
    following = device.order(2)
    device.stock()
    link.events += [Received(DOWN, device.peer.seal(following))]
    elsewhere.runtime.step()
    assert future.set_running_or_notify_cancel()
    future.set_result(run_job(job, device.place()))
    elsewhere.runtime.close()
    state = device.on_disk()
    assert [waiting.round for waiting in state.outbox] == [1] and state.runs["run"].round == 1
    assert state.orders == {"run": following} and state.attempts == {}
    assert len(elsewhere.jobs) == 1  # the next one is for the next start


def test_a_job_that_fails_when_the_agent_stops_is_declined(tmp_path: Path) -> None:
    elsewhere = Elsewhere(device := Harness(tmp_path))
    elsewhere.start_job()
    future = elsewhere.jobs[0][1]
    assert future.set_running_or_notify_cancel()
    future.set_exception(TrainingDiverged("the loss is NaN (test)"))
    elsewhere.runtime.close()
    assert device.on_disk().orders == {}


def test_close_stops_the_job_and_says_goodbye(bench: Bench) -> None:
    bench.device.trainer = trainer = Patient()
    bench.start_job()
    assert trainer.began.wait(20)
    bench.runtime.close()
    assert bench.link.closed
    (goodbye,) = bench.device.messages(bench.link.sent[-1:])
    assert isinstance(goodbye, Goodbye)
    bench.pool.shutdown()
    again = bench.device.on_disk()
    assert list(again.orders) == ["run"]  # to be done at the next start
    assert again.attempts == {}  # a stop says nothing against the order


def test_a_gate_that_closes_stops_the_job_and_keeps_the_order(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "COUNTS_S", 0.0)
    bench.device.trainer = trainer = Patient()
    with caplog.at_level(logging.INFO):
        bench.start_job()
        assert trainer.began.wait(20)
        bench.device.closed = "on battery"
        bench.wait()
        (hello,) = bench.happen()
        assert isinstance(hello, Hello) and hello.waits == "on battery"
        assert list(bench.device.on_disk().orders) == ["run"]
        assert bench.device.on_disk().attempts == {}
        bench.runtime.close()
    assert "epoch 1 of 1, step 1: stopped" in caplog.text


def test_frames_and_cuts_are_passed_on_and_noted(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.connect()
    bench.happen(Received(DOWN, b"noise"), Received("elsewhere", b""))
    bench.happen(Disconnected("mqtt://nowhere: gone", 3.4))
    bench.happen(Disconnected("mqtt://nowhere: still gone", 5.0, is_news=False))
    assert "dropped a frame on" in caplog.text
    assert "mqtt://nowhere: gone; next try in 3 s" in caplog.text
    assert "still gone" not in caplog.text
    assert bench.device.agent.peer.counters["refused"] == 2


def test_the_link_waits_by_the_fleets_size(bench: Bench) -> None:
    (hello,) = bench.happen(Connected(400_000))
    assert isinstance(hello, Hello)
    bench.tell(Welcome(hello.nonce, "0", VERSIONS, devices=300))
    assert bench.link.reconnect.devices == 300


def shelf_of(tmp_path: Path, count: int) -> tuple[BlobFolder, list[bytes]]:
    blobs = BlobFolder(tmp_path, 0)
    return blobs, [blobs.write(make_bundle(seed)) for seed in range(count)]


def test_programs_are_opened_once_and_the_oldest_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, str, int]] = []

    def open_trainer(bundle: Bundle, backend: str, threads: int, *_: object) -> DriftTrainer:
        opened.append((bundle.manifest.programs[0].sha256, backend, threads))
        return DriftTrainer()

    monkeypatch.setattr(runtime_module, "open_trainer", open_trainer)
    blobs, names = shelf_of(tmp_path, 3)
    programs = OpenBundles("auto", threads=3)
    first = programs.open(blobs, names[0])
    assert programs.open(blobs, names[0]) is first
    programs.open(blobs, names[1])
    assert len(opened) == 2
    programs.open(blobs, names[2])
    assert programs.open(blobs, names[0]) is not first
    assert len(opened) == 4
    assert {(backend, threads) for _, backend, threads in opened} == {("auto", 3)}
