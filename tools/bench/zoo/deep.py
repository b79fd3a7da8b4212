"""Well-known deep image networks, scaled by ``width``, and the blocks that they share."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
Act = Callable[[], nn.Module]


class Residual(nn.Module):
    """A residual block: act(shortcut(x) + body(x))."""

    def __init__(self, body: nn.Module, shortcut: nn.Module, act: nn.Module) -> None:
        super().__init__()
        self.body, self.shortcut, self.act = body, shortcut, act

    def forward(self, x: Tensor) -> Tensor:
        """Return act(shortcut(x) + body(x))."""
        found: Tensor = self.act(self.body(x) + self.shortcut(x))
        return found


class SqueezeExcite(nn.Module):
    """Squeeze and excitation: scales each channel by a gate computed from the channels' means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), nn.SiLU(),
            nn.Conv2d(squeezed, channels, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return x with each channel multiplied by its gate."""
        found: Tensor = x * self.gate(x)
        return found


class Beside(nn.Module):
    """Parallel branches on the same input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Return the branches' outputs, concatenated."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def conv_norm(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1,
    norm: Norm = nn.BatchNorm2d, act: Act | None = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """Return a convolution with "same" padding, a normalisation and an activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm(outputs), *([act()] if act else []))


def head(channels: int, classes: int = 10) -> list[nn.Module]:
    """Return the layers that average over positions and classify."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def basic(inputs: int, outputs: int, stride: int, norm: Norm = nn.BatchNorm2d) -> nn.Module:
    """Return the block of ResNet-18."""
    body = nn.Sequential(
        *conv_norm(inputs, outputs, 3, stride, norm=norm),
        *conv_norm(outputs, outputs, norm=norm, act=None),
    )
    same = stride == 1 and inputs == outputs
    shortcut = nn.Identity() if same else conv_norm(inputs, outputs, 1, stride, norm=norm, act=None)
    return Residual(body, shortcut, nn.ReLU())


def bottleneck(inputs: int, middle: int, outputs: int, stride: int, groups: int = 1) -> nn.Module:
    """Return the block of ResNet-50 or, with ``groups`` above 1, that of ResNeXt."""
    body = nn.Sequential(
        *conv_norm(inputs, middle, 1),
        *conv_norm(middle, middle, 3, stride, groups),
        *conv_norm(middle, outputs, 1, act=None),
    )
    return Residual(body, conv_norm(inputs, outputs, 1, stride, act=None), nn.ReLU())


def resnet(
    width: int, blocks: Sequence[int], norm: Norm = nn.BatchNorm2d, channels: int = 3
) -> nn.Module:
    """Return a ResNet of basic blocks with the stem for small images."""
    layers: list[nn.Module] = [conv_norm(channels, width, norm=norm)]
    now = width
    for stage, count in enumerate(blocks):
        for index in range(count):
            outputs = width * 2**stage
            layers.append(basic(now, outputs, 2 if stage and not index else 1, norm))
            now = outputs
    return nn.Sequential(*layers, *head(now))


def resnet18(width: int = 64) -> nn.Module:
    """Return ResNet-18 with the stem for CIFAR."""
    return resnet(width, (2, 2, 2, 2))


def inverted(
    inputs: int, outputs: int, stride: int, expand: int, kernel: int = 3, squeeze: bool = False,
    act: Act = nn.ReLU6,
) -> nn.Module:  # fmt: skip
    """Return the block of MobileNetV2 or, with squeeze and SiLU, that of EfficientNet."""
    middle = inputs * expand
    layers = [
        *(conv_norm(inputs, middle, 1, act=act) if expand > 1 else []),
        *conv_norm(middle, middle, kernel, stride, middle, act=act),
        *([SqueezeExcite(middle, max(1, inputs // 4))] if squeeze else []),
        *conv_norm(middle, outputs, 1, act=None),
    ]
    if stride == 1 and inputs == outputs:
        return Residual(nn.Sequential(*layers), nn.Identity(), nn.Identity())
    return nn.Sequential(*layers)


def _inverted_network(
    stages: Iterable[tuple[int, int, int, int, int]], stem: int, last: int, squeeze: bool, act: Act
) -> nn.Module:
    """Return a network of inverted residuals.

    ``stages`` has (expansion, channels, number of blocks, stride, kernel) for each stage.
    """
    layers: list[nn.Module] = [conv_norm(3, stem, act=act)]
    now = stem
    for expand, channels, count, stride, kernel in stages:
        for index in range(count):
            step = 1 if index else stride
            layers.append(inverted(now, channels, step, expand, kernel, squeeze, act))
            now = channels
    return nn.Sequential(*layers, conv_norm(now, last, 1, act=act), *head(last))


def mobilenet_v2(width: float = 1.0) -> nn.Module:
    """Return MobileNetV2 with the strides for CIFAR: 17 inverted residuals."""

    def scaled(channels: int) -> int:
        return max(8, int(channels * width) // 8 * 8)

    stages = [
        (1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]  # fmt: skip
    rows = [(expand, scaled(channels), n, s, 3) for expand, channels, n, s in stages]
    return _inverted_network(rows, scaled(32), scaled(1280), False, nn.ReLU6)


def efficientnet(width: float = 1.0, depth: int = 4) -> nn.Module:
    """Return EfficientNet-B0 with the strides for CIFAR, without its stochastic depth.

    A stage has at most ``depth`` blocks.
    """

    def scaled(channels: int) -> int:
        return max(8, int(channels * width) // 8 * 8)

    stages = [
        (1, 16, 1, 1, 3), (6, 24, 2, 1, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
    ]  # fmt: skip
    rows = [(e, scaled(c), min(n, depth), s, k) for e, c, n, s, k in stages]
    return _inverted_network(rows, scaled(32), scaled(1280), True, nn.SiLU)


def mobilenet_v1(width: int = 16) -> nn.Module:
    """Return MobileNetV1: depthwise separable convolutions."""
    layers: list[nn.Module] = [conv_norm(3, width, 3, 2)]
    now = width
    for outputs, stride in ((2 * width, 1), (4 * width, 2), (4 * width, 1), (8 * width, 2)):
        layers += [conv_norm(now, now, 3, stride, now), conv_norm(now, outputs, 1)]
        now = outputs
    return nn.Sequential(*layers, *head(now))


class ShuffleUnit(nn.Module):
    """The unit of ShuffleNetV2: with stride 1 half of the channels skip the body; then all are shuffled."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.passes = stride == 1
        source = half if self.passes else inputs
        self.beside = nn.Identity() if self.passes else self._thin(inputs, half, stride)
        self.body = nn.Sequential(conv_norm(source, half, 1), *self._thin(half, half, stride))
        self.shuffle = nn.ChannelShuffle(2)

    @staticmethod
    def _thin(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        spread = conv_norm(inputs, inputs, 3, stride, inputs, act=None)
        return nn.Sequential(*spread, *conv_norm(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs, H, W) to (B, outputs, H / stride, W / stride)."""
        left, right = x.chunk(2, 1) if self.passes else (x, x)
        found: Tensor = self.shuffle(torch.cat([self.beside(left), self.body(right)], 1))
        return found


def shufflenet_v2(width: int = 116, counts: Sequence[int] = (4, 8, 4)) -> nn.Module:
    """Return ShuffleNetV2 with the stem for CIFAR."""
    layers: list[nn.Module] = [conv_norm(3, 24)]
    now = 24
    for stage, count in enumerate(counts):
        for index in range(count):
            outputs = width * 2**stage
            layers.append(ShuffleUnit(now, outputs, 1 if index else 2))
            now = outputs
    return nn.Sequential(*layers, conv_norm(now, 2 * now, 1), *head(2 * now))


class Dense(nn.Module):
    """A layer of DenseNet, which appends its output to its input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C + growth, H, W)."""
        return torch.cat([x, self.body(x)], 1)


def densenet(growth: int = 12, counts: Sequence[int] = (6, 6, 6)) -> nn.Module:
    """Return DenseNet-BC for CIFAR."""
    now = 2 * growth
    layers: list[nn.Module] = [nn.Conv2d(3, now, 3, padding=1, bias=False)]
    for stage, count in enumerate(counts):
        for _ in range(count):
            layers.append(Dense(now, growth))
            now += growth
        if stage + 1 < len(counts):
            half = now // 2
            layers += [
                nn.BatchNorm2d(now), nn.ReLU(), nn.Conv2d(now, half, 1, bias=False), nn.AvgPool2d(2),
            ]  # fmt: skip
            now = half
    return nn.Sequential(*layers, nn.BatchNorm2d(now), nn.ReLU(), *head(now))
