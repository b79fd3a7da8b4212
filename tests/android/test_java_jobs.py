"""The same order for the agent in Java and the one in Python, on the same .pte: the same update.

A step's arithmetic is the runtime's. All around it exists twice, and is here compared to the last byte:
random numbers, running statistics, padding, the optimizer, evaluation, coding.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.android import class_means
from tests.android.classes import java
from tests.android.java_fleet import MEANS
from tests.android.kinds import KINDS, exported
from tests.fleet import changed

from sedge_edge.backends import open_trainer
from sedge_edge.data import load_source
from sedge_edge.jobs.job import NOTHING, Job
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.training.job import WorkerContext, run_job
from sedge_edge.training.trainer import TrainingDiverged
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.errors import CodecError, DataError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.bundle import load, pack
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.objective import Guide
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import Report, decode_update
from sedge_protocol.wire.work import Codec

pytestmark = pytest.mark.fleet


class Pair:
    """A device's folder for each implementation, with the same blobs, data and orders."""

    def __init__(self, kind: str, folder: Path, library: Path, examples: int = 21) -> None:
        self.kind, self.folder, self.library = KINDS[kind], folder, library
        self.backend = "org.sedge.executorch.JvmExecutorch"  # in Java
        self.bundle, self.theta = load(exported(kind))
        self.blobs = {
            name: BlobFolder(folder / name, min_free_bytes=0) for name in ("java", "python")
        }
        for number, count in enumerate((examples, 10)):
            np.savez(folder / f"{number}.npz", **self.examples(count, number))  # type: ignore[arg-type]

    def examples(self, count: int, seed: int) -> dict[str, np.ndarray[Any, Any]]:
        """x, and y as the model's kind has it."""
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((count, *self.kind.row)).astype(np.float32)
        if self.kind.y == "tokens":
            y = rng.integers(0, 5, (count, 3))
            y[::2, 1] = -100
            return {"x": rng.integers(0, 7, (count, 3)), "y": y}
        classes = self.bundle.manifest.num_classes
        ys = {
            "labels": rng.integers(0, max(classes, 1), count),
            "numbers": rng.standard_normal((count, 2)),
        }
        return {"x": x} | ({"y": ys[self.kind.y]} if self.kind.y in ys else {})

    def orders(self, count: int) -> list[Order]:
        """Rounds that each begin from the same global model."""
        every = np.arange(self.theta.size, dtype=np.uint32)
        coded = encode(
            SparseVector(self.theta.size, every, self.theta), ValueCoding.FP32, Compression.ZLIB
        )
        blobs = [pack(self.bundle), coded]
        for blob in blobs:
            for device in self.blobs.values():
                device.write(blob)
        first = Order(
            run="run",
            round=1,
            task="train",
            bundle=describe(blobs[0]),
            model=describe(blobs[1]),
            model_hash=hashlib.sha256(self.theta.tobytes()).digest(),
            codec=Codec(ValueCoding.BF16, fraction=0.3, compression=Compression.NONE),
        )
        return [
            changed(first, round=i, seed=7 * i, training=self.kind.training, **self.kind.asks)
            for i in range(1, count + 1)
        ]

    def in_java(self, orders: Sequence[Order | Path], class_path: str, *options: str) -> list[str]:
        """What DoOrders prints of orders, on the examples before each; ``options`` are the JVM's."""
        files: list[Path] = []
        for number, order in enumerate(orders):
            files.append(order if isinstance(order, Path) else self.folder / f"order-{number}")
            if not isinstance(order, Path):
                files[-1].write_bytes(msgspec.msgpack.encode(order))
        data = self.folder / "0.npz", self.folder / "1.npz"
        words: list[str | Path] = [self.folder / "java", *data, self.backend, *files]
        main = "org.sedge.edge.backends.DoOrders"
        return java(class_path, main, *words, library=self.library, options=options)

    def in_python(self, orders: Sequence[Order]) -> list[bytes]:
        trainer, blobs, kept = (
            open_trainer(self.bundle, self.bundle.manifest.programs[0].backend, 1),
            self.blobs["python"],
            NOTHING,
        )
        train, test = (load_source(f"{number}.npz", self.folder) for number in (0, 1))
        found: list[bytes] = []
        for order in orders:
            context = WorkerContext(
                blobs, FolderVectors(blobs), train, test,
                lambda _: (self.bundle, trainer), lambda: False, iter(range(1000)).__next__,
            )  # fmt: skip
            outcome = run_job(Job(order, kept), context)
            kept = outcome.kept
            found.append(blobs.read(outcome.update))
        return found


