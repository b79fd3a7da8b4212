"""The memory that jobs are said to need is what they take, whatever an order asks for."""

import hashlib
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.fleet import bundle_of

from sedge_edge.backends.bundle_trainer import Arrays, BundleTrainer
from sedge_edge.jobs.job import Job
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import WorkerContext, run_job
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.objective import Guide
from sedge_protocol.wire.programs import Signature
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import (
    Blend,
    Codec,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    UpdateSelection,
    Work,
)

N = 400_000
LAYOUT = Layout.of([("weight", (N,), Role.PARAMETER)])
GUIDE = Guide("guide", ("start", "previous"))
BUNDLE = bundle_of(LAYOUT, {}, 1, 2, batch_size=4, guide=GUIDE)
ROWS = Examples(np.ones((8, 1), np.float32), np.zeros(8, np.int64))
ADAM = Training(optimizer="adam")


class Program:
    """A program that puts each gradient together in memory of its own, as the runtimes do."""

    def __init__(self, signature: Signature) -> None:
        self._name = signature.program
        self._memory: Theta | None = None

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        if self._name == "evaluate":
            return [np.ones((), np.float32)] * 3
        self._memory = np.multiply(feeds["theta"], np.float32(0.1))
        gradient = self._memory.copy()
        if last:
            self._memory = None
        return [gradient, np.ones((), np.float32)]


@pytest.mark.parametrize(
    ("work", "values"),
    [
        (Work(training=Training()), ValueCoding.INT8),
        (Work(training=Training()), ValueCoding.FP32),
        (Work(training=Training()), ValueCoding.BF16),
        (Work(training=Training(momentum=0.9, weight_decay=1e-4)), ValueCoding.BF16),
        (Work(training=Training(prox=0.1)), ValueCoding.BF16),
        (Work(training=ADAM), ValueCoding.BF16),
        (
            Work(training=Training(optimizer="adamw", weight_decay=0.1, clip_norm=1.0)),
            ValueCoding.BF16,
        ),
        (Work(training=Training(average=0.5)), ValueCoding.BF16),
        (Work(training=Training(), blend=Blend(0.75)), ValueCoding.BF16),
        (Work(training=Training(optimizer="adam", optimizer_state="keep")), ValueCoding.BF16),
        (Work(training=Training(momentum=0.9, optimizer_state="keep")), ValueCoding.BF16),
        (Work(training=Training(), then=(Training(), ADAM)), ValueCoding.BF16),
        (
            Work(training=Training(), own_model=OwnModel(training=Training(prox=0.1))),
            ValueCoding.BF16,
        ),
        (Work(training=Training(), own_model=OwnModel(mix=0.5)), ValueCoding.BF16),
        (Work(training=ADAM, own_model=OwnModel(mix=0.5)), ValueCoding.BF16),
        (Work(training=Training(), select=UpdateSelection()), ValueCoding.BF16),
        (Work(training=Training(), scoring=DeviceScoring(0.5)), ValueCoding.BF16),
        (Work(training=Training(), choice=PatchChoice(0.5)), ValueCoding.BF16),
        (Work(training=Training(), loss=GUIDE.name), ValueCoding.BF16),
    ],
)
def test_a_job_holds_as_many_vectors_as_it_says(
    work: Work, values: ValueCoding, tmp_path: Path
) -> None:
    theta = np.random.default_rng(0).standard_normal(N, np.float32)
    model = encode(SparseVector(N, None, theta), ValueCoding.FP32)
    order = Order(
        run="run", round=1, task="train", bundle=describe(b"bundle"), model=describe(model),
        model_hash=hashlib.sha256(theta.tobytes()).digest(), work=work,
        codec=Codec(values, 0.01 if values is ValueCoding.BF16 else 1.0),
    )  # fmt: skip
    blobs = BlobFolder(tmp_path, 0, durable=False)
    blobs.write(model)
    context = WorkerContext(
        blobs, FolderVectors(blobs), ROWS, ROWS,
        lambda _: (BUNDLE, BundleTrainer(BUNDLE, Program)), lambda: False, lambda: 0.0,
    )  # fmt: skip
    kept = run_job(Job(order), context).kept  # some hold more from their second round on
    tracemalloc.start()
    try:
        run_job(Job(order, kept), context)
        peak = tracemalloc.get_traced_memory()[1] / theta.nbytes
    finally:
        tracemalloc.stop()
    expected = work.vectors(Training()) + 1  # the program's
    assert expected - 1 < peak < expected + 0.15
