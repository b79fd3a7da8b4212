"""Trains your own model on your own data in an emulated fleet.

    sedge-emulate run examples/own_model.toml

Sedge needs only ``build`` and ``load``. For real devices, pass the same ``build`` to ``sedge-export`` and
name the same ``load`` in edge.toml: ``train = "own_model:load"``.
"""

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_wine
from torch import nn


def build() -> nn.Module:
    """Return the model: any module that outputs one row of class scores per example."""
    return nn.Sequential(nn.Linear(13, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))


def load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return inputs (N, ...) and labels (N,): here 178 wines, 13 measurements each, from 3 growers."""
    measured, grower = load_wine(return_X_y=True)
    inputs = np.asarray(measured, np.float32)
    inputs = (inputs - inputs.mean(axis=0)) / inputs.std(axis=0)
    return inputs, np.asarray(grower, np.int64)
