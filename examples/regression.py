"""Regression on an emulated fleet: predicts how far diabetes progresses in a year from 10 measurements.

    sedge-emulate run examples/regression.toml

For real devices: `sedge-export regression:build --sample-shape 10 --batch-size 8 --target float --name
diabetes --out bundle`, and ``train = "regression:load"`` in edge.toml.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes
from torch import nn


def build() -> nn.Module:
    """Return the model: any module that outputs one row of numbers per example."""
    return nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))


def load() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return inputs (N, 10) and targets (N, 1) of 442 patients. Float targets make it a regression."""
    measured, progression = load_diabetes(return_X_y=True, scaled=False)
    inputs = np.asarray(measured, np.float32)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    targets = np.asarray(progression, np.float32)[:, None] / np.float32(100)  # 0.25 to 3.46
    return np.asarray(inputs, np.float32), targets
