"""A model's objective: its target, the loss that is minimised, and the metric that is reported to people.

A loss and a metric give one number per row; their weighted means are reported. ``sedge_edge.backends.rows``
computes the ones named here. A row of y may hold many labels, such as one for each token or pixel.
"""

import math
import sys
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

# The content of a row of y: labels, any numbers, or the input itself.
TargetKind: TypeAlias = Literal["class", "float", "none"]
TARGETS = ("class", "float", "none")
LOSSES = ("cross_entropy", "mse", "l1", "huber", "bce_with_logits")
# In rows of many labels, an element with this label counts in neither loss nor metric (as in torch).
IGNORED = -100
MAX_METRIC_CHARS = 64
# Input names of a guided loss's program.
CONSTANTS, COUNTS = "constants", "counts"
# The number of float32 values that fit into an order's arrays.
MAX_CONSTANTS = 8192
_Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]


class Loss(msgspec.Struct, frozen=True, omit_defaults=True):
    """A loss by name: one of ``LOSSES``, or the user's "module:function".

    ``label_smoothing`` and ``class_weights``, one for each class, apply to ``cross_entropy``; a label's
    loss is multiplied by its class's weight, and the mean is over the labels of a row, then over the rows.
    """

    name: _Name = "cross_entropy"
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    class_weights: tuple[Annotated[float, Meta(ge=0, le=1e6)], ...] = ()


class Guide(msgspec.Struct, frozen=True, omit_defaults=True):
    """A bundle's guided loss, and the inputs that it takes in addition to outputs and targets.

    ``name`` is a built-in loss or the user's "module:function". ``models`` names the reference models (n,):
    ``start``, the model that the round began with, and ``previous``, the model that the device trained
    last. ``constants`` is the number m of constants (m,) that an order supplies. With ``counts``, another
    input is the number of training examples per class (C,), which the device counts.
    """

    name: _Name
    models: Annotated[tuple[Literal["start", "previous"], ...], Meta(max_length=2)] = ()
    constants: Annotated[int, Meta(ge=0, le=MAX_CONSTANTS)] = 0
    counts: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs of the ``guided`` program that ``gradient`` does not have, in order."""
        constants = (CONSTANTS,) if self.constants else ()
        return (*self.models, *constants, *((COUNTS,) if self.counts else ()))


class Metric(msgspec.Struct, frozen=True, omit_defaults=True):
    """A metric: its name, one of ``METRICS`` or the user's "module:function", and which values are better.

    A ``share`` lies in [0, 1] and is shown as a percentage.
    """

    name: Annotated[str, Meta(min_length=1, max_length=MAX_METRIC_CHARS)]
    better: Literal["higher", "lower"] = "higher"
    share: bool = False

    @property
    def words(self) -> str:
        """The metric's name in words."""
        return self.name.replace("_", " ")

    def reported(self, mean: float) -> float:
        """Return the value to report for this mean over the rows, or inf if it exceeds float64."""
        if self != PERPLEXITY:
            return mean
        return math.exp(mean) if mean < math.log(sys.float_info.max) else math.inf

    def badness(self, value: float) -> float:
        """Return the value, negated if higher is better, so that a higher result is always worse."""
        return -value if self.better == "higher" else value


ACCURACY = Metric("accuracy", share=True)
# The value of a row is its mean cross entropy per label; the exponential of the mean is reported.
PERPLEXITY = Metric("perplexity", "lower")
LABEL_ACCURACY = Metric("label_accuracy", share=True)
ABSOLUTE_ERROR = Metric("mean_absolute_error", "lower")
LOSS = Metric("loss", "lower")
METRICS = {
    metric.name: metric for metric in (ACCURACY, PERPLEXITY, LABEL_ACCURACY, ABSOLUTE_ERROR, LOSS)
}


def own_metric(text: str) -> Metric | None:
    """Parse a user's metric, "module:function:higher" or "…:lower". Returns None for any other text."""
    name, _, better = text.rpartition(":")
    if ":" not in name or len(name) > MAX_METRIC_CHARS or better not in ("higher", "lower"):
        return None
    return Metric(name, "higher" if better == "higher" else "lower")


def default_target(num_classes: int) -> TargetKind:
    """Return the default target of a model with this number of classes."""
    return "class" if num_classes else "float"


def default_loss(target: TargetKind) -> Loss:
    """Return the default loss for a target."""
    return Loss() if target == "class" else Loss("mse")


def default_metric(target: TargetKind, loss: Loss) -> Metric:
    """Return the default metric for a target and a loss."""
    if target == "class":
        return ACCURACY
    if target == "none" or loss.name not in LOSSES:
        return LOSS
    return LABEL_ACCURACY if loss.name == "bce_with_logits" else ABSOLUTE_ERROR


def contradiction(target: TargetKind, num_classes: int, loss: Loss, metric: Metric) -> str:
    """Explain why target, classes, loss and metric cannot be combined. Returns "" if they can."""
    labels = target == "class"
    if labels != (num_classes > 0):
        expected = "at least 1" if labels else "0"
        return f"target {target!r} with {num_classes} classes, expected {expected}"
    if loss.name in LOSSES and (loss.name == "cross_entropy") != labels:
        return f"the loss {loss.name} does not fit the target {target!r}"
    if metric != LOSS and metric.name in METRICS and (metric in (ACCURACY, PERPLEXITY)) != labels:
        return f"the metric {metric.name} does not fit the target {target!r}"
    if loss.name != "cross_entropy" and loss != Loss(loss.name):
        return f"label_smoothing or class_weights with {loss.name}, expected cross_entropy"
    if len(loss.class_weights) not in (0, num_classes):
        return f"{len(loss.class_weights)} class_weights, expected {num_classes}"
    return ""
