"""Losses and metrics in torch: from outputs (B, ...) and targets (B, ...) to one number a row, (B,).

They serve the exporter, the backend ``torch`` and the emulator.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sedge_protocol.wire.objective import ABSOLUTE_ERROR, ACCURACY, LABEL_ACCURACY, Loss, Metric

Rows: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Objective(NamedTuple):
    """What is minimised, and what people read of it."""

    loss: Rows
    metric: Rows


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Each row's cross entropy, shape (B,), of logits (B, C) and labels (B,).

    A label outside the classes, as padding may have, gives loss 0 and gradient 0.
    """
    chosen = (y[:, None] == torch.arange(logits.shape[1])).float()  # (B, C), one 1 in each row
    return -(logits.log_softmax(1) * chosen).sum(1)


def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Each row's mean squared error, shape (B,)."""
    return _mean((output - y).square())


def absolute_error(output: Tensor, y: Tensor) -> Tensor:
    """Each row's mean absolute error, shape (B,)."""
    return _mean((output - y).abs())


def accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """1 for each row whose largest logit is its label's, the first of equal ones, and 0 for the others."""
    return (logits.argmax(1) == y).float()


def label_accuracy(logits: Tensor, y: Tensor) -> Tensor:
    """Each row's share of labels (B, ...) of 0 and 1 that the signs of its logits agree with."""
    return _mean(((logits > 0) == (y > 0.5)).float())


def row_loss(loss: Loss) -> Rows | None:
    """The loss as a function; None for one that is not of ours."""
    if loss == Loss():
        return cross_entropy
    if loss.name == "cross_entropy":
        return _adjusted(loss)
    return _LOSSES.get(loss.name)


def row_metric(metric: Metric, loss: Rows) -> Rows | None:
    """The metric as a function; None for one that is not of ours."""
    return loss if metric.name == "loss" else _METRICS.get(metric.name)


def _adjusted(loss: Loss) -> Rows:
    """Cross entropy with smoothed labels or weighted classes."""

    def rows(logits: Tensor, y: Tensor) -> Tensor:
        weights = logits.new_tensor(loss.class_weights) if loss.class_weights else None
        return functional.cross_entropy(
            logits, y, weights, reduction="none", label_smoothing=loss.label_smoothing
        )

    return rows


def _huber(output: Tensor, y: Tensor) -> Tensor:
    return _mean(functional.huber_loss(output, y, reduction="none"))


def _bce_with_logits(logits: Tensor, y: Tensor) -> Tensor:
    return _mean(functional.binary_cross_entropy_with_logits(logits, y, reduction="none"))


def _mean(values: Tensor) -> Tensor:
    """The mean of each row, (B,)."""
    return values.flatten(1).mean(1)


_LOSSES: dict[str, Rows] = {
    "mse": squared_error,
    "l1": absolute_error,
    "huber": _huber,
    "bce_with_logits": _bce_with_logits,
}
_METRICS: dict[str, Rows] = {
    ACCURACY.name: accuracy,
    LABEL_ACCURACY.name: label_accuracy,
    ABSOLUTE_ERROR.name: absolute_error,
}
# The metrics that count right answers; others measure.
COUNTED = (accuracy, label_accuracy)
CLASSIFICATION = Objective(cross_entropy, accuracy)
REGRESSION = Objective(squared_error, absolute_error)
