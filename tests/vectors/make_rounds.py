"""What spec.json has of whole rounds: jobs of rule T13's model, a line, and versions of a model.

Everything but the line is the product's own code.
"""

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_cloud.runs.vectors import hash_of
from sedge_edge.backends.bundle_trainer import Arrays, BundleTrainer, LoadedProgram
from sedge_edge.jobs.job import Job
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.rounds.state import AgentState, StateStore
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import WorkerContext, run_job
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import SedgeError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire import messages
from sedge_protocol.wire.bundle import Bundle, BundleManifest, TensorSpec, pack
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.objective import ABSOLUTE_ERROR
from sedge_protocol.wire.programs import Signature
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import Manifest, describe
from sedge_protocol.wire.update import decode_update
from sedge_protocol.wire.work import Codec, Work

Events = list[dict[str, Any]]
Values = NDArray[np.float32]

LAYOUT = Layout.of(
    [("slope", (3,), Role.PARAMETER), ("offset", (), Role.PARAMETER), ("seen", (), Role.STATISTIC)]
)
PLAIN = Training(learning_rate=0.05)
HALF, TWO, ZERO = np.float32(0.5), np.float32(2), np.float32(0)


def hexed(values: NDArray[Any]) -> str:
    return values.astype("<f4").tobytes().hex()


class MemoryBlobs:
    """Blobs by their SHA-256."""

    def __init__(self) -> None:
        self.held: dict[bytes, bytes] = {}

    def has(self, sha256: bytes) -> bool:
        return sha256 in self.held

    def read(self, sha256: bytes) -> bytes:
        return self.held[sha256]

    def write(self, data: bytes) -> bytes:
        name = hashlib.sha256(data).digest()
        self.held[name] = data
        return name

    def manifest(self, data: bytes) -> Manifest:
        self.write(data)
        return describe(data, 4096)


class NoJournal:
    """A state that no crash threatens."""

    def load(self) -> AgentState | None:
        return None

    def commit(self, value: AgentState) -> None:
        pass


class Line:
    """T13, row after row."""

    def __init__(self, signature: Signature) -> None:
        self._name = signature.program

    def run(self, feeds: Arrays, last: bool) -> list[Values]:
        theta, x, y, w = (feeds[key].astype(np.float32) for key in ("theta", "x", "y", "w"))
        found = self._gradient if self._name == "gradient" else self._sums
        with np.errstate(over="ignore", invalid="ignore"):
            return [np.asarray(value, np.float32) for value in found(theta, x, y, w)]

    def _gradient(self, theta: Values, x: Values, y: Values, w: Values) -> list[Any]:
        gradient, loss, seen, total = np.zeros(5, np.float32), ZERO, ZERO, ZERO
        for row, target, weight in zip(x, y, w, strict=True):
            error = self._output(theta, row) - target
            total, loss = total + weight, loss + weight * (error * error)
            gradient[:3] += weight * (TWO * error * row)
            gradient[3] += weight * (TWO * error)
            seen = seen + weight * row[0]
        return [gradient / total, loss / total, [HALF * theta[4] + HALF * (seen / total)]]

    def _sums(self, theta: Values, x: Values, y: Values, w: Values) -> list[Any]:
        sums = np.zeros(3, np.float32)
        for row, target, weight in zip(x, y, w, strict=True):
            error = self._output(theta, row) - target
            sums += weight * np.array([error * error, abs(error), 1], np.float32)
        return list(sums)

    @staticmethod
    def _output(theta: Values, row: Values) -> Any:
        return row[0] * theta[0] + row[1] * theta[1] + row[2] * theta[2] + theta[3]


def bundle(name: str, batch_size: int, statistics: bool) -> Bundle:
    spec = TensorSpec("float32", (3,)), TensorSpec("float32", ())
    return Bundle(
        BundleManifest(1, name, LAYOUT, batch_size, *spec, 0, statistics, (), None,
                       metric=ABSOLUTE_ERROR), {},
    )  # fmt: skip


