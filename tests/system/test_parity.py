"""The device's training against plain torch, and the cloud's view of it, bit for bit.

A real model is exported, trained by ``sedge_edge.training.job.run_job`` in ONNX Runtime, and again by a
few lines of ordinary torch: autograd, ``torch.optim.SGD``, the same batches of the same real digits.
"""

import copy
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.fleet import changed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import EXACT, WHOLE, BroadcastConfig, CodecConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.ingest.judge import judge, order_context
from sedge_cloud.rounds.lifecycle import new_round
from sedge_cloud.rounds.plans import plan_round
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.rows import ClientModelRow, UpdateRow
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.runtime import OpenBundles
from sedge_edge.training.batches import batches
from sedge_edge.training.examples import Examples, split
from sedge_edge.training.job import WorkerContext, run_job
from sedge_edge.training.preparation import prepare
from sedge_emulate.data.datasets import load
from sedge_export import export
from sedge_protocol.codec import SparseVector, ValueCoding, decode, encode
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import decode_update

BATCH = 16
# 197 examples make 12 batches and a last one of 5 rows.
TRAIN = 197
TEST = 83


def cnn(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Convolution, normalisation, max-pool and two linear layers, for (1, 8, 8) and ten classes."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        norm(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 24),
        nn.ReLU(),
        nn.Linear(24, 10),
    )


def group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(4, channels)


def batch_norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, momentum=0.2)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": lambda: cnn(group_norm),
    "batchnorm": lambda: cnn(batch_norm),
    "mlp": mlp,
}


@dataclass(frozen=True)
class Exported:
    """A model, its bundle, and the first theta (n,)."""

    model: nn.Module
    folder: Path
    bundle: Bundle
    theta: Theta

    @property
    def layout(self) -> Layout:
        return self.bundle.manifest.layout


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    torch.set_num_threads(1)
    found: dict[str, Exported] = {}
    for name, make in MODELS.items():
        torch.manual_seed(1)
        model, folder = make(), tmp_path_factory.mktemp(name)
        sample = torch.randn(BATCH, 1, 8, 8)
        export(model, sample, batch_size=BATCH, name=name, num_classes=10, folder=folder)
        bundle, theta = bundles.load(folder)
        found[name] = Exported(model, folder, bundle, theta)
    return found


@pytest.fixture(scope="module")
def digits() -> tuple[Examples, Examples]:
    data = load("digits")
    rows = np.random.default_rng(2).permutation(len(data.targets))[: TRAIN + TEST]
    return split(Examples(data.inputs[rows], data.targets[rows]), TEST / len(rows), seed=0)


class Twin:
    """The same training in plain torch."""

    def __init__(self, model: nn.Module, layout: Layout, theta: Theta) -> None:
        self.model = copy.deepcopy(model)
        self.layout = layout
        held = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self.tensors: dict[str, Tensor] = {t.name: held[t.name] for t in layout.tensors}
        with torch.no_grad():
            for name, values in layout.views(theta).items():
                self.tensors[name].copy_(torch.from_numpy(values.copy()))

    @property
    def theta(self) -> Theta:
        arrays = {name: t.detach().numpy().astype(np.float32) for name, t in self.tensors.items()}
        return self.layout.flatten(arrays)

    def train(
        self,
        examples: Examples,
        training: Training,
        seed: int,
        safe: bool,
        correction: Theta | None = None,
    ) -> None:
        """Train on exactly the batches that the device uses; padded rows are left out, not weighted."""
        settings = training.learning_rate, training.momentum
        optimizer = torch.optim.SGD(self.model.parameters(), lr=settings[0], momentum=settings[1])
        start = [p.detach().clone() for p in self.model.parameters()]
        self.model.train()
        epochs, mode = training.local_epochs, training.last_batch
        for batch in batches(len(examples.targets), BATCH, epochs, mode, seed, safe):
            rows = batch.indices[batch.weights > 0]
            loss = cross_entropy(
                self.model(torch.from_numpy(examples.inputs[rows])),
                torch.from_numpy(examples.targets[rows]),
            )
            for parameter, first in zip(self.model.parameters(), start, strict=True):
                loss = loss + training.prox / 2 * ((parameter - first) ** 2).sum()
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            if correction is not None:
                for name, added in self.layout.views(correction).items():
                    slope = self.tensors[name].grad
                    assert slope is not None
                    slope += torch.from_numpy(added.copy())
            optimizer.step()

    def accuracy(self, examples: Examples) -> float:
        self.model.eval()
        with torch.no_grad():
            outputs = self.model(torch.from_numpy(examples.inputs))
        right = outputs.argmax(1) == torch.from_numpy(examples.targets)
        return float(right.double().mean())


