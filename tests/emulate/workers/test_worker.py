"""A worker's jobs: alone or in a group, and what of them stays on the host's disk."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.emulate.workers.fleet_of_four import OrderMaker, with_backend
from tests.fleet import failing

from sedge_edge.backends import open_trainer
from sedge_edge.jobs.job import Job, Kept
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.training.job import WorkerContext, run_job
from sedge_emulate.config import TrainerConfig
from sedge_emulate.data.shares import Shares
from sedge_emulate.training import choice
from sedge_emulate.workers import worker as module
from sedge_emulate.workers.job_disk import JobVectors
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Failed, Finished, Request, Worker
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.errors import LocalError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import decode_update, encode_update
from sedge_protocol.wire.work import (
    Codec,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    Step,
    UpdateSelection,
)

DEVICES = 4
KEY = b"k" * 32
BATCHED = "vectorised"


@pytest.fixture(scope="module", params=["onnx", BATCHED])
def worker(request: pytest.FixtureRequest, setup: WorkerSetup) -> Worker:
    return Worker(with_backend(setup, request.param))


def request_of(maker: OrderMaker, device: int, order: Order, **own: bytes) -> Request:
    key = hashlib.sha256(f"{device}/{order.round}".encode()).digest()
    return Request(device, Job(order, Kept(**own)), maker.home, key, 2.0)


def done(answer: Finished | Failed) -> Finished:
    assert isinstance(answer, Finished), answer
    return answer


def vector(maker: OrderMaker, name: bytes | None) -> Theta:
    assert name is not None
    return np.fromfile(maker.disk.vectors / name.hex(), np.float32)


ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "phases": {"then": (Training(learning_rate=0.05, prox=0.5),)},
    "ditto": {"own_model": OwnModel(Training(prox=0.5))},
    "apfl": {"own_model": OwnModel(mix=0.25, adaptive=True)},
    "critical": {"select": UpdateSelection(), "remember": True},
    "own": {"scoring": DeviceScoring(0.9, "fisher")},
    "optimizer": {"training": Training(optimizer="adam", optimizer_state="keep")},
    "choice": {"choice": PatchChoice(0.25, 3)},
}


def patched(size: int, seed: int) -> dict[str, Any]:
    """The fields of an order with a patch of 40 elements."""
    rng = np.random.default_rng(seed)
    places = np.sort(rng.choice(size, 40, replace=False)).astype(np.uint32)
    patch = SparseVector(size, places, rng.normal(0, 0.3, 40).astype(np.float32))
    packed = encode(patch, ValueCoding.FP32)
    return {"patch": packed, "patch_hash": hashlib.sha256(packed).digest()}


@pytest.mark.parametrize("asked", ASKED)
def test_a_job_has_the_outcome_that_the_device_itself_would_have(
    setup: WorkerSetup, maker: OrderMaker, tmp_path: Path, asked: str
) -> None:
    """Two rounds, with what the first left: residual, mask, the device's own model and all else."""
    bundle, theta = load(setup.bundle)
    trainer = open_trainer(bundle, "onnxruntime", 1)
    train, test = Shares.open(setup.data).examples(1)
    codec = Codec(values=ValueCoding.BF16, fraction=0.1)
    worker = Worker(setup)
    folder, opened = BlobFolder(tmp_path / "device", 0), (bundle, trainer)
    place = WorkerContext(
        folder, FolderVectors(folder), train, test, lambda _: opened, lambda: False, lambda: 7.0
    )
    mine, theirs = Job(maker.order()), Job(maker.order())
    tensor = maker.layout.tensors[0].name
    for number in (1, 2):
        context = mine.kept.mask or b""
        more = ASKED[asked] | (patched(theta.size, number) if asked == "choice" else {})
        more |= {"codec": codec, "keep": (tensor,), "context": context}
        order = maker.order(number, theta + number, **more)
        for manifest in (order.bundle, order.model):
            folder.write((maker.disk.blobs / manifest.sha256.hex()).read_bytes())
        mine, theirs = replace(mine, order=order), replace(theirs, order=order)
        expected = run_job(theirs, place)
        request = Request(1, mine, maker.home, bytes([number]) * 32, 0.0)
        found = done(worker.perform([request]).answers[0])
        # A device also measures its steps.
        assert expected.report.step_s == 0.0
        report = msgspec.structs.replace(expected.report, step_s=None)
        _, payload = decode_update(folder.read(expected.update))
        assert found.outcome.report == report
        assert found.update == encode_update(report, bytes(payload))
        left, twins = found.outcome.kept, expected.kept
        assert (twins.moments is not None) == (asked == "optimizer")
        assert (left.moments, left.mask, left.patch) == (twins.moments, twins.mask, twins.patch)
        assert left.model is not None
        for name in ("model", "residual", "part", "gradient"):
            own, twin = getattr(left, name), getattr(twins, name)
            assert (own is None) is (twin is None)
            if twin is not None:
                assert vector(maker, own).tobytes() == folder.read(twin)
        mine, theirs = Job(order, left), Job(order, twins)


