"""Reference models that the benchmarks and some examples train.

``avgcnn`` is the small network common in the literature on personalised federated learning (n = 582,026
for one channel of 28 x 28 and ten classes), and ``resnet8`` is the network of the FedPURIN and FedCAC
papers. Both use PyTorch's default initialisation, except that the convolutions of ``resnet8`` are
initialised as in its authors' work (Kaiming, fan out).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class AvgCNN(nn.Module):
    """conv 5x5 (32) - ReLU - pool - conv 5x5 (64) - ReLU - pool - fc 512 - ReLU - fc."""

    def __init__(self, channels: int, classes: int, pixels: int) -> None:
        super().__init__()
        side = ((pixels - 4) // 2 - 4) // 2
        self.conv1 = nn.Conv2d(channels, 32, 5)
        self.conv2 = nn.Conv2d(32, 64, 5)
        self.fc1 = nn.Linear(64 * side * side, 512)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, channels, pixels, pixels)."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)  # (B, 32, 12, 12)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)  # (B, 64, 4, 4)
        x = torch.relu(self.fc1(x.flatten(1)))
        logits: Tensor = self.classifier(x)
        return logits


def avgcnn(channels: int = 1, classes: int = 10, pixels: int = 28) -> nn.Module:
    """Return FedAvg's network with two convolutions."""
    return AvgCNN(channels, classes, pixels)


def mlp(inputs: int = 784, hidden: int = 200, classes: int = 10) -> nn.Module:
    """Return a network with one hidden layer, for images or vectors of ``inputs`` numbers."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes)
    )


def batch_norm(channels: int) -> nn.Module:
    """Return a batch-normalisation layer, whose running statistics are part of theta."""
    return nn.BatchNorm2d(channels)


def group_norm(channels: int) -> nn.Module:
    """Return a group-normalisation layer with 16 channels per group.

    It has no running statistics, and its groups stay whole if the model is narrowed by quarters.
    """
    return nn.GroupNorm(channels // 16, channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut around them."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return torch.relu(y + self.shortcut(x))


class ResNet8(nn.Module):
    """conv 7x7 by 2 (64) - norm - ReLU - pool 3 by 2 - blocks of 64, 128 and 256 - mean - fc."""

    def __init__(self, channels: int, classes: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.norm1 = norm(64)
        self.block1 = BasicBlock(64, 64, 1, norm)
        self.block2 = BasicBlock(64, 128, 2, norm)
        self.block3 = BasicBlock(128, 256, 2, norm)
        self.classifier = nn.Linear(256, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, classes) of images (B, channels, H, W)."""
        x = torch.relu(self.norm1(self.conv1(x)))  # (B, 64, 14, 14) for images of 28 x 28
        x = torch.max_pool2d(x, 3, 2, 1)  # (B, 64, 7, 7)
        x = self.block3(self.block2(self.block1(x)))  # (B, 256, 2, 2)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits


def resnet8(channels: int = 1, classes: int = 10) -> nn.Module:
    """Return FedPURIN's ResNet-8, with batch normalisation: n = 1,229,002 and 2,688 statistics."""
    return ResNet8(channels, classes, batch_norm)


def resnet8_groupnorm(channels: int = 1, classes: int = 10) -> nn.Module:
    """Return ResNet-8 with group normalisation, which works better if devices have different data."""
    return ResNet8(channels, classes, group_norm)