def untimed(update: bytes) -> tuple[Report, bytes]:
    """An update without what depends on the clock."""
    report, payload = decode_update(update)
    return msgspec.structs.replace(report, seconds=0.0, step_s=None), bytes(payload)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "cnn"])
def test_two_rounds_end_in_the_same_updates(
    kind: str, class_path: str, library: Path, tmp_path: Path
) -> None:
    """The second round has what the first has left: error feedback, and an optimizer's state."""
    pair = Pair(kind, tmp_path, library)
    orders = pair.orders(2)
    expected = pair.in_python(orders)
    programs = tmp_path / "java" / "programs"
    programs.mkdir()
    (programs / "of an earlier job").write_bytes(b"")
    *names, _ = pair.in_java(orders, class_path)
    assert len(list(programs.iterdir())) == 1  # a .pte has both
    assert [len(name) for name in names] == [64, 64], names
    made = [pair.blobs["java"].read(bytes.fromhex(name)) for name in names]
    for update, wanted in zip(made, expected, strict=True):
        (found, payload), (report, coded) = untimed(update), untimed(wanted)
        assert msgspec.structs.asdict(found) == msgspec.structs.asdict(report)
        assert payload == coded
    assert len(set(made)) == 2


@pytest.mark.parametrize("kind", ["dropout", "regression"])
def test_the_same_numbers_in_other_types_end_in_the_same_update(
    kind: str, class_path: str, library: Path, tmp_path: Path
) -> None:
    pair = Pair(kind, tmp_path, library)
    with np.load(tmp_path / "0.npz") as data:
        x, y = (data["x"] * 10).astype(np.int32), np.round(np.abs(data["y"])) % 3
    outcomes: list[bytes] = []
    for inputs, targets in ((x, y.astype(np.int64)), (x.astype(np.float32), y.astype(np.float32))):
        np.savez(tmp_path / "0.npz", x=inputs, y=targets)
        orders = pair.orders(1)
        outcomes += [untimed(update)[1] for update in pair.in_python(orders)]
        name = pair.in_java(orders, class_path)[0]
        outcomes.append(untimed(pair.blobs["java"].read(bytes.fromhex(name)))[1])
    assert len(set(outcomes)) == 1


def test_orders_that_cannot_be_done_are_declined_in_the_same_words(
    class_path: str, library: Path, tmp_path: Path
) -> None:
    pair = Pair("regression", tmp_path, library)
    (order,) = pair.orders(1)
    changes: list[dict[str, Any]] = [
        {"keep": ("x", "none")},
        {"training": Training(freeze=("none",))},
        {"training": Training(local_epochs=30, learning_rate=100)},
        {"training": Training(learning_rate=900), "codec": Codec(ValueCoding.FP16)},
        {"model_hash": bytes(32)},
        {"model_hash": order.bundle.sha256},
        {"patch_hash": bytes(32), "patch": b"patch"},
        {"loss": "moon"},
    ]
    orders = [changed(order, **change) for change in changes]
    refused: list[str] = []
    for one in orders:
        with pytest.raises((CodecError, TrainingDiverged)) as error:
            pair.in_python([one])
        refused.append(str(error.value))
    assert pair.in_java(orders, class_path)[:-1] == refused


def test_an_order_whose_guided_loss_the_backend_has_no_program_of_is_declined(
    class_path: str, library: Path, tmp_path: Path
) -> None:
    pair = Pair("statistics", tmp_path, library)
    pair.backend = MEANS
    pair.bundle, pair.theta = class_means.bundle()
    manifest = msgspec.structs.replace(pair.bundle.manifest, guide=Guide("mine"))
    pair.bundle = msgspec.structs.replace(pair.bundle, manifest=manifest)
    x, y = class_means.examples(10, 0)
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", x=x, y=y)
    (order,) = pair.orders(1)
    order = changed(order, loss="mine")
    with pytest.raises(CodecError, match="'means': no program 'guided' for onnxruntime"):
        pair.in_python([order])
    lacks = "bundle 'means': no programs [guided, evaluate] for any of this device's backends"
    assert pair.in_java([order], class_path)[0] == lacks