def test_a_group_gives_the_bytes_that_each_gives_alone(worker: Worker, maker: OrderMaker) -> None:
    kept = maker.order(keep=(maker.layout.tensors[0].name,))
    requests = [request_of(maker, number, kept) for number in range(DEVICES)]
    together = worker.perform(requests)
    assert together.pid == os.getpid()
    assert together.train_s > 0 and together.peak_rss > 2**20
    for request, answer in zip(requests, together.answers, strict=True):
        first = vector(maker, done(answer).outcome.kept.model)
        assert worker.perform([request]).answers == [answer]
        assert vector(maker, done(answer).outcome.kept.model).tobytes() == first.tobytes()
    updates = {done(answer).update for answer in together.answers}
    assert len(updates) == DEVICES


def test_a_virtual_device_keeps_its_own_model_only_for_what_it_keeps_alone(
    worker: Worker, maker: OrderMaker
) -> None:
    cases: list[tuple[bool, dict[str, Any]]] = [
        (True, {"own_model": OwnModel()}),
        (True, {"scoring": DeviceScoring(0.5)}),
        (True, {"keep": (maker.layout.tensors[0].name,)}),
        (False, {}),
        (False, {"own_model": OwnModel(mix=0.5)}),
        (False, {"select": UpdateSelection()}),
    ]
    for keeps, changes in cases:
        (answer,) = worker.perform([request_of(maker, 0, maker.order(**changes))]).answers
        assert (done(answer).outcome.kept.model is not None) is keeps


def test_one_that_fails_does_not_touch_the_others(worker: Worker, maker: OrderMaker) -> None:
    good = maker.order()
    missing = msgspec.structs.replace(good.model, sha256=bytes(32))
    patch = encode(SparseVector(maker.theta.size, None, maker.theta + 1e38), ValueCoding.FP32)
    hash_of_patch = hashlib.sha256(patch).digest()
    step = Step(good.model_hash, maker.put(b"no delta"))
    base = JobVectors(maker.home, KEY, {})
    base.keep_version(maker.theta, good.model_hash)
    bad = {
        "CodecError": maker.order(2, patch=b"patch", patch_hash=bytes(32)),
        "TrainingDiverged": maker.order(3, patch=patch, patch_hash=hash_of_patch),
        "BrokenSteps": maker.order(4, model_hash=bytes(32), steps=(step,)),
        "StorageError": maker.order(5, model=missing, model_hash=bytes(32)),
    }
    orders = [good, *bad.values(), good]
    requests = [request_of(maker, i % DEVICES, order) for i, order in enumerate(orders)]
    first, *failed, last = worker.perform(requests).answers
    assert [answer.kind for answer in failed if isinstance(answer, Failed)] == list(bad)
    assert worker.perform([requests[0]]).answers == [first]
    assert worker.perform([requests[-1]]).answers == [last]