@dataclass
class Device:
    """A device with examples of its own, order after order."""

    seed: int
    train: int
    test: int
    batch_size: int = 4
    statistics: bool = False
    orders: Events = field(default_factory=Events)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.blobs, self._rng = MemoryBlobs(), rng
        self.store = StateStore(NoJournal(), lambda: None)
        self.examples = [self._examples(count) for count in (self.train, self.test)]

    def _examples(self, count: int) -> Examples:
        x = self._rng.normal(size=(count, 3)).astype(np.float32)
        return Examples(x, (x @ [1, -2, 0.5] + 1).astype(np.float32))

    def theta(self) -> Theta:
        return self._rng.normal(size=5).astype(np.float32)

    def order(
        self, training: Training = PLAIN, theta: Theta | None = None, task: messages.Task = "train",
        keep: tuple[str, ...] = (), upload: bool = True, codec: Codec | None = None,
        patch: dict[int, float] | None = None, bundled: str = "a", work: Work | None = None,
        correction: Theta | None = None,
    ) -> None:  # fmt: skip
        """Do an order and write it down, and what comes of it; ``work`` is for what extensions ask."""
        theta = self.theta() if theta is None else theta
        codec = codec or Codec(compression=Compression.NONE)
        model = encode(SparseVector(5, None, theta), ValueCoding.FP32, Compression.NONE)
        coded = b""
        if patch is not None:
            values = np.array(list(patch.values()), np.float32)
            where = np.array(list(patch), np.uint32)
            coded = encode(SparseVector(5, where, values), ValueCoding.FP32, Compression.NONE)
        form = bundle(bundled, self.batch_size, self.statistics)
        asked = work or Work(keep=keep, upload=upload, training=training)
        order = Order(
            run="line", round=len(self.orders) + 1, task=task,
            bundle=self.blobs.manifest(pack(form)), model=self.blobs.manifest(model),
            model_hash=hashlib.sha256(theta.tobytes()).digest(), patch=coded,
            patch_hash=hashlib.sha256(coded).digest() if coded else b"",
            work=asked, codec=codec, seed=self.seed + len(self.orders),
        )  # fmt: skip
        if work is not None:
            order = self._extended(order, correction)
        self.store.accept(order)
        self.orders.append({
            "bundle": bundled, "task": task, "model": hexed(theta), "patch": coded.hex(),
            "keep": asked.keep, "upload": asked.upload, "seed": order.seed,
            "training": msgspec.to_builtins(asked.training),
            "codec": {"values": codec.values, "fraction": codec.fraction, "threshold": codec.threshold,
                      "error_feedback": codec.error_feedback},
        })  # fmt: skip
        if work is not None:
            added = "" if correction is None else hexed(correction)
            self.orders[-1] |= {"work": msgspec.to_builtins(work), "correction": added}
            self.orders[-1] |= {"context": order.context.hex()}
        self.orders[-1] |= self._done(order, form, work is not None)

    def _extended(self, order: Order, correction: Theta | None) -> Order:
        """With a correction, and the mask that the coordinator has seen."""
        seen = self.store.state.kept_for(order).mask
        if order.work.select is not None and seen is not None:
            order = msgspec.structs.replace(order, context=seen)
        if correction is None:
            return order
        coded = encode(SparseVector(5, None, correction), ValueCoding.FP32, Compression.NONE)
        return msgspec.structs.replace(order, correction=self.blobs.manifest(coded))

    def _done(self, order: Order, form: Bundle, extended: bool) -> dict[str, Any]:
        def load(signature: Signature) -> LoadedProgram:
            return Line(signature)

        def opened(sha256: bytes) -> tuple[Bundle, BundleTrainer]:
            return form, BundleTrainer(form, load)

        train, test = self.examples
        vectors = FolderVectors(self.blobs)
        place = WorkerContext(self.blobs, vectors, train, test, opened, lambda: False, lambda: 0.0)
        try:
            outcome = run_job(Job(order, self.store.state.kept_for(order)), place)
        except SedgeError as exc:
            self.store.drop(order.run)
            return {"declined": type(exc).__name__}
        self.store.finish(order, outcome)
        report, payload = decode_update(self.blobs.read(outcome.update))
        kept = self.store.state.runs[order.run].kept
        told: dict[str, Any] = {
            "before": msgspec.structs.astuple(report.before),
            "after": msgspec.structs.astuple(report.after),
            "train_loss": report.train_loss,
            "steps": report.steps,
            "num_examples": report.num_examples,
            "payload": bytes(payload).hex(),
            "owed": self._kept(kept.residual),
        }
        if extended:
            sparse = None if report.sparse is None else msgspec.structs.astuple(report.sparse)
            told |= {"mix": report.mix, "sparse": sparse, "remembered": self._kept(kept.patch)}
            told |= {"predicts_with": self._kept(kept.model), "own_part": self._kept(kept.part)}
        return told

    def _kept(self, name: bytes | None) -> str | None:
        return None if name is None else self.blobs.read(name).hex()


def play(name: str, device: Device, *orders: dict[str, Any]) -> dict[str, Any]:
    """The orders of a run, in turn."""
    for order in orders:
        device.order(**order)
    train, test = device.examples
    return {
        "name": name, "batch_size": device.batch_size, "uses_batch_statistics": device.statistics,
        "train": {"x": hexed(train.inputs.ravel()), "y": hexed(train.targets)},
        "test": {"x": hexed(test.inputs.ravel()), "y": hexed(test.targets)},
        "orders": device.orders,
    }  # fmt: skip


