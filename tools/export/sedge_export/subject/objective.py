"""Chooses the target, loss and metric of an export, either by name or as defaults that suit the model."""

from typing import NamedTuple

from sedge_edge.backends.guided import GuidedLoss
from sedge_edge.backends.rows import Objective, Rows, row_loss, row_metric
from sedge_protocol.errors import ExportError
from sedge_protocol.wire.bundle import BundleManifest, TensorSpec
from sedge_protocol.wire.objective import (
    LOSSES,
    METRICS,
    Loss,
    Metric,
    TargetKind,
    contradiction,
    default_loss,
    default_metric,
    default_target,
)


class OwnMetric(NamedTuple):
    """The user's own metric: its description, and a function of outputs and targets."""

    metric: Metric
    rows: Rows


class Choice(NamedTuple):
    """A bundle's objective, as names for its manifest and as functions."""

    target: TargetKind
    loss: Loss
    metric: Metric
    rows: Objective


def chosen(
    num_classes: int,
    target: TensorSpec | TargetKind | None,
    loss: Loss | Rows | None,
    metric: str | OwnMetric | None,
    guided: GuidedLoss | None = None,
) -> Choice:
    """Choose the objective; None means the default.

    Raises ``ExportError`` if choices contradict each other.
    """
    kind = target if isinstance(target, str) else default_target(num_classes)
    if isinstance(target, TensorSpec) and num_classes and target.dtype != "int64":
        raise ExportError(f"target: {target.dtype} with {num_classes} classes, expected int64")
    named = loss if isinstance(loss, Loss) else default_loss(kind) if loss is None else _named(loss)
    if named.class_weights and not any(named.class_weights):
        raise ExportError("loss: all class weights are 0, expected one above 0")
    if isinstance(metric, str) and metric not in METRICS:
        raise ExportError(f"metric: {metric!r}, expected one of {', '.join(METRICS)}")
    own = None
    if isinstance(metric, OwnMetric):
        found, own = metric
    else:
        found = METRICS[metric] if metric else default_metric(kind, named)
    if wrong := contradiction(kind, num_classes, named, found):
        raise ExportError(wrong)
    rows = None if isinstance(loss, Loss) else loss
    return Choice(kind, named, found, _functions(named, found, rows, own, guided))


def objective_of(
    manifest: BundleManifest, own_loss: Rows | None, own_metric: Rows | None,
    guided: GuidedLoss | None = None,
) -> Objective:  # fmt: skip
    """Return a bundle's loss, metric and guided loss.

    The user's own functions, if given, take precedence.
    """
    return _functions(manifest.loss, manifest.metric, own_loss, own_metric, guided)


def _functions(
    loss: Loss, metric: Metric, own_loss: Rows | None, own_metric: Rows | None,
    guided: GuidedLoss | None,
) -> Objective:  # fmt: skip
    rows = own_loss or row_loss(loss)
    if rows is None:
        raise ExportError(
            f"loss: {loss.name!r}, expected one of {', '.join(LOSSES)}, or a function"
        )
    judged = own_metric or row_metric(metric, rows)
    if judged is None:
        raise ExportError(f"metric: {metric.name!r}, expected one of {', '.join(METRICS)}")
    return Objective(rows, judged, metric.reported, guided)


def _named(loss: Rows) -> Loss:
    module = getattr(loss, "__module__", type(loss).__module__)
    return Loss(f"{module}:{getattr(loss, '__qualname__', type(loss).__qualname__)}")
