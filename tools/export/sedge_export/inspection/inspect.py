"""The first stage: runs the model eagerly, and accepts or refuses it for compilation.

Two copies of the model run, each in evaluation mode and then in training mode. The operators of the first
copy are recorded (``operators``). The second copy sees other data first, and must then give the same
results as the first (``survey``).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sedge_edge.training.examples import check_labels
from sedge_export.inspection.operators import OperatorRecorder, accepts, inspect_model
from sedge_export.inspection.survey import survey
from sedge_export.stages import Inspected, Subject
from sedge_export.subject.batches import Samples, random_samples, some_ignored, whole_rows
from sedge_export.subject.network import Network, copied
from sedge_export.subject.subject import require_known, require_like
from sedge_export.widths.axes import find_axes
from sedge_export.widths.narrow import cut
from sedge_protocol.errors import DataError, ExportError
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.objective import LOSSES


@dataclass(frozen=True)
class _Seen:
    """The observations from running the subject. ``recorder.model`` may be run again."""

    recorder: OperatorRecorder
    outputs: tuple[int, ...]


def inspect(subject: Subject, *, dropped: float, target: TensorSpec | None, seed: int) -> Inspected:
    """Inspect the subject and, if ``dropped`` is not 0, leave out this share of the channels of every axis.

    ``target`` describes a row of y if it differs from the objective's usual target. Raises
    ``ExportError`` if the model fails, if its outputs do not fit, if it has randomness or state that a
    program could not reproduce, or if it cannot be narrowed.
    """
    labels = () if target is None else target.shape
    seen = _seen(subject, labels)
    found = find_axes(subject.network, subject.x)
    if dropped:
        model = cut(subject.model, subject.x, subject.network.layout, found, dropped)
        subject = replace(subject, model=model, network=Network(model, subject.choice.rows))
        seen = _seen(subject, labels)
    axes = found.axes.narrowed(dropped) if found.axes.channels else None
    row = target or _row_target(subject, seen.outputs)
    return Inspected(
        subject, seen.recorder.where, seen.outputs, seen.recorder.noise, seen.recorder.vocabulary,
        axes, dropped, row,
        _sources(subject, seen, row, torch.Generator().manual_seed(seed)),
    )  # fmt: skip


def _seen(subject: Subject, labels: tuple[int, ...]) -> _Seen:
    label = "sample_input" if subject.real is None else "real_data: x"
    recorder, outputs = inspect_model(
        copied(subject.model), subject.x, subject.num_classes, labels, label=label
    )
    if subject.real is not None:
        require_known(label, subject.real.x, recorder.vocabulary)
    survey(copied(subject.model), subject.x, recorder.sums)
    return _Seen(recorder, outputs)


def _row_target(subject: Subject, outputs: tuple[int, ...]) -> TensorSpec | None:
    """Return the default spec of a row of y, a label or numbers like the outputs; None if y is x."""
    choice, x = subject.choice, subject.x
    if choice.target == "class":
        return TensorSpec("int64", ())
    if choice.target == "float":
        return TensorSpec("float32", outputs)
    as_large = choice.loss.name not in LOSSES or outputs == tuple(x.shape[1:])
    if not as_large or not x.is_floating_point():
        raise ExportError(
            f"target 'none': the model returns rows of float32 {outputs} for an input of {x.dtype}"
            f" {tuple(x.shape[1:])}, expected the same type and shape"
        )
    return None


def _sources(
    subject: Subject, seen: _Seen, row: TensorSpec | None, rng: torch.Generator
) -> tuple[Samples, ...]:
    """Return the rows on which programs are verified: random rows, and real rows if there are any.

    If the model rejects random rows, the sample's rows are used instead.
    """
    x = subject.x
    samples = random_samples(x, row, subject.num_classes, len(x), rng, subject.parts)
    if not accepts(seen.recorder.model, samples.x):
        samples = whole_rows(x, samples, rng)
    if subject.num_classes and samples.y.ndim > 1 and subject.choice.loss.name in LOSSES:
        samples = some_ignored(samples, rng)
    if subject.real is None:
        return (samples,)
    require_like("y", subject.real.y, samples.y)
    if subject.num_classes:
        _require_classes(subject.real.y, subject.num_classes)
    if row is not None and subject.choice.loss.name not in LOSSES:
        # In a user's own loss, the numbers in a target may have different meanings, so random targets
        # may be invalid.
        drawn = torch.randint(len(subject.real.y), (len(samples.x),), generator=rng)
        samples = Samples(samples.x, subject.real.y[drawn])
    return samples, subject.real


def _require_classes(y: Tensor, num_classes: int) -> None:
    try:
        check_labels(y.numpy(), num_classes, "real_data: y")
    except DataError as exc:
        raise ExportError(str(exc)) from exc
