"""The softmax regression of softmax.py as a torch module: what a device's user would write."""

import torch
from torch import Tensor, nn


class Softmax(nn.Module):
    """Logits x W + b."""

    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.zeros(5, 3))
        self.b = nn.Parameter(torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """(B, F) to (B, C)."""
        return x @ self.W + self.b


def loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Each row's cross entropy as softmax.py has it, which overflows where torch's does not."""
    return -outputs.softmax(1).log().gather(1, y[:, None])[:, 0]


def build() -> tuple[nn.Module, object]:
    """The module and its loss, for ``backend.model``."""
    return Softmax(), loss
