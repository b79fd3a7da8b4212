"""Models that do not classify, or not plainly: modules of the backend ``torch`` in test_objectives.py."""

import torch
from torch import Tensor, nn

FEATURES, OUTPUTS = 6, 3


def built(outputs: int) -> nn.Module:
    """A small network with fixed values."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, outputs))


def model() -> nn.Module:
    """Of three outputs."""
    return built(OUTPUTS)


def autoencoder() -> nn.Module:
    """Of as many outputs as inputs."""
    return built(FEATURES)


def own(output: Tensor, y: Tensor) -> Tensor:
    """A loss of the user's: the fourth power."""
    return ((output - y) ** 4).mean(1)


def with_own() -> tuple[nn.Module, object]:
    """The model and its loss."""
    return model(), own


def judged(output: Tensor, y: Tensor) -> Tensor:
    """A metric of the user's: the largest error."""
    return (output - y).abs().amax(1)


def with_both() -> tuple[nn.Module, object, object]:
    """The model, its loss and its metric."""
    return model(), own, judged
