"""The four models to train, with their data and batches, as ``tools.bench.training.Example``."""

from collections.abc import Callable
from functools import partial

import torch
from tools.bench.gpu.sizes import Size
from tools.bench.training import Example
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_emulate.training.problem import TrainingProblem
from sedge_export import models
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.training import Training

LEARNING_RATE = 0.01
_IMAGE, _SIGNAL = (1, 28, 28), (9, 128)


class ConvNet1D(nn.Module):
    """Three convolutions of width 5, a mean over time and a linear layer, with 60,118 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(9, 64, 5)
        self.conv2 = nn.Conv1d(64, 64, 5)
        self.conv3 = nn.Conv1d(64, 112, 5)
        self.classifier = nn.Linear(112, 6)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 6) for signals (B, 9, 128)."""
        x = torch.max_pool1d(torch.relu(self.conv1(x)), 2)  # shape (B, 64, 62)
        x = torch.max_pool1d(torch.relu(self.conv2(x)), 2)  # shape (B, 64, 29)
        x = torch.relu(self.conv3(x)).mean(2)
        logits: Tensor = self.classifier(x)
        return logits


_SUBJECTS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "avgcnn": (models.avgcnn, _IMAGE),
    "resnet8": (models.resnet8, _IMAGE),
    "conv1d": (ConvNet1D, _SIGNAL),
    "mlp": (partial(models.mlp, 784, 200, 10), _IMAGE),
}


def subject(name: str, size: Size, devices: int) -> Example:
    """Return a model with data for ``devices`` devices of ``size.rows`` rows each."""
    build, shape = _SUBJECTS[name]
    training = Training(size.epochs, LEARNING_RATE)
    return Example(build, shape, size.batch_size, training, devices, size.rows)


def built(example: Example) -> nn.Module:
    """Build the model, with the same initial parameters in every process."""
    torch.manual_seed(0)
    return example.build()


def problem(example: Example) -> TrainingProblem:
    """Return the model in the form that the emulator's trainers expect."""
    row = TensorSpec("float32", example.shape)
    return TrainingProblem(built(example), CLASSIFICATION, example.batch_size, row)


def examples_of(example: Example) -> int:
    """Return how many examples all devices together train on, counting repeats."""
    return example.devices * example.rows * example.training.local_epochs