def rounds() -> Events:
    some = Codec(fraction=0.4, compression=Compression.NONE)
    found: Events = []

    def played(name: str, device: Device, *orders: dict[str, Any]) -> None:
        found.append(play(name, device, *orders))

    again = Device(2, 8, 5).theta()
    played("a round", Device(1, 8, 5), {})
    played(
        "two epochs with momentum and a prox, the last batch padded",
        Device(3, 7, 3),
        {"training": Training(4, 0.2, 0.9, 0.1)},
    )
    played(
        "batch statistics: the last batch filled",
        Device(4, 7, 6, statistics=True),
        {"training": Training(2, 0.03, 0.5)},
    )
    played(
        "the last batch dropped", Device(5, 7, 4), {"training": Training(2, 0.1, last_batch="drop")}
    )
    played(
        "a patch over the model, then a tensor that is kept, also from under a patch",
        Device(6, 8, 4),
        {"patch": {0: 2.0, 3: -1.0}},
        {"keep": ("slope",)},
        {"keep": ("offset", "seen"), "patch": {1: 0.5, 3: 7.0}},
    )
    played(
        "a tensor to keep before there is a model of one's own",
        Device(7, 8, 4),
        {"keep": ("offset",)},
    )
    played(
        "what is owed is added, and chosen from",
        Device(8, 8, 4),
        *[{"codec": some, "theta": again}] * 3,
    )
    played(
        "owed in a tensor that is kept",
        Device(9, 8, 4),
        {"codec": some},
        {"codec": some, "keep": ("slope",)},
        {"codec": some},
    )
    played(
        "neither an evaluation nor an order without upload changes what is owed; a new model of one's own",
        Device(10, 8, 4),
        {"codec": some},
        {"task": "evaluate"},
        {"upload": False, "codec": some},
        {"codec": some, "keep": ("slope",)},
    )
    played(
        "an evaluation leaves no model of one's own",
        Device(18, 8, 4),
        {},
        {"task": "evaluate"},
        {"keep": ("slope",)},
    )
    played(
        "without error feedback what was owed is forgotten",
        Device(11, 8, 4),
        {"codec": some},
        {"codec": msgspec.structs.replace(some, error_feedback=False)},
        {"codec": some},
    )
    played(
        "with another bundle nothing is kept",
        Device(12, 8, 4),
        {"codec": some},
        {"codec": some, "bundled": "b", "keep": ("slope",)},
    )
    played(
        "an evaluation with another bundle leaves what is kept",
        Device(21, 8, 4),
        {"codec": some},
        {"task": "evaluate", "bundled": "b", "keep": ("slope",)},
        {"codec": some, "keep": ("slope",)},
    )
    played(
        "int8",
        Device(13, 8, 4),
        *[{"codec": Codec(ValueCoding.INT8, compression=Compression.NONE)}] * 2,
    )
    coarse = Codec(ValueCoding.BF16, 0.6, compression=Compression.NONE)
    played(
        "bf16: multiples only with error feedback; above a threshold something is owed",
        Device(22, 4, 2),
        {"codec": coarse},
        {"codec": msgspec.structs.replace(coarse, error_feedback=False)},
        {"codec": Codec(threshold=0.1, compression=Compression.NONE)},
    )
    played("a training that diverges", Device(14, 8, 4), {"training": Training(50, 900.0)}, {})
    played(
        "fewer examples than a batch",
        Device(15, 3, 2),
        {"training": Training(1, 0.1, last_batch="drop")},
        {"training": Training(1, 0.1, last_batch="fill")},
    )
    played("a tensor that the layout lacks", Device(16, 8, 4), {"keep": ("other",)})
    played("no test example", Device(17, 8, 0), {})
    played(
        "a tensor to keep from under a patch before there is a model of one's own",
        Device(19, 8, 4),
        {"keep": ("offset",), "patch": {1: 0.5, 3: 7.0}},
    )
    played(
        "without error feedback an order without upload leaves what is owed, too",
        Device(20, 8, 4),
        {"codec": some},
        {"upload": False, "codec": msgspec.structs.replace(some, error_feedback=False)},
        {"codec": some},
    )
    return found  # fmt: skip


def versions() -> Events:
    """A base, the step that is added to it, and what that makes."""
    found: Events = []
    for base, step in (
        ([-0.0, -0.0, 0.1, 1e-45, 3.0], {0: 0.0, 2: 0.2, 3: 1e-45, 4: -3.0}),
        ([-0.0, 0.0, 1.0, 2.0**24], {0: -0.0, 1: -0.0, 2: 2.0**-24, 3: 1.0}),
    ):
        theta = np.array(base, np.float32)
        where, values = np.array(list(step), np.uint32), np.array(list(step.values()), np.float32)
        whole = len(step) == len(base)
        vector = SparseVector(theta.size, None if whole else where, values)
        coded = encode(vector, ValueCoding.FP32, Compression.NONE)
        before, after = hexed(theta), theta.copy()
        decode(coded, theta.size).add_to(after)
        found.append({
            "base": before, "base_hash": hash_of(theta).hex(), "step": coded.hex(),
            "model": hexed(after), "model_hash": hash_of(after).hex(),
        })  # fmt: skip
    return found
