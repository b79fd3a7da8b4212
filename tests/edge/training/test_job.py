"""One job: where it starts, what it sends, and what it still owes."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from tests.edge.harness import LAYOUT, DriftTrainer, Harness, N, drift, examples, theta_of

from sedge_edge.jobs.job import Job, Kept, Outcome
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.training.critical_elements import critical
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import CODECS as ANNOUNCED
from sedge_edge.training.job import (
    EncodedDelta,
    JobStopped,
    complete,
    encode_delta,
    run_job,
)
from sedge_edge.training.local_training import LocalResult
from sedge_edge.training.meter import JobCost
from sedge_edge.training.preparation import Prepared, prepare
from sedge_edge.training.state_coding import encode_moments
from sedge_edge.training.trainer import (
    Moments,
    Trained,
    TrainingDiverged,
    TrainingStopped,
    TrainRequest,
)
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    decoded_values,
    encode,
    mask_bitmap,
)
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.extensions import FEATURES
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.programs import FROZEN
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics, decode_update
from sedge_protocol.wire.work import Codec, PatchChoice, UpdateSelection

# Every way of coding an update, lossy and not.
CODECS = [
    Codec(values=values, fraction=fraction)
    for values in ValueCoding
    for fraction in (1.0, 0.3, 0.001)
] + [
    Codec(threshold=0.01),
    Codec(values=ValueCoding.BF16, fraction=0.3, threshold=0.015),
    Codec(threshold=1.0),  # above everything: nothing is sent
]


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def manifest_of(device: Harness) -> BundleManifest:
    return bundles.unpack(device.served[device.bundle.transfer]).manifest


# What it sends, and what it still owes.


def coded_of(
    device: Harness, order: Order, learned: LocalResult, start: Theta, residual: bytes | None = None
) -> EncodedDelta:
    """What is coded after a training from start (n,)."""
    kept = [LAYOUT.by_name[name].slice for name in order.work.keep]
    nothing = np.empty(0, np.uint32)
    job = Job(order, Kept(residual=residual))
    prepared = Prepared(
        job, manifest_of(device), start, start, nothing, kept, device.train, device.test
    )
    return encode_delta(prepared, learned, FolderVectors(device.blobs()))


def ended(trained: Theta) -> LocalResult:
    """What came of a plain training that ends there (n,)."""
    worth = Metrics(1.0, 0.5, 10)
    return LocalResult(worth, Trained(trained, 0.5, 1), worth, trained)


def owed_of(device: Harness, owed: bytes | None) -> Theta:
    if owed is None:
        return np.zeros(N, np.float32)
    return FolderVectors(device.blobs()).read(owed, LAYOUT)


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.values}-{c.fraction}")
def test_what_is_sent_and_what_is_owed_are_the_delta_exactly(device: Harness, codec: Codec) -> None:
    start, trained = theta_of(1), theta_of(1) + drift(1)
    coded = coded_of(device, device.order(codec=codec), ended(trained), start)
    arrived, owed = decode(coded.payload, N), coded.kept.residual
    # In float64 the sum of two float32 of this size is exact: not one bit may be missing. A sign may
    # arrive so much larger than its value that their float32 difference is rounded.
    whole = arrived.dense().astype(np.float64) + owed_of(device, owed)
    rounded = 2.0**-24 * np.abs(arrived.dense()) if codec.values is ValueCoding.SIGN else 0.0
    assert (np.abs(whole - (trained - start).astype(np.float64)) <= rounded).all()
    assert arrived.count <= max(1, round(codec.fraction * N))
    lossless = codec.values is ValueCoding.FP32 and codec.fraction == 1.0 and not codec.threshold
    assert (owed is None) is lossless


def test_what_the_agent_announces_is_what_its_codec_has() -> None:
    everyone_has = {ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.INT8}
    assert set(ANNOUNCED) == {*(set(ValueCoding) - everyone_has), FROZEN, *FEATURES}
    assert len(ANNOUNCED) <= 32


# The elements that an order selects.

SELECT = UpdateSelection(0.25)
LOSSY = Codec(values=ValueCoding.INT8, fraction=0.01, threshold=0.5)


@pytest.mark.parametrize("codec", [Codec(), LOSSY], ids=["exact", "lossy"])
def test_exactly_the_critical_elements_are_sent_and_nothing_is_owed(
    device: Harness, codec: Codec
) -> None:
    old = device.blobs().write(drift(9).tobytes())
    start, trained = theta_of(1), theta_of(1) + drift(1)
    chosen = np.array([0, 3, 5, N - 1], np.uint32)
    trained[3] = start[3]  # a change of nothing is sent like any other
    order = device.order(codec=codec, select=SELECT)
    learned = replace(ended(trained), chosen=chosen)
    coded = coded_of(device, order, learned, start, old)
    assert (coded.kept.residual, coded.kept.mask is None) == (None, False)
    found = decode(coded.payload, N)
    assert found.indices is not None
    np.testing.assert_array_equal(found.indices, chosen)
    expected = decoded_values((trained - start)[chosen], codec.values)
    np.testing.assert_array_equal(found.values, expected)
    for all_or_none in (np.arange(N, dtype=np.uint32), chosen[:0]):
        learned = replace(learned, chosen=all_or_none)
        assert coded_of(device, order, learned, start).kept.mask is None


def test_a_job_that_selects_reports_what_its_elements_are_worth_alone(device: Harness) -> None:
    class Weighing(DriftTrainer):
        def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
            return Metrics(float(np.count_nonzero(theta)), 0.5, len(examples.targets))

    device.trainer = Weighing()
    outcome, blobs = job(device, device.order(3, select=SELECT, keep=("norm.mean",)))
    chosen = critical(theta_of(3) + drift(3), -drift(3), LAYOUT, ("norm.mean",), SELECT)
    report, payload = decode_update(blobs.read(outcome.update))
    found = decode(payload, N)
    assert found.indices is not None
    np.testing.assert_array_equal(found.indices, chosen)
    assert report.sparse == Metrics(chosen.size + 4.0, 0.5, 7)
    assert outcome.kept.mask == hashlib.sha256(mask_bitmap(found)).digest()
    assert outcome.kept.residual is None


@pytest.mark.parametrize("codec", CODECS[::5], ids=lambda c: f"{c.values}-{c.fraction}")
def test_what_is_remembered_is_the_coordinators_own_patch(device: Harness, codec: Codec) -> None:
    """Made from the update alone, as the coordinator does: the same name."""
    start, trained = theta_of(1), theta_of(1) + drift(1)
    coded = coded_of(device, device.order(codec=codec, remember=True), ended(trained), start)
    arrived = decode(coded.payload, N)
    theirs = start.copy()
    arrived.add_to(theirs)
    values = theirs if arrived.indices is None else theirs[arrived.indices]
    patch = encode(SparseVector(N, arrived.indices, values), ValueCoding.FP32, Compression.NONE)
    assert coded.kept.patch is not None
    assert coded.kept.patch == hashlib.sha256(patch).digest()
    assert FolderVectors(device.blobs()).read_mask(coded.kept.patch) == patch


def test_a_model_that_float32_cannot_hold_is_not_remembered(device: Harness) -> None:
    start = np.full(N, 3.4e38, np.float32)
    order = device.order(codec=Codec(values=ValueCoding.SIGN), remember=True)
    trained = start.copy()
    trained[::2] = -1e38  # a mean change of 2.2e38 for those that did not change
    with pytest.raises(TrainingDiverged, match="run run, round 1: delta: "):
        coded_of(device, order, ended(trained), start)


def test_a_model_that_is_of_no_more_use_is_let_go(device: Harness) -> None:
    """A run whose orders ask for less than they did leaves nothing behind."""
    names = [device.blobs().write(theta_of(i).tobytes()) for i in range(6)]
    device.stock()
    outcome = run_job(Job(device.order(1), Kept(*names)), device.place())
    assert (outcome.kept.part, outcome.kept.gradient, outcome.kept.patch) == (None, None, None)


# The whole job.


def job(device: Harness, order: Order, train: Examples | None = None) -> tuple[Outcome, BlobFolder]:
    blobs = device.stock()
    train, clock = examples(12) if train is None else train, iter(range(100)).__next__
    place = replace(device.place(), train=train, test=examples(7), clock=clock)
    return run_job(Job(order), place), blobs


def test_an_optimizers_state_is_used_where_it_suits_the_order(device: Harness) -> None:
    """Otherwise, as where it is lost, the optimizer starts anew."""
    held = Moments("sgd", 3, (drift(1),))
    name = FolderVectors(device.blobs()).keep_mask(encode_moments(held))
    keep = Training(optimizer_state="keep")
    others = keep, structs.replace(keep, optimizer="adam"), Training()
    for training, used in zip(others, (True, False, False), strict=True):
        order = device.order(2, training=training)
        device.stock()
        mine = Job(order, Kept(moments=name))
        moments = prepare(mine, device.place(), manifest_of(device)).moments
        assert (moments is not None) == used
        if moments is not None:
            assert (moments.optimizer, moments.steps) == ("sgd", 3)
            np.testing.assert_array_equal(moments.vectors[0], drift(1))
        # The trainer of these tests has no optimizer: what was kept is forgotten.
        assert run_job(mine, device.place()).kept.moments is None


def test_what_a_job_takes_is_reported(device: Harness) -> None:
    order = device.order(2)
    device.stock()
    seconds, heat = iter(np.arange(0.0, 1e3, 0.5)), iter((61.5, None))
    place = replace(
        device.place(),
        clock=lambda: float(next(seconds)),
        temperature_c=lambda: next(heat),
        watts=4.0,
    )
    report = run_job(Job(order), place).report
    assert report.temperature_c == 61.5
    assert report.step_s is not None and 0 < report.step_s * report.steps < report.seconds
    assert report.energy_j == 4 * report.seconds
    plain = run_job(Job(order), device.place()).report
    assert (plain.temperature_c, plain.energy_j) == (None, None)


def test_a_job_in_parts_is_the_job_as_a_whole(device: Harness) -> None:
    """Whoever trains elsewhere says how long it took, and changes nothing else."""
    orders = [device.order(i, codec=Codec(fraction=0.5), keep=("norm.mean",)) for i in (3, 4)]
    wholes = [job(device, order)[0] for order in orders]
    twelve = replace(device.place(), train=examples(12))
    prepared = [prepare(Job(order), twelve, manifest_of(device)) for order in orders]
    for one, order, whole in zip(prepared, orders, wholes, strict=True):
        worth = Metrics(1.0, 0.5, 7)
        learned = replace(ended(one.start + drift(order.seed)), before=worth, after=worth)
        assert complete(one, learned, 3.0, twelve, JobCost(1 / learned.trained.steps)) == whole
        slow = complete(one, learned, 7.5, twelve)
        assert slow.report.seconds == 7.5
        assert slow.update != whole.update


def test_a_job_that_is_stopped_leaves_no_result(device: Harness) -> None:
    class Stopped(DriftTrainer):
        def train(self, *args: Any, **kwargs: Any) -> Trained:
            raise TrainingStopped("epoch 1 of 1, step 1: stopped")

    device.trainer = Stopped()
    order = device.order(1)
    device.stock()
    before = device.blob_files()
    with pytest.raises(JobStopped) as stopped:
        job(device, order)
    assert stopped.value.checkpoint is None
    # Only the global that it started from, which the next attempt need not build again.
    assert device.blob_files() == before | {order.model_hash.hex()}


# A start that the device picks itself.


class Valuing(DriftTrainer):
    """Likes a model the more, the larger its sixth element; remembers on what it was asked."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[int]]] = []

    def train(
        self, request: TrainRequest, examples: Examples, *args: Any, **kwargs: Any
    ) -> Trained:
        self.seen.append(("train", examples.targets.tolist()))
        return super().train(request, examples, *args, **kwargs)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        self.seen.append(("evaluate", examples.targets.tolist()))
        return Metrics(1.0, min(1.0, abs(float(theta[5]))), len(examples.targets))