def test_an_evaluation_in_which_nothing_counts_is_declined_in_the_same_words(
    class_path: str, library: Path, tmp_path: Path
) -> None:
    pair = Pair("statistics", tmp_path, library)
    pair.backend = MEANS
    pair.bundle, pair.theta = class_means.bundle(weightless=True)
    x, y = class_means.examples(10, 0)
    for number in range(2):
        np.savez(tmp_path / f"{number}.npz", x=x, y=y)
    orders = pair.orders(1)
    with pytest.raises(
        TrainingDiverged, match="the weights of the 10 examples add up to 0"
    ) as error:
        pair.in_python(orders)
    assert pair.in_java(orders, class_path)[0] == str(error.value)


UNFIT = {
    "dropout": [
        {"x": np.full((4, 6), 2**24 + 1), "y": np.zeros(4, int)},
        {"x": np.zeros((4, 5)), "y": np.zeros(4, int)},
        {"x": np.full((4, 6), np.nan), "y": np.zeros(4, int)},
        {"x": np.zeros((4, 6)), "y": np.array([0, 1, 3, 0])},
        {"x": np.zeros((4, 6)), "y": np.full(4, 0.5)},
        {"x": np.zeros((4, 6)), "y": np.array([0, 1, np.nan, 0])},
        {"x": np.zeros((4, 6))},
        {"x": np.zeros((0, 6)), "y": np.zeros(0, int)},
    ],
    "tokens": [
        {"x": np.array([[0, 1, 2], [3, 7, 0]]), "y": np.zeros((2, 3), int)},
        {"x": np.array([[0, 1, 2], [3, 0, -1]]), "y": np.zeros((2, 3), int)},
        {"x": np.zeros((2, 3), int), "y": np.array([[0, -100, 4], [5, 0, 0]])},
        {"x": np.zeros((2, 3), int), "y": np.array([[0, -100, 4], [0, 0, -1]])},
        {"x": np.zeros((2, 3), int), "y": np.array([[0, -100, 4], [-100] * 3])},
        {"x": np.zeros((2, 3), int), "y": np.zeros(2, int)},
    ],
    "regression": [
        {"x": np.zeros((4, 6)), "y": np.zeros((4, 3))},
        {"x": np.zeros((4, 6)), "y": np.full((4, 2), -(2**63))},
    ],
}


@pytest.mark.parametrize("kind", UNFIT)
def test_data_that_do_not_fit_are_refused_in_the_same_words(
    kind: str, class_path: str, library: Path, tmp_path: Path
) -> None:
    pair = Pair(kind, tmp_path, library)
    (order,) = pair.orders(1)
    refused: list[str] = []
    given: list[Order | Path] = []
    for number, data in enumerate(UNFIT[kind]):
        np.savez(tmp_path / "0.npz", **data)  # type: ignore[arg-type]
        with pytest.raises(DataError) as error:
            pair.in_python([order])
        # The agent for Linux also says which row of which file that is.
        refused.append(re.sub(r"^0\.npz, row \d+: ", "", str(error.value)))
        given += [(tmp_path / "0.npz").rename(tmp_path / f"unfit-{number}.npz"), order]
    np.savez(tmp_path / "0.npz", **pair.examples(4, 0))  # type: ignore[arg-type]
    assert pair.in_java(given, class_path)[:-1] == refused


@pytest.mark.slow
def test_a_round_of_the_cnn_fits_a_small_heap(
    class_path: str, library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A 4-layer CNN, in less heap than any phone gives an app."""
    pair = Pair("cnn", tmp_path, library)
    name, memory = pair.in_java(pair.orders(1), class_path, "-Xmx24m")
    with capsys.disabled():
        print(f"\na round of the CNN in Java, {pair.theta.size} parameters: {memory} bytes")
    assert len(name) == 64