def order_for(blobs: BlobFolder, made: Exported, **changes: object) -> Order:
    """An order to train from the bundle's first theta, its blobs already on the device."""
    packed = bundles.pack(made.bundle)
    coded = encode(SparseVector(made.theta.size, None, made.theta), ValueCoding.FP32)
    for blob in (packed, coded):
        blobs.write(blob)
    order = Order(
        run="run",
        round=1,
        task="train",
        bundle=describe(packed),
        model=describe(coded),
        model_hash=hashlib.sha256(made.theta.tobytes()).digest(),
        seed=11,
    )
    return changed(order, **changes)


def place_of(blobs: BlobFolder, data: tuple[Examples, Examples]) -> WorkerContext:
    programs = OpenBundles("onnxruntime", threads=1)
    vectors = FolderVectors(blobs)
    return WorkerContext(
        blobs, vectors, *data, lambda h: programs.open(blobs, h), lambda: False, lambda: 0.0
    )


def do(order: Order, blobs: BlobFolder, data: tuple[Examples, Examples]) -> Outcome:
    return run_job(Job(order), place_of(blobs, data))


def check_close(found: Theta, twin: Twin, start: Theta) -> None:
    """theta (n,) agrees to 1e-4 of the change, over all and tensor by tensor."""
    change = np.abs(twin.theta - start)
    assert change.max() > 1e-3
    assert np.abs(found - twin.theta).max() <= 1e-4 * change.max()
    for tensor in twin.layout.tensors:
        place = tensor.slice
        error = np.abs(found[place] - twin.theta[place]).max()
        # One unit in the last place of the values themselves is as close as float32 comes.
        floor = 4e-7 * np.abs(start[place]).max()
        assert error <= 1e-3 * change[place].max() + floor, tensor.name


