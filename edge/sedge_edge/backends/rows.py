"""Losses and metrics in torch. Each maps outputs (B, ...) and targets (B, ...) to one number per row, (B,).

The exporter, the backend ``torch`` and the emulator use them.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sedge_edge.backends.guided import GuidedLoss
from sedge_protocol.wire.objective import (
    ABSOLUTE_ERROR,
    ACCURACY,
    IGNORED,
    LABEL_ACCURACY,
    PERPLEXITY,
    Loss,
    Metric,
)

Rows: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def _as_it_is(mean: float) -> float:
    return mean


class Objective(NamedTuple):
    """What a model minimises and reports: its loss, its metric, and how the mean metric is reported.

    ``guided`` is a second loss for which an order may ask, or None.
    """

    loss: Rows
    metric: Rows
    reported: Callable[[float], float] = _as_it_is
    guided: GuidedLoss | None = None

    def sums(self, output: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sums over a batch of w * loss, of w * metric, and of w (B,).

        A row with several labels is weighted by the number of its labels that count, so the means are over
        labels, not over rows.
        """
        losses, metrics = self.loss(output, y), self.metric(output, y)
        weights = w * counted(y) if _has_several(y) else w
        return (weights * losses).sum(), (weights * metrics).sum(), weights.sum()


def counted(y: Tensor) -> Tensor:
    """Return the number of labels that count in each row of y (B, ...), shape (B,)."""
    return (y != IGNORED).float().flatten(1).sum(1)


def classes_first(logits: Tensor, y: Tensor) -> Tensor:
    """Return logits (B, C, ...) for labels (B, ...). Hugging Face's shape (B, ..., C) is transposed.

    If both shapes are possible, (B, C, ...) is assumed, which is torch's layout.
    """
    return logits if logits.shape[2:] == y.shape[1:] else logits.movedim(-1, 1)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return each row's cross entropy, shape (B,), for logits (B, C) and labels (B,) or (B, ...).

    For several labels it is the mean over those that count, or 0 if none does. A label outside the classes,
    as padding may have, gives loss 0 and gradient 0.
    """
    if not _has_several(y):
        # (B, C), with a single 1 in each row.
        chosen = (y[:, None] == torch.arange(logits.shape[1])).float()
        return -(logits.log_softmax(1) * chosen).sum(1)
    logits = classes_first(logits, y)
    classes = torch.arange(logits.shape[1]).reshape(-1, *[1] * (y.ndim - 1))
    chosen = (y[:, None] == classes).float()  # (B, C, ...)
    return _mean_counted(-(logits.log_softmax(1) * chosen).sum(1), y)


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Return each row's mean squared error, shape (B,)."""
    return _mean((output - y).square())


def absolute_error(output: Tensor, y: Tensor) -> Tensor:
    """Return each row's mean absolute error, shape (B,)."""
    return _mean((output - y).abs())


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return 1 for each row whose largest logit belongs to its label, and 0 for the others.

    Of equal logits, the first counts as the largest. For several labels, the result is the share of correct
    ones among those that count.
    """
    if not _has_several(y):
        return (logits.argmax(1) == y).float()
    return _mean_counted((classes_first(logits, y).argmax(1) == y).float(), y)


def label_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the share of each row's labels, 0 or 1 (B, ...), that agree with the signs of the logits."""
    return _mean(((logits > 0) == (y > 0.5)).float())


def row_loss(loss: Loss) -> Rows | None:
    """Return the function that computes the loss, or None if the loss is not built in."""
    if loss == Loss():
        return cross_entropy
    if loss.name == "cross_entropy":
        return _adjusted(loss)
    return _LOSSES.get(loss.name)


def row_metric(metric: Metric, loss: Rows) -> Rows | None:
    """Return the function that computes the metric, or None if the metric is not built in."""
    return loss if metric.name == "loss" else _METRICS.get(metric.name)


def _adjusted(loss: Loss) -> Rows:
    """Return cross entropy with smoothed labels or weighted classes."""

    def rows(logits: Tensor, y: Tensor) -> Tensor:
        weights = logits.new_tensor(loss.class_weights) if loss.class_weights else None
        several = _has_several(y)
        losses = functional.cross_entropy(
            classes_first(logits, y) if several else logits,
            y,
            weights,
            reduction="none",
            label_smoothing=loss.label_smoothing,
        )
        return _mean_counted(losses, y) if several else losses

    return rows


def _huber(output: Tensor, y: Tensor) -> Tensor:
    return _mean(functional.huber_loss(output, y, reduction="none"))


def _bce_with_logits(logits: Tensor, y: Tensor) -> Tensor:
    return _mean(functional.binary_cross_entropy_with_logits(logits, y, reduction="none"))


def _has_several(y: Tensor) -> bool:
    """Return True if each row of y has several labels."""
    return y.ndim > 1 and not y.is_floating_point()


def _mean_counted(values: Tensor, y: Tensor) -> Tensor:
    """Return each row's mean, (B,), over the labels of y (B, ...) that count.

    The other values must be 0.
    """
    return values.flatten(1).sum(1) / counted(y).clamp_min(1)


def _mean(values: Tensor) -> Tensor:
    """Return each row's mean, (B,)."""
    return values.flatten(1).mean(1)


_LOSSES: dict[str, Rows] = {
    "mse": squared_error,
    "l1": absolute_error,
    "huber": _huber,
    "bce_with_logits": _bce_with_logits,
}
_METRICS: dict[str, Rows] = {
    ACCURACY.name: accuracy,
    PERPLEXITY.name: cross_entropy,
    LABEL_ACCURACY.name: label_accuracy,
    ABSOLUTE_ERROR.name: absolute_error,
}
# The metrics that count correct answers. The other metrics measure errors.
COUNTED = (accuracy, label_accuracy)
CLASSIFICATION = Objective(cross_entropy, accuracy)
REGRESSION = Objective(squared_error, absolute_error)
