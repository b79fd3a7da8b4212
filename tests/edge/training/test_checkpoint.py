"""Jobs that are stopped and go on: the same result as without the stop, or a fresh start, and no harm."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edge.harness import ONE_STEP, DriftTrainer, Harness, MakeDevice, drift, examples

from sedge_edge.agent import GATE_RETRY_S
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.rounds.waiting import CHECK_S
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import JobStopped, run_job
from sedge_edge.training.trainer import Trained, TrainingState, TrainingStopped, TrainRequest
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Cancel, Order
from sedge_protocol.wire.places import Place
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import OwnModel

STEPS = 4


class Stepping(DriftTrainer):
    """Trains in ``STEPS`` steps and resumes; counts the steps and evaluations that it has made."""

    def __init__(self) -> None:
        self.steps = self.evaluations = 0

    def train(
        self, request: TrainRequest, examples: Examples, stopped: Any,
        resume: TrainingState | None = None,
    ) -> Trained:  # fmt: skip
        done, models, second = 0, [request.theta], request.second
        mix = 0.0 if second is None else second.mix
        if second is not None:
            models.append(second.theta)
        if resume is not None:
            done, models, mix = resume.steps, [*resume.vectors], resume.mix
        for step in range(done, STEPS):
            if stopped():
                raise TrainingStopped("stopped", TrainingState(step, (), tuple(models), mix))
            models[0] = models[0] + drift(request.seed + step)
            models[1:] = [own - drift(request.seed + step) for own in models[1:]]
            mix, self.steps = mix / 2, self.steps + 1
        if second is not None:
            second = replace(second, theta=models[1], mix=mix)
        gradient = -models[0] if request.gradient else None
        return Trained(models[0], 0.5, STEPS, gradient, second=second)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        self.evaluations += 1
        return Metrics(float(np.abs(theta).sum()), 0.5, len(examples.targets))


class OneStep(Stepping):
    """For the core in Java, which asks for a step at a time."""

    def train(self, *args: Any, **kwargs: Any) -> Trained:
        self.steps += 1
        return DriftTrainer().train(*args, **kwargs)


@pytest.fixture
def device(make_device: MakeDevice, core: str, tmp_path: Path) -> Harness:
    harness = make_device(tmp_path)
    harness.trainer = Stepping() if core == "python" else OneStep()
    return harness


def attempt(device: Harness, job: Job, steps: int) -> Outcome | JobStopped:
    """The job, stopped after so many steps; with a clock that counts them."""
    asked = iter(range(steps))
    place = replace(device.place(), stopped=lambda: next(asked, None) is None)
    try:
        return run_job(job, place)
    except JobStopped as exc:
        return exc


def order_of(device: Harness, **changes: Any) -> Order:
    order = device.order(1, **changes)
    device.stock()
    return order


ORDERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "phases": {"then": (Training(1), Training(1))},
    "own": {"own_model": OwnModel(Training(1))},
    "mixture": {"own_model": OwnModel(Training(1), mix=0.5, adaptive=True)},
}


@pytest.mark.parametrize("changes", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("each", [1, 3, STEPS])
def test_a_job_in_pieces_is_the_job_as_a_whole(
    device: Harness, changes: dict[str, Any], each: int
) -> None:
    order = order_of(device, **changes)
    whole = attempt(device, Job(order), 1000)
    assert isinstance(whole, Outcome)
    trainer = device.trainer = Stepping()
    found, checkpoint = attempt(device, Job(order), each), None
    while isinstance(found, JobStopped):
        assert found.checkpoint is not None
        checkpoint = device.blobs().read(found.checkpoint)
        found = attempt(device, Job(order, checkpoint=checkpoint), each)
    assert (checkpoint is None) == (whole.report.steps <= each)
    assert found == whole
    assert trainer.steps == whole.report.steps  # none was made twice
    assert trainer.evaluations == 2


def test_the_time_of_every_attempt_counts(device: Harness) -> None:
    order, ticks = order_of(device), iter(range(1000))
    clocked = replace(device.place(), clock=lambda: float(next(ticks)))
    with pytest.raises(JobStopped, match=r"^stopped$") as first:
        run_job(Job(order), replace(clocked, stopped=lambda: True))
    assert first.value.checkpoint is not None
    checkpoint = device.blobs().read(first.value.checkpoint)
    assert run_job(Job(order, checkpoint=checkpoint), clocked).report.seconds == 5.0


CHANGED: dict[str, Callable[[Harness, Job], tuple[Harness, Job]]] = {
    "another order": lambda device, job: (device, replace(job, order=order_of(device, seed=5))),
    "other labels": lambda device, job: (with_labels(device), job),
    "nonsense": lambda device, job: (device, replace(job, checkpoint=b"\xc1nonsense")),
    "another version's": lambda device, job: (device, replace(job, checkpoint=b"\x81\xa3job\xc0")),
}


def with_labels(device: Harness) -> Harness:
    device.train = Examples(device.train.inputs, (device.train.targets + 1) % 4)
    return device


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_checkpoint_of_something_else_is_ignored(
    device: Harness, change: Callable[[Harness, Job], tuple[Harness, Job]]
) -> None:
    order = order_of(device)
    stopped = attempt(device, Job(order), 3)
    assert isinstance(stopped, JobStopped) and stopped.checkpoint is not None
    job = Job(order, checkpoint=device.blobs().read(stopped.checkpoint))
    device, job = change(device, job)
    fresh = attempt(device, replace(job, checkpoint=None), 1000)
    trainer = device.trainer = Stepping()
    assert attempt(device, job, 1000) == fresh
    assert trainer.steps == STEPS


def test_a_checkpoint_of_other_shuffles_starts_over_and_says_so(
    device: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    order = order_of(device)
    with monkeypatch.context() as earlier:
        # Whose epochs were numpy's.
        earlier.setattr("sedge_edge.training.checkpoint._FORMAT", b"checkpoint 3")
        stopped = attempt(device, Job(order), 3)
    assert isinstance(stopped, JobStopped) and stopped.checkpoint is not None
    trainer = device.trainer = Stepping()
    job = Job(order, checkpoint=device.blobs().read(stopped.checkpoint))
    with caplog.at_level("INFO", "sedge.edge"):
        assert attempt(device, job, 1000) == attempt(device, Job(order), 1000)
    assert trainer.steps == 2 * STEPS
    (said,) = caplog.messages
    assert said.startswith("run run, round 1: the checkpoint is from another version")


def test_a_full_disk_costs_the_checkpoint_and_nothing_else(
    device: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, place = order_of(device), device.place()
    attempt(device, Job(order), 1)  # the global model is on disk

    def full(data: bytes) -> bytes:
        raise StorageError("disk full (test)")

    monkeypatch.setattr(place.blobs, "write", full)
    with pytest.raises(JobStopped) as stopped:
        run_job(Job(order), replace(place, stopped=lambda: True))
    assert stopped.value.checkpoint is None


# The agent's side.


def paused(device: Harness, steps: int) -> bytes:
    """An order begun and stopped after so many steps. Returns the checkpoint's name."""
    device.connect()
    device.order_at_hand = order = order_in_steps(device)
    assert device.work(device.begin(order), steps) == []
    return device.on_disk().stopped["run"].checkpoint


