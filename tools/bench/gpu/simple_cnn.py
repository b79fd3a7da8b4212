"""pfl-research's model and shape of CIFAR-10, for its own simulation and for sedge-emulate.

``simple_cnn`` of its benchmarks (benchmarks/model/pytorch/cnn.py) without the dropout; the pixels are
random.
"""

import os

import numpy as np
from numpy.typing import NDArray
from torch import nn

# 1,000 users of 50 images, as benchmarks/image_classification/configs/baseline.yaml.
IMAGES, BATCH_SIZE, CLASSES, LEARNING_RATE = 50, 10, 10, 0.1
SHAPE = (3, 32, 32)
# The number of users for which ``load`` draws: the emulator calls it without arguments.
USERS = "SEDGE_BENCH_USERS"
# The emulator also tests each device, on one image of each class.
TESTS = CLASSES


def build() -> nn.Module:
    """conv 3x3 (32) - ReLU - conv 3x3 (64) - ReLU - pool - fc 128 - ReLU - fc: n = 1,626,442."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )
    for module in model:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return model


def load() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Images (N, 3, 32, 32) and labels (N,) of all users together, every class equally often."""
    count = int(os.environ[USERS]) * (IMAGES + TESTS)
    x = np.random.default_rng(0).standard_normal((count, *SHAPE), np.float32)
    return x, np.arange(count) % CLASSES
