"""The mean of the models after the last steps of training. Computing it does not affect training.

With a constant learning rate, the last model is one of many around the best model, and their mean is closer
to it. The device evaluates, keeps and predicts with the mean, but sends the last model.

Sources: Polyak and Juditsky 1992, Acceleration of stochastic approximation by averaging; Izmailov et al.
2018, Averaging weights leads to wider optima and better generalization.
"""

from typing import Any

import numpy as np

from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import Training


def mean_weight(training: Training, step: int, steps: int) -> float:
    """Return the weight (float32) of the model after step ``step`` of ``steps``.

    It is 1 / k for the k-th model in the mean, and 0 for models that are not in it.
    """
    averaged = training.averaged(steps)
    number = step + 1 - (steps - averaged)
    return float(np.float32(1 / number)) if 0 < number <= averaged else 0.0


def add_to_mean(mean: Theta, theta: Theta, weight: Any) -> None:
    """Add models (..., n) to their mean (..., n), in place. ``weight`` is one number, or (..., 1)."""
    change = theta - mean
    change *= weight
    mean += change