def order_in_steps(device: Harness, number: int = 1) -> Order:
    return device.order(number, training=msgspec.structs.replace(ONE_STEP, local_epochs=STEPS))


def test_training_pauses_while_the_gate_is_closed(tmp_path: Path) -> None:
    device = Harness(tmp_path / "gated", gated=True)
    device.trainer = Stepping()
    paused(device, 3)
    device.closed = "too hot"
    device.now += CHECK_S
    device.pump([])
    assert not device.updates
    device.closed = ""
    device.now += GATE_RETRY_S
    device.settle()
    whole = Harness(tmp_path / "other")
    whole.trainer = Stepping()
    whole.connect()
    whole.give(order_in_steps(whole))
    assert device.updates == whole.updates
    assert isinstance(device.trainer, Stepping) and device.trainer.steps == STEPS


@pytest.mark.both_cores
def test_training_goes_on_after_a_restart(
    device: Harness, make_device: MakeDevice, tmp_path: Path
) -> None:
    name = paused(device, 3)
    assert device.order_at_hand is not None
    places = (Place(bytes(32), "https://cdn.example/signed?anew"),)
    device.chunk_bytes *= 2
    bundle, model = (
        device.serve(device.served[blob.transfer])
        for blob in (device.order_at_hand.bundle, device.order_at_hand.model)
    )
    device.order_at_hand = msgspec.structs.replace(
        device.order_at_hand, bundle=bundle, model=model, places=places
    )
    device.tell(device.order_at_hand)  # it is kept with its new chunks and places
    assert device.on_disk().orders == {"run": device.order_at_hand}
    device.pump(device.reboot())
    device.settle()
    assert isinstance(device.trainer, Stepping) and device.trainer.steps == STEPS
    assert device.report().steps == STEPS
    whole = make_device(tmp_path / "whole")
    whole.trainer = type(device.trainer)()
    whole.connect()
    whole.give(order_in_steps(whole))
    assert device.results() == whole.results()
    assert device.on_disk().stopped == {}
    assert name.hex() not in device.blob_files()


@pytest.mark.both_cores
def test_both_evaluations_are_on_the_same_examples(device: Harness) -> None:
    """The test file was replaced while the job was stopped."""
    paused(device, 3)
    device.test = examples(6)
    device.pump(device.reboot())
    device.settle()
    assert device.report().before.num_examples == device.report().after.num_examples == 6


@pytest.mark.both_cores
def test_a_damaged_checkpoint_costs_only_the_steps_it_had(device: Harness) -> None:
    device.damage(paused(device, 3))
    device.pump(device.reboot())
    device.settle()
    assert isinstance(device.trainer, Stepping) and device.trainer.steps == 3 + STEPS
    words = r"training starts over|own checkpoint is lost; continuing without it"
    assert any(re.search(words, note) for note in device.notes)


@pytest.mark.both_cores
@pytest.mark.parametrize("way", ["cancelled", "overtaken"])
def test_the_checkpoint_of_an_order_that_is_gone_is_deleted(device: Harness, way: str) -> None:
    name = paused(device, 3)
    device.closed = "too hot"
    device.order_at_hand = None
    assert name.hex() in device.blob_files()
    device.pump(device.tell(Cancel("run", 1, "late") if way == "cancelled" else device.order(2)))
    assert name.hex() not in device.blob_files()


def test_what_is_not_stopped_leaves_no_checkpoint(device: Harness) -> None:
    device.train = examples(4)
    device.connect()
    device.give(device.order(1))
    device.settle()
    assert device.on_disk().stopped == {}
