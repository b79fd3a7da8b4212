"""Exports a torch model to a bundle folder, in stages: inspect, trace, lower, verify, write.

Nothing is written unless every program agrees with eager torch. ``stages`` defines the types that one
stage passes to the next.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from msgspec import structs
from torch import Tensor, nn

from sedge_edge.backends.guided import GuidedLoss
from sedge_edge.backends.rows import Rows
from sedge_export.defaults import TOLERANCE
from sedge_export.inspection.inspect import inspect
from sedge_export.lowering.lower import check_backends, lower
from sedge_export.subject.objective import OwnMetric, chosen
from sedge_export.subject.precision import in_precision, require_finite
from sedge_export.subject.several_inputs import Given
from sedge_export.subject.source import place, reason
from sedge_export.subject.subject import require_known, take
from sedge_export.tracing.programs import trace_programs
from sedge_export.verification.verify import verify
from sedge_export.writing.write import write
from sedge_protocol.errors import ExportError, SedgeError
from sedge_protocol.wire.bundle import ONNXRUNTIME, BundleManifest, TensorSpec
from sedge_protocol.wire.objective import Loss, TargetKind


def export(
    model: nn.Module,
    sample_input: Given,
    *,
    batch_size: int,
    name: str,
    num_classes: int,
    folder: Path,
    loss: Loss | Rows | None = None,
    target: TensorSpec | TargetKind | None = None,
    metric: str | OwnMetric | None = None,
    real_data: tuple[Given, Tensor] | None = None,
    tolerance: float = TOLERANCE,
    seed: int = 0,
    dropped: float = 0.0,
    backends: Sequence[str] = (ONNXRUNTIME,),
    measure: bool = False,
    labels: Sequence[str] = (),
    frozen: str = "float32",
    guided: GuidedLoss | None = None,
) -> BundleManifest:
    """Export the model as a bundle in ``folder``. Returns the bundle's manifest.

    ``sample_input`` (B, ...) gives the type and shape of a row. If the model's ``forward`` takes
    several named inputs, both ``sample_input`` and the x of ``real_data`` are dicts of tensors by name.

    ``loss`` is one of ``objective.LOSSES``, or a function that maps outputs (B, C, ...) and targets to
    one number per row; the default is cross entropy, or the squared error if ``num_classes`` is 0.
    ``target`` describes a row of y: by default a label, or numbers like the outputs; with "none" the
    input is the target. If a row has several labels, such as one for each token or pixel, pass
    ``TensorSpec("int64", (T,))``, or any other shape. The outputs are then (B, C, T) or (B, T, C), and
    a label of -100 is ignored. ``metric`` is one of ``objective.METRICS``, or a metric of the user's
    own. ``guided`` is a second loss, which an order may ask for (``sedge_edge.backends.guided``).

    ``real_data`` (x, y), with any number of rows, replaces the sample, and programs are verified on it
    in addition to random rows. ``dropped`` (0 to below 1) exports a narrower form without this share of
    the channels of every axis; its tensors have the names and the order of the whole model's, and are
    slices of them. ``backends`` are the runtimes to compile programs for, keys of
    ``lowering.target.TARGETS``. With ``measure``, the memory of a training step is measured in each
    runtime, which takes a second or more (``writing.step_memory``). ``labels`` are the names of the
    classes. ``frozen`` is the precision of frozen tensors (``defaults.FROZEN_PRECISIONS``). The cost of
    a precision other than float32 is measured on ``real_data``, if given (``subject.precision``).

    Raises ``ExportError``, naming the operator and its module, for a model that cannot be lowered, and
    for a program that disagrees with eager torch by more than ``tolerance``.
    """
    check_backends(backends)
    if labels and len(labels) != num_classes:
        raise ExportError(f"{len(labels)} labels, expected {num_classes}, one for each class")
    # Functions under torch.compile must run uncompiled, because no trace can look into compiled code.
    # This call imports the compiler now: if tracing did so later, ``survey.Watch`` would check every call
    # of the import, which triples its time.
    with _one_reason(), torch.compiler.set_stance("force_eager"):
        choice = chosen(num_classes, target, loss, metric, guided)
        subject = take(
            model, sample_input, real_data,
            batch_size=batch_size, num_classes=num_classes, choice=choice,
        )  # fmt: skip
        require_finite(subject)
        row = target if isinstance(target, TensorSpec) else None
        cost = ""
        if frozen != "float32":
            # Measuring the cost trains the model, so inspect it first, to refuse bad rows such as one with
            # an unknown token.
            inspect(subject, dropped=0.0, target=row, seed=seed)
            subject, cost = in_precision(subject, frozen, seed)
        inspected = inspect(subject, dropped=dropped, target=row, seed=seed)
        if isinstance(sample_input, Tensor):  # real data replaces the sample
            require_known("sample_input", sample_input, inspected.vocabulary)
        traced = trace_programs(inspected)
        lowered = lower(traced, backends)
        verification = structs.replace(verify(inspected, lowered, tolerance, seed), frozen=cost)
    return write(
        folder, inspected, traced, lowered, verification,
        name=name, labels=labels, measure=measure,
    )  # fmt: skip


@contextmanager
def _one_reason() -> Generator[None]:
    """Turn any exception of the user's model into an ``ExportError`` that says where it was raised."""
    try:
        yield
    except SedgeError:
        raise
    except Exception as exc:  # the user's code may raise anything
        raise ExportError(f"model: cannot be exported{place(exc)}: {reason(exc)}") from exc
