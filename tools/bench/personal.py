"""Models for apps: their predictions' time, size and accuracy, in float32 and in int8.

Each model is trained for some steps on Fashion-MNIST and written by ``export_personal``, for one row at a
time. The baseline is the bundle's own ``predict`` program in ONNX Runtime, on one row, with theta as an
input. They are compared with ``sedge_edge.Model.predict`` for one row, with theta as an input and with
theta inside, from a bundle for one row and from one for a training batch, which the row fills. All run on
one thread, strictly in turn; the figures are medians of the thread's CPU time, and only their ratios are
meaningful.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from tools.bench.harness import Figure, Result, bench, chosen
from tools.bench.train_step import Step, alternate
from torch import Tensor, nn

from sedge_cloud.figures.numbers import percent, size
from sedge_edge.backends.bundle_trainer import BundleTrainer, bundled
from sedge_edge.backends.onnx_runtime import OnnxProgram, binding
from sedge_emulate.data.datasets import fashion_mnist
from sedge_export import export, models
from sedge_export.apps.formats import FORMATS
from sedge_export.apps.personal import Quality, export_personal
from sedge_export.lowering.onnx.runtime import load_program
from sedge_protocol.wire.bundle import ONNXRUNTIME, load

MODELS = ("avgcnn", "resnet8")
BATCH_SIZE = 32
TRAINING_ROWS = 60_000  # of the data set's 70,000, from the start
TESTED_ROWS = 4_000  # half of them calibrate, so that the figure is measured rather than refused
LARGEST_LOSS = 0.05  # so that the figure is measured rather than refused


class Side(NamedTuple):
    """A way to predict one row: its call, its bytes if it is a file, and the cost of int8."""

    kind: str
    step: Step
    size: int
    quality: Quality | None = None


def figures(found: Result) -> list[Figure]:
    """A prediction by each file for apps, against the bundle's program."""
    written: list[Figure] = []
    for name, files in found["personal"].items():
        baseline, *others = files
        for kind in others:
            row = files[kind]
            what = f"a prediction of {name}, one row: {kind}, against the program with {baseline}"
            measured = f"{row['ratio']:.2f} of its time"
            if row["bytes"]:
                measured += f", {size(row['bytes'])}, accuracy {percent(row['accuracy'])}"
            written.append(Figure(what, measured))
    return written


@bench("A model for apps", figures)
def measure(*models: str, seconds: float = 5.0, steps: int = 100) -> Result:
    """Train each model for some steps, then time it for some seconds."""
    names = chosen(models, MODELS)
    torch.set_num_threads(1)
    data = fashion_mnist()
    x, y = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    return {"personal": {name: timed(name, x, y, steps, seconds) for name in names}}


def timed(
    name: str, x: Tensor, y: Tensor, steps: int, seconds: float
) -> dict[str, dict[str, float]]:
    """Milliseconds per row, their ratio to the baseline's, bytes and accuracy, by kind of file."""
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)()
    train(model, x[:TRAINING_ROWS], y[:TRAINING_ROWS], steps)
    tested = x[-TESTED_ROWS:], y[-TESTED_ROWS:]
    with tempfile.TemporaryDirectory() as temporary:
        baseline, *files = sides(name, model, tested, Path(temporary))
        times = alternate([side.step for side in (baseline, *files)], seconds)
    accuracy = next(side.quality.float32 for side in files if side.quality)
    return {
        side.kind: {
            "ms": ms,
            "ratio": ms / times[0],
            "bytes": side.size,
            "accuracy": side.quality.int8 if side.quality else accuracy,
        }
        for side, ms in zip((baseline, *files), times, strict=True)
    }


def train(model: nn.Module, x: Tensor, y: Tensor, steps: int) -> None:
    """Some steps of SGD on random batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(steps):
        chosen = torch.randint(len(x), (BATCH_SIZE,))
        model.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x[chosen]), y[chosen]))
        optimizer.step()


def sides(
    name: str, model: nn.Module, tested: tuple[Tensor, Tensor], folder: Path
) -> Iterator[Side]:
    """The baseline, and then each format in float32 and in int8."""
    row = tested[0][:1]
    feed = row.numpy()
    export(model, row, batch_size=1, name=name, num_classes=10, folder=folder)
    bundle, theta = load(folder)
    data = bundle.program("predict", ONNXRUNTIME)
    program = load_program("predict", data)
    weight = len(data) + theta.nbytes
    yield Side("theta as an input", lambda: program({"theta": theta, "x": feed}), weight)
    for ending, form in FORMATS.items():
        for kind, rows in (("float32", None), ("int8", tested)):
            out = folder / f"{kind}{ending}"
            made = export_personal(
                model, row, weights=folder, out=out, data=rows, largest_loss=LARGEST_LOSS
            )
            run = form.load(out.read_bytes())
            yield Side(f"{form.name}, {kind}", partial(run, feed), made.size, made.quality)
    yield from on_a_device(name, model, row, folder)


def on_a_device(name: str, model: nn.Module, row: Tensor, folder: Path) -> Iterator[Side]:
    """The cost of a device's predictor for one row (1, ...)."""
    for batch_size in (1, BATCH_SIZE):
        export(model, row, batch_size=batch_size, name=name, num_classes=10, folder=folder)
        bundle, theta = load(folder)
        programs = bundled(bundle, ONNXRUNTIME, OnnxProgram, 1)
        for kind, bind in (("as an input", None), ("inside", binding(bundle, 1))):
            predict = BundleTrainer(bundle, programs, bind).predictor(theta)
            kind = f"Model, batch {batch_size}, theta {kind}"
            yield Side(kind, partial(predict, row.numpy()), 0)
