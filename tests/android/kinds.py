"""Models of every kind that a device trains, compiled for ExecuTorch."""

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.edge.backends.contrast import moon
from torch import Tensor, nn

from sedge_edge.backends.guided import GuidedLoss, GuideInputs, Pass
from sedge_export import export
from sedge_export.models import avgcnn
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.objective import CONSTANTS, COUNTS, Guide
from sedge_protocol.wire.training import Training

B = 8
SGD = Training(local_epochs=2, learning_rate=0.05, momentum=0.9)


@dataclass(frozen=True)
class Kind:
    """A model, its words for ``export``, a row's shape, and what y has: labels, numbers or none."""

    model: Callable[[], nn.Module]
    words: dict[str, Any]
    row: tuple[int, ...]
    y: str = "labels"
    training: Training = SGD
    asks: dict[str, Any] = field(default_factory=dict[str, Any])


GUIDE = Guide("every input", ("start", "previous"), 2, counts=True)


def guided(own: Tensor, now: Pass, y: Tensor, seen: GuideInputs) -> Tensor:
    """MOON's loss, and one of the class counts."""
    return moon(own, now, y, seen) + (now.outputs * seen.arrays[COUNTS]).square().sum(1) / 100


KINDS = {
    "cnn": Kind(avgcnn, {"num_classes": 10}, (1, 28, 28)),
    "statistics": Kind(
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(36, 3),
        ),
        {"num_classes": 3},
        (1, 8, 8),
    ),
    "dropout": Kind(
        lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)),
        {"num_classes": 3, "labels": ("ant", "bee", "cat"), "guided": GuidedLoss(GUIDE, guided)},
        (6,),
        asks={"loss": GUIDE.name, "arrays": {CONSTANTS: np.array([2, 0.5], "<f4").tobytes()}},
        training=Training(
            local_epochs=2, learning_rate=0.01, optimizer="adam", optimizer_state="keep",
            weight_decay=0.01, warmup_steps=2, end_factor=0.5, average=0.6,
        ),
    ),
    "regression": Kind(lambda: nn.Linear(6, 2), {"num_classes": 0}, (6,), "numbers"),
    "tokens": Kind(
        lambda: nn.Sequential(nn.Embedding(7, 4), nn.Linear(4, 5)),
        {"num_classes": 5, "target": TensorSpec("int64", (3,)), "metric": "perplexity"},
        (3,),
        "tokens",
    ),
    "autoencoder": Kind(
        lambda: nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 6)),
        {"num_classes": 0, "target": "none"},
        (6,),
        "none",
    ),
}  # fmt: skip


def exported(name: str) -> Path:
    """A kind's bundle, made once for all processes of a test run: the compiler takes seconds."""
    folder = Path(os.environ["XDG_CACHE_HOME"]) / "kinds" / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _export(KINDS[name], name, folder)
    return folder


def _export(kind: Kind, name: str, folder: Path) -> None:
    torch.manual_seed(0)
    shape = B, *kind.row
    sample = torch.randint(7, shape) if kind.y == "tokens" else torch.randn(shape)
    words: dict[str, Any] = {"batch_size": B, "name": name, **kind.words}
    export(kind.model(), sample, folder=folder, backends=("executorch",), **words)