def picking(device: Harness, number: int, sixth: float = 0.9, **changes: Any) -> Order:
    """An order with a patch of elements 5 and 9, with which the sixth element is better than without."""
    patch = SparseVector(N, np.array([5, 9], np.uint32), np.array([sixth, 1], np.float32))
    packed = encode(patch, ValueCoding.FP32)
    return device.order(
        number,
        patch=packed,
        patch_hash=hashlib.sha256(packed).digest(),
        choice=PatchChoice(0.25, seed=11),
        **changes,
    )


def test_a_device_picks_its_start_by_examples_that_it_never_trains_on(device: Harness) -> None:
    trainer = device.trainer = Valuing()
    rng = np.random.default_rng(0)
    numbered = Examples(rng.normal(size=(12, 3)).astype(np.float32), np.arange(12) % 4)
    first = job(device, picking(device, 3), train=numbered)
    report = first[0].report
    assert report.patched is True
    assert (report.num_examples, report.before.num_examples) == (9, 7)
    start = theta_of(3)
    start[[5, 9]] = [0.9, 1]
    _, payload = decode_update(first[1].read(first[0].update))
    np.testing.assert_array_equal(decode(payload, N).dense(), start + drift(3) - start)
    assert [kind for kind, _ in trainer.seen] == ["evaluate"] * 3 + ["train", "evaluate"]
    held, trained = trainer.seen[0][1], trainer.seen[3][1]
    assert (len(held), len(trained)) == (3, 9)
    assert sorted([*held, *trained]) == sorted(numbered.targets.tolist())
    # The same examples in the next round, and in an evaluation.
    trainer.seen.clear()
    job(device, picking(device, 4), train=numbered)
    job(device, picking(device, 5, task="evaluate"), train=numbered)
    for place in (0, 5):
        assert trainer.seen[place][1] == held
        assert trainer.seen[place + 3][1] == trained
    # An update is of the start without the patch where that is better.
    outcome, blobs = job(device, picking(device, 6, sixth=0))
    assert outcome.report.patched is False
    _, payload = decode_update(blobs.read(outcome.update))
    np.testing.assert_array_equal(decode(payload, N).dense(), theta_of(6) + drift(6) - theta_of(6))
