"""Writes a model with its weights as a file for apps, in float32 or, if little accuracy is lost, in int8.

The weights come from a device (the .npz file written by ``sedge-edge export``) or are the initial weights
of a bundle. The file is run in its own runtime first. It is written only if its outputs agree with eager
torch or, for int8, are good enough.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION, classes_first
from sedge_edge.training.examples import check_labels, check_tokens
from sedge_export.apps.formats import FORMATS, Format, Run
from sedge_export.defaults import LARGEST_LOSS
from sedge_export.inspection.operators import inspect_model
from sedge_export.subject.batches import random_samples, whole_batches
from sedge_export.subject.network import Network, copied
from sedge_protocol.errors import ConfigError, DataError, ExportError
from sedge_protocol.host.disk import replace_file, translated
from sedge_protocol.host.model_files import read_tensors
from sedge_protocol.layout import Tensor as LayoutTensor
from sedge_protocol.wire.bundle import TensorSpec, load
from sedge_protocol.wire.objective import IGNORED

# The largest allowed difference from eager torch, as a share of the largest logit.
TOLERANCE = 1e-4
# The quality check needs at least this many held-out rows, however large the allowed loss.
MIN_HELD_OUT = 20
# More rows would take longer and hardly change the ranges of activations.
MAX_CALIBRATION_ROWS = 512
# The reported time per batch is the median over this many batches.
TIMED_BATCHES = 20


@dataclass(frozen=True)
class Quality:
    """How well a model does on held-out rows: its accuracy, or a regression's relative error."""

    float32: float
    int8: float
    rows: int
    classifies: bool

    @property
    def loss(self) -> float:
        """The cost of int8: the accuracy lost, or the error added."""
        return (self.float32 - self.int8) * (1 if self.classifies else -1)

    def __str__(self) -> str:
        what = "accuracy" if self.classifies else "relative error"
        figures = f"float32 {self.float32:.4f}, int8 {self.int8:.4f}"
        return f"{what} {figures} on {self.rows} held-out rows"


@dataclass(frozen=True)
class FileCost:
    """The cost of a file: its size in bytes, and the CPU time per batch, in seconds."""

    size: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.size:,} bytes, {1e3 * self.seconds:.3g} ms per batch"


@dataclass(frozen=True)
class Personal:
    """A file for apps: its runtime, its size in bytes, and how it compares with eager torch.

    ``error`` is the largest difference from eager torch, as a share of the largest logit. An int8 file has
    ``quality`` instead, and the ``costs`` of the float32 file and of the int8 file.
    """

    path: Path
    runtime: str
    size: int
    error: float | None
    quality: Quality | None
    costs: tuple[FileCost, FileCost] | None = None


def export_personal(
    model: nn.Module,
    sample: Tensor,
    *,
    weights: Path,
    out: Path,
    batch_size: int = 1,
    data: tuple[Tensor, Tensor] | None = None,
    largest_loss: float = LARGEST_LOSS,
) -> Personal:
    """Write a model with the given weights as .onnx or .pte, for batches of one size.

    ``sample`` (B, ...) gives the type and shape of a row. With ``data`` (x, y) the file is in int8: one
    half of the rows calibrates the ranges of activations, the other half measures the cost of int8. y
    (N,) or (N, ...) are labels, or y (N, C, ...) are the targets of a regression.

    Raises ``ConfigError`` if ``out`` has any other extension, and ``DataError`` if the data do not fit
    the model. Raises ``ExportError`` if the weights belong to another model, if the model cannot be
    compiled, if the file disagrees with eager torch, or if int8 costs more than ``largest_loss``.
    """
    if out.suffix not in FORMATS:
        raise ConfigError("--out", str(out), "a name that ends in .onnx or .pte")
    form = FORMATS[out.suffix]
    form.check_installed()
    model = with_weights(model, weights)
    x = sample[torch.arange(batch_size) % len(sample)]
    operators, outputs = inspect_model(copied(model), x, 0, modes=(False,))
    model.eval()
    if data is not None:
        _check_data(*data, x, outputs, operators.vocabulary)
    halves = None if data is None else _halves(*data, largest_loss)
    error = quality = costs = None
    if halves is None:
        program = form.compiled(model, x, operators.where)
        error = _error(form, form.load(program), model, x)
    else:
        seen, held_out = halves
        batches = whole_batches(seen[:MAX_CALIBRATION_ROWS], batch_size)
        program = form.quantized(model, x, operators.where, batches)
        run = form.load(program)
        quality = _quality(run, model, *held_out, batch_size)
        if not quality.loss <= largest_loss:
            raise ExportError(f"int8: {quality}, expected a loss of at most {largest_loss:g}")
        whole = form.compiled(model, x, operators.where)
        plain = FileCost(len(whole), _seconds(form.load(whole), x))
        costs = plain, FileCost(len(program), _seconds(run, x))
    with translated("write the model to", out):
        replace_file(out, program, out.with_name(f"{out.name}.part"))
    return Personal(out, form.name, len(program), error, quality, costs)