CASES: dict[str, tuple[str, Training]] = {
    "padded": ("cnn", Training(learning_rate=0.05, momentum=0.9)),
    "filled, two epochs": (
        "cnn", Training(local_epochs=2, learning_rate=0.05, momentum=0.9, last_batch="fill")
    ),
    "dropped": ("mlp", Training(learning_rate=0.05, momentum=0.9, last_batch="drop")),
    "padding becomes filling": ("batchnorm", Training(learning_rate=0.05, momentum=0.5)),
    "statistics, two epochs": (
        "batchnorm",
        Training(local_epochs=2, learning_rate=0.05, momentum=0.5, last_batch="drop"),
    ),
    "prox": ("mlp", Training(learning_rate=0.05, momentum=0.5, prox=0.5)),
    "correction": ("mlp", Training(learning_rate=0.05, momentum=0.5)),
    "fewer than a batch": ("cnn", Training(learning_rate=0.05)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_device_trains_as_torch_does(
    exported: dict[str, Exported], digits: tuple[Examples, Examples], tmp_path: Path, case: str
) -> None:
    (name, training), (train, test) = CASES[case], digits
    made, blobs = exported[name], BlobFolder(tmp_path, 0)
    order, added = order_for(blobs, made, training=training), None
    if case == "fewer than a batch":
        train = Examples(train.inputs[:5], train.targets[:5])
    if case == "correction":
        added = np.random.default_rng(3).normal(0, 0.02, made.theta.size).astype(np.float32)
        coded = encode(SparseVector(added.size, None, added), ValueCoding.FP32)
        blobs.write(coded)
        order = changed(order, correction=describe(coded))
    outcome = do(order, blobs, (train, test))
    statistics = made.layout.mask(made.layout.statistics)
    assert made.bundle.manifest.uses_batch_statistics == statistics.any() == (name == "batchnorm")
    twin = Twin(made.model, made.layout, made.theta)
    before = twin.accuracy(test)
    twin.train(train, training, seed=11, safe=not statistics.any(), correction=added)
    assert outcome.kept.model is not None
    found = FolderVectors(blobs).read(outcome.kept.model, made.layout)
    check_close(found, twin, made.theta)
    assert (found[statistics] != made.theta[statistics]).all()
    report, count = outcome.report, len(train.targets)
    assert (report.before.metric, report.after.metric) == pytest.approx(
        (before, twin.accuracy(test)), abs=1e-12
    )
    assert (report.num_examples, report.before.num_examples) == (count, TEST)
    steps = count // BATCH if training.last_batch == "drop" else -(-count // BATCH)
    assert report.steps == training.local_epochs * steps
    if count == TRAIN:
        assert report.after.loss < 0.99 * report.before.loss


def test_the_same_order_gives_the_same_bytes(
    exported: dict[str, Exported], digits: tuple[Examples, Examples], tmp_path: Path
) -> None:
    """Work that a power cut repeats must not become another update."""
    updates: set[bytes] = set()
    for attempt in ("first", "second"):
        blobs = BlobFolder(tmp_path / attempt, 0)
        updates.add(do(order_for(blobs, exported["cnn"]), blobs, digits).update)
    assert len(updates) == 1


# The cloud's side.


@pytest.mark.parametrize(
    ("codec", "broadcast"),
    [
        (EXACT, BroadcastConfig(ValueCoding.BF16, 0.1)),
        (CodecConfig(values=ValueCoding.BF16, fraction=0.1), WHOLE),
        (
            CodecConfig(values=ValueCoding.INT8, fraction=0.5),
            BroadcastConfig(ValueCoding.BF16, 0.1),
        ),
    ],
    ids=["dense", "bf16", "int8"],
)
def test_the_cloud_holds_start_and_delta_bit_for_bit(
    exported: dict[str, Exported],
    digits: tuple[Examples, Examples],
    tmp_path: Path,
    codec: CodecConfig,
    broadcast: BroadcastConfig,
) -> None:
    """Two rounds of FedOBP, the second from a patch: the run_store's vectors are the device's."""
    made, blobs = exported["cnn"], BlobFolder(tmp_path / "device", 0)
    config = RunConfig(
        strategy="fedobp",
        options={"quantile": 0.9},
        codec=codec,
        broadcast=broadcast,
        min_train_devices=1,
        min_available_devices=1,
    )
    store = open_folder(tmp_path / "cloud")
    start_run(store, "run", made.folder, config)
    run_store, run = RunStore(store), Run(store.runs()[0], store)
    size = made.layout.size
    patched = 0
    for number in (1, 2):
        planned = plan_round(run, run_store, number, ["pi-1"], lambda device: None)
        opened = new_round(run, number, "train", planned.orders, 0.0)
        store.open_round(opened.row, planned.orders)
        round_, given = opened.row, opened.orders["pi-1"]
        patch = store.blobs.read(given.patch_blob) if given.patch_blob else given.patch
        patched += bool(patch)
        coded = store.blobs.read(round_.model)
        order = order_for(
            blobs,
            made,
            round=number,
            bundle=run.bundles[0],
            model=describe(coded),
            model_hash=round_.model_hash,
            patch=patch,
            patch_hash=given.patch_hash,
            codec=codec,
            training=Training(learning_rate=0.05, momentum=0.5),
        )
        blobs.write(coded)
        outcome = do(order, blobs, digits)
        start = prepare(Job(order), place_of(blobs, digits), made.bundle.manifest).start
        update = blobs.read(outcome.update)
        delta = decode(decode_update(update)[1], size).dense()

        store.blobs.write(update)
        report = judge(order_context(run_store, run, round_, given), update).report
        assert report == outcome.report
        row = UpdateRow(
            "run", number, "pi-1", outcome.update, msgspec.msgpack.encode(report), len(update), 0
        )
        memory = ClientModelRow("run", "pi-1", number, round_.model, patch, outcome.update, b"")
        store.commit_receipt(row, memory)
        base = run_store.theta(round_.model, size)
        (seen,) = run_store.updates(run, number, base, [row])
        assert seen.trained.tobytes() == (start + delta).tobytes()
        known = run_store.client_model(run, "pi-1").trained
        assert known is not None
        assert known.tobytes() == (start + delta).tobytes()

        assert outcome.kept.model is not None
        trained = FolderVectors(blobs).read(outcome.kept.model, made.layout)
        if codec.fraction == 1.0 and codec.values is ValueCoding.FP32:
            # fl(start + fl(trained - start)) is trained up to its last bit.
            np.testing.assert_allclose(seen.trained, trained, rtol=3e-7, atol=1e-8)
        # The next round's global is another than the device's own model, so that there is a patch.
        run.state = run_store.write_state(
            run,
            run.strategy.apply(run_store.context(run), run_store.updates(run, number, base, [row])),
        )
        run.state = msgspec.structs.replace(
            run.state, **dict(zip(("model", "model_hash"), shifted(run_store, run), strict=True))
        )
    assert patched == 1
    store.close()


def shifted(run_store: RunStore, run: Run) -> tuple[bytes, bytes]:
    """The run's global, moved as other devices' updates would: its blob and its hash."""
    theta = run_store.theta(run.state.model, run.manifest.layout.size)
    noise = np.random.default_rng(5).normal(0, 0.01, theta.size).astype(np.float32)
    blob, sha256, _ = run_store.write_model(theta + noise, run.config.broadcast.compression)
    return blob, sha256