def test_data_of_another_shape(setup: WorkerSetup, maker: OrderMaker, tmp_path: Path) -> None:
    shares = Shares.open(setup.data)
    replace(shares, inputs=np.asarray(shares.inputs)[:, :5]).save(tmp_path / "narrow")
    narrow = Worker(replace(setup, data=tmp_path / "narrow"))
    (answer,) = narrow.perform([request_of(maker, 0, maker.order())]).answers
    assert isinstance(answer, Failed) and answer.kind == "DataError"


def test_a_function_of_the_users_that_fails_says_what_it_is(
    setup: WorkerSetup, maker: OrderMaker, tmp_path: Path
) -> None:
    (tmp_path / "failing_fit.py").write_text(
        "def fit(parameters, examples, settings):\n    raise KeyError('rate')\n"
        "def evaluate(parameters, examples):\n    return 1.0, 1, {'accuracy': 0.5}\n"
    )
    trainer = TrainerConfig(backend="failing_fit:fit")
    own = Worker(replace(setup, trainer=trainer, model=replace(setup.model, base=tmp_path)))
    (answer,) = own.perform([request_of(maker, 0, maker.order())]).answers
    assert isinstance(answer, Failed) and answer.kind == "ConfigError"
    assert answer.text.startswith("failing_fit:fit: found \"KeyError: 'rate'\"")


def test_an_evaluation_sends_a_report_and_keeps_nothing(worker: Worker, maker: OrderMaker) -> None:
    own = JobVectors(maker.home, KEY, {}).keep(maker.theta)
    request = request_of(maker, 0, maker.order(task="evaluate", upload=False), model=own)
    files = {path.name for path in maker.disk.vectors.iterdir()}
    found = done(worker.perform([request]).answers[0])
    kept = found.outcome.kept
    assert (kept.model, kept.residual, kept.mask) == (own, None, None)
    report, payload = decode_update(found.update)
    assert report == found.outcome.report
    assert (report.task, bytes(payload)) == ("evaluate", b"")
    new = {path.name for path in maker.disk.vectors.iterdir()} - files
    assert new <= {request.job.order.model_hash.hex()}


def test_time_is_the_plans_or_the_clocks(worker: Worker, maker: OrderMaker) -> None:
    request = request_of(maker, 0, maker.order())
    virtual, real = worker.perform([request, replace(request, seconds=None)]).answers
    assert done(virtual).outcome.report.seconds == 2.0
    assert 0 < done(real).outcome.report.seconds < 60


def test_a_folder_of_ones_own(worker: Worker, maker: OrderMaker, tmp_path: Path) -> None:
    order = maker.order()
    folder = BlobFolder(tmp_path / "own", 0)
    for manifest in (order.bundle, order.model):
        folder.write((maker.disk.blobs / manifest.sha256.hex()).read_bytes())
    found = done(worker.perform([Request(0, Job(order), tmp_path / "own")]).answers[0])
    assert folder.read(found.outcome.update) == found.update
    assert found.outcome.kept.model is not None
    assert folder.has(found.outcome.kept.model)
    assert list(maker.disk.vectors.iterdir()) == []


def test_our_own_bugs_are_not_told_to_a_coordinator(setup: WorkerSetup, maker: OrderMaker) -> None:
    bug, request = LocalError("a rule is broken"), request_of(maker, 0, maker.order())
    with failing(module, "prepare", bug), pytest.raises(LocalError, match="a rule is broken"):
        Worker(setup).perform([request])


def test_an_unusable_gpu_is_noted(setup: WorkerSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    anywhere = replace(setup, trainer=msgspec.structs.replace(setup.trainer, device="auto"))
    monkeypatch.setattr(module, "_worker", Worker(anywhere))
    old = choice._Unusable("trainer.device", "cuda", "a device that PyTorch supports: it is old")
    with failing(choice, "_device", old):
        name, width, (note,) = module.describe()
    assert (name, width) == ("onnx", 1)
    assert note.startswith("trainer.device: training on the CPU: trainer.device: found")
    assert note.endswith("it is old")


def test_a_process_that_was_not_started() -> None:
    with pytest.raises(LocalError, match="before it was started"):
        module.describe()
    with pytest.raises(LocalError, match="before it was started"):
        module.perform([])
