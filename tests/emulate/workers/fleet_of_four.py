"""A small fleet's setup, orders on it, and a pool without processes."""

import hashlib
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tests.fleet import changed

from sedge_emulate.config import ModelConfig, TrainerConfig
from sedge_emulate.data.datasets import Dataset
from sedge_emulate.data.shares import Shares
from sedge_emulate.model import ModelSource, Sample, export_model
from sedge_emulate.virtual.disk import HostDisk
from sedge_emulate.workers.pool import raised
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Failed, Finished, Request, Worker
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import load, pack
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.work import Work

BATCH = 8
CLASSES = 3
TRAINING = Training(local_epochs=2, learning_rate=0.1, momentum=0.5)


def make_shares(devices: int = 4, features: int = 6) -> Shares:
    """Devices with three clouds of points each, all of different size."""
    rng = np.random.default_rng(0)
    counts = [40 + 3 * number for number in range(devices)]
    ends = np.cumsum(counts)
    targets = np.arange(ends[-1]) % CLASSES
    inputs = rng.normal(targets[:, None], 1.0, (len(targets), features)).astype(np.float32)
    parts = [
        (np.arange(end - count, end - 10), np.arange(end - 10, end))
        for count, end in zip(counts, ends, strict=True)
    ]
    return Shares.of(Dataset("clouds", inputs, targets, CLASSES), parts)


def make_setup(
    folder: Path, backend: str = "onnx", devices: int = 4, features: int = 6
) -> WorkerSetup:
    """Shares and an exported model in a folder, made once: 2,003 parameters for 6 features."""
    source = ModelSource(
        "mlp", "", folder, (features,), CLASSES, "class", ModelConfig(batch_size=BATCH)
    )
    if not (folder / "bundle").exists():
        shares = make_shares(devices, features)
        shares.save(folder / "data")
        dataset = Dataset("clouds", shares.inputs, shares.targets, CLASSES)
        export_model(source, Sample.of(source, dataset), 0, folder / "bundle")
    trainer = TrainerConfig(backend=backend)
    return WorkerSetup(folder / "data", folder / "bundle", source, trainer)


def with_backend(setup: WorkerSetup, backend: str) -> WorkerSetup:
    """The same setup with another trainer."""
    return replace(setup, trainer=TrainerConfig(backend=backend))


class OrderMaker:
    """Orders for devices of a setup, whose blobs lie on a host's disk below ``home``."""

    def __init__(self, setup: WorkerSetup, home: Path) -> None:
        self.home = home
        self.disk = HostDisk(home)
        bundle, self.theta = load(setup.bundle)
        self.layout = bundle.manifest.layout
        self.bundle = self.put(pack(bundle))

    def put(self, blob: bytes) -> Manifest:
        """Lay a blob on the host's disk."""
        manifest = describe(blob)
        (self.disk.blobs / manifest.sha256.hex()).write_bytes(blob)
        return manifest

    def order(self, number: int = 1, theta: Theta | None = None, **changes: Any) -> Order:
        """An order to train from theta (n,), by default the exported one."""
        start = self.theta if theta is None else theta
        whole = SparseVector(start.size, None, start)
        order = Order(
            run="run", round=number, task="train", bundle=self.bundle,
            model=self.put(encode(whole, ValueCoding.FP32)),
            model_hash=hashlib.sha256(start.tobytes()).digest(),
            seed=number, work=Work(training=TRAINING),
        )  # fmt: skip
        return changed(order, **changes)


class InlinePool:
    """A pool that does the jobs in this process: at once, or with ``hold`` when it is asked to."""

    workers = 1
    peak_rss = 0
    failure: Exception | None = None

    def __init__(self, setup: WorkerSetup, hold: bool = False) -> None:
        self.worker = Worker(setup)
        self.trainer = setup.trainer.backend
        self.train_s = 0.0
        self.requests: list[Request] = []
        self.errors: list[SedgeError] = []
        self.waiting: list[tuple[Request, Future[Finished]]] = []
        self._hold = hold

    def submit(self, request: Request, size: int) -> Future[Finished]:
        """As ``WorkerPool.submit``."""
        future: Future[Finished] = Future()
        self.requests.append(request)
        self.waiting.append((request, future))
        if not self._hold:
            self.flush()
        return future

    def judge(self, theta: Theta) -> float | None:
        """As ``WorkerPool.judge``."""
        return self.worker.judge(theta)

    def flush(self) -> None:
        """As ``WorkerPool.flush``, but done on return."""
        while self.waiting:
            request, future = self.waiting.pop(0)
            answers = self.worker.perform([request])
            self.train_s += answers.train_s
            answer = answers.answers[0]
            if isinstance(answer, Failed):
                self.errors.append(raised(answer))
                future.set_exception(self.errors[-1])
            else:
                future.set_result(answer)