def with_weights(model: nn.Module, path: Path) -> nn.Module:
    """Return a copy of the model with the weights and statistics from a .npz file or a bundle's folder.

    Raises ``ExportError``, naming the tensor, if one is missing, unknown or not finite, or has the
    wrong shape or type.
    """
    model = copied(model)
    specs = Network(model, CLASSIFICATION).tensors
    tensors = _bundle_tensors(path) if path.is_dir() else _file_tensors(path)
    _check(tensors, specs, path)
    held: dict[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for name in specs:
            held[name].copy_(torch.tensor(tensors[name]))
    return model


def _bundle_tensors(folder: Path) -> Mapping[str, NDArray[np.generic]]:
    bundle, theta = load(folder)
    return dict(bundle.views(theta))


def _file_tensors(path: Path) -> Mapping[str, NDArray[np.generic]]:
    try:
        return read_tensors(path)
    except DataError as exc:
        raise ExportError(f"weights {exc} or a bundle's folder") from exc


def _check(
    tensors: Mapping[str, NDArray[np.generic]], specs: Mapping[str, LayoutTensor], path: Path
) -> None:
    for name, spec in specs.items():
        if name not in tensors:
            raise ExportError(f"weights {path}: tensor {name!r} of the model is missing")
        found = tensors[name]
        if found.shape != spec.shape or found.dtype != np.float32:
            raise ExportError(
                f"weights {path}: tensor {name!r} is {found.dtype} {found.shape},"
                f" expected float32 {spec.shape}"
            )
        if not np.isfinite(found).all():
            raise ExportError(f"weights {path}: tensor {name!r} holds NaN or inf")
    for name in tensors:
        if name not in specs:
            raise ExportError(f"weights {path}: the model has no tensor {name!r}")


def _halves(x: Tensor, y: Tensor, largest_loss: float) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Split the rows into inputs for calibration and held-out rows with targets.

    Raises ``DataError`` if there are too few rows.
    """
    needed = 2 * max(MIN_HELD_OUT, math.ceil(1 / largest_loss) if largest_loss else 0)
    if len(x) < needed:
        raise DataError(
            f"data: {len(x)} rows, expected at least {needed}:"
            f" half of them must be enough to see a loss of {largest_loss:g}"
        )
    # Data are often sorted by label, so the rows are shuffled.
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    seen, held_out = order[: len(x) // 2], order[len(x) // 2 :]
    return x[seen], (x[held_out], y[held_out])


def _check_data(
    x: Tensor, y: Tensor, like: Tensor, outputs: tuple[int, ...], vocabulary: int
) -> None:
    if x.dtype != like.dtype or x.shape[1:] != like.shape[1:]:
        row = ", ".join(map(str, like.shape[1:]))
        raise DataError(f"data: x is {x.dtype} {tuple(x.shape)}, expected {like.dtype} (N, {row})")
    check_tokens(x.numpy(), vocabulary, "data: x")
    labels = y.dtype == torch.int64 and y.shape[:1] == x.shape[:1]
    labels = labels and tuple(y.shape[1:]) in (outputs[1:], outputs[:-1])
    if not labels and not (y.dtype == torch.float32 and y.shape == (len(x), *outputs)):
        raise DataError(
            f"data: y is {y.dtype} {tuple(y.shape)}, expected labels {(len(x), *outputs[1:])} in"
            f" torch.int64, or torch.float32 {(len(x), *outputs)}"
        )
    if labels:
        first = tuple(y.shape[1:]) == outputs[1:]
        check_labels(y.numpy(), outputs[0] if first else outputs[-1], "data: y")
    for name, values in (("x", x), ("y", y)):
        if not bool(values.isfinite().all()):
            raise DataError(f"data: {name} holds NaN or inf")


def _error(form: Format, run: Run, model: nn.Module, x: Tensor) -> float:
    """Return the largest difference from torch on random rows, as a share of the largest logit.

    Raises ``ExportError`` if it exceeds the tolerance.
    """
    target = TensorSpec("int64", ())
    rows = random_samples(x, target, 1, len(x), torch.Generator().manual_seed(0)).x
    expected = _torch(model, rows, len(x))
    largest = float(np.abs(expected).max())
    error = float(np.abs(_outputs(run, rows, len(x)) - expected).max())
    if not math.isfinite(largest):
        raise ExportError("model: torch's own outputs are not finite")
    if not error <= TOLERANCE * largest:
        raise ExportError(
            f"{form.name} disagrees with torch: error {error:.1e} for logits up to {largest:.1e},"
            f" expected at most {TOLERANCE:.0e} of them"
        )
    return error / largest if largest else 0.0


def _quality(run: Run, model: nn.Module, x: Tensor, y: Tensor, batch_size: int) -> Quality:
    both = _torch(model, x, batch_size), _outputs(run, x, batch_size)
    classifies, targets = not y.is_floating_point(), y.numpy()
    if classifies:
        logits = [classes_first(torch.from_numpy(outputs), y) for outputs in both]
        right = [(one.argmax(1) == y)[y != IGNORED] for one in logits]
        measured = [float(one.float().mean()) for one in right]
    else:
        scale = max(float(np.linalg.norm(targets)), 1e-30)
        measured = [float(np.linalg.norm(outputs - targets)) / scale for outputs in both]
    return Quality(measured[0], measured[1], len(x), classifies)


def _seconds(run: Run, x: Tensor) -> float:
    """Return the CPU time per batch, in seconds: the median over several batches, after one warm-up."""
    batch, times = x.numpy(), list[float]()
    for _ in range(TIMED_BATCHES + 1):
        started = time.process_time()
        run(batch)
        times.append(time.process_time() - started)
    return median(times[1:])


def _torch(model: nn.Module, rows: Tensor, batch_size: int) -> NDArray[np.float32]:
    with torch.no_grad():
        found = torch.cat([model(batch) for batch in whole_batches(rows, batch_size)])
    return found[: len(rows)].numpy()


def _outputs(run: Run, rows: Tensor, batch_size: int) -> NDArray[np.float32]:
    found = [run(batch.numpy()) for batch in whole_batches(rows, batch_size)]
    return np.concatenate(found)[: len(rows)]
