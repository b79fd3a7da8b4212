"""Image networks, each as small as its architecture allows."""

from collections.abc import Callable

import torch
from tools.bench.zoo.deep import Beside, Residual, SqueezeExcite, bottleneck, conv_norm, head
from torch import Tensor, nn
from torch.nn import functional


def vgg(batch_norm: bool = True) -> nn.Module:
    """Return VGG: convolutions and pools in a sequence."""
    layers: list[nn.Module] = []
    now = 3
    for outputs in (16, 32, 64):
        if batch_norm:
            layers += [conv_norm(now, outputs), conv_norm(outputs, outputs)]
        else:
            layers += [nn.Conv2d(now, outputs, 3, padding=1), nn.ReLU()]
            layers += [nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()]
        layers.append(nn.MaxPool2d(2))
        now = outputs
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(now * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def lenet() -> nn.Module:
    """Return LeNet-5 for images of 28 x 28."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(),
        nn.Linear(84, 10),
    )  # fmt: skip


def squeezenet() -> nn.Module:
    """Return SqueezeNet, made of fire modules: a narrow layer, then 1 x 1 and 3 x 3 in parallel."""

    def fire(inputs: int, narrow: int, wide: int) -> nn.Module:
        beside = Beside(nn.Conv2d(narrow, wide, 1), nn.Conv2d(narrow, wide, 3, padding=1))
        return nn.Sequential(nn.Conv2d(inputs, narrow, 1), nn.ReLU(), beside, nn.ReLU())

    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(3, 2, 1), fire(16, 8, 16), fire(32, 8, 16),
        nn.MaxPool2d(3, 2, 1), fire(32, 16, 32), nn.Conv2d(64, 10, 1), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )  # fmt: skip


def inception() -> nn.Module:
    """Return an Inception network: parallel branches with kernels of different sizes."""

    def mixed(inputs: int) -> nn.Module:
        pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), conv_norm(inputs, 8, 1))
        five = nn.Sequential(conv_norm(inputs, 4, 1), conv_norm(4, 8, 5))
        return Beside(conv_norm(inputs, 8, 1), conv_norm(inputs, 8), five, pool)

    return nn.Sequential(conv_norm(3, 8), mixed(8), nn.MaxPool2d(2), mixed(32), *head(32))


def resnext() -> nn.Module:
    """Return ResNeXt: bottlenecks with grouped convolutions."""
    return nn.Sequential(
        conv_norm(3, 16), bottleneck(16, 16, 32, 1, 4), bottleneck(32, 32, 64, 2, 4), *head(64)
    )


def resnet_bottleneck() -> nn.Module:
    """Return a small network of ResNet-50's blocks."""
    return nn.Sequential(
        conv_norm(3, 16), bottleneck(16, 8, 32, 1), bottleneck(32, 16, 64, 2), *head(64)
    )


def se_resnet() -> nn.Module:
    """Return SE-ResNet: basic blocks with squeeze and excitation."""

    def block(inputs: int, outputs: int, stride: int) -> nn.Module:
        body = nn.Sequential(
            conv_norm(inputs, outputs, 3, stride), conv_norm(outputs, outputs, act=None),
            SqueezeExcite(outputs, outputs // 4),
        )  # fmt: skip
        return Residual(body, conv_norm(inputs, outputs, 1, stride, act=None), nn.ReLU())

    return nn.Sequential(conv_norm(3, 16), block(16, 16, 1), block(16, 32, 2), *head(32))


class PreActivation(nn.Module):
    """The block of ResNet-v2: normalisation and ReLU before each convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x (B, C, H, W)."""
        y = self.conv1(functional.relu(self.norm1(x)))
        found: Tensor = x + self.conv2(functional.relu(self.norm2(y)))
        return found


def resnet_v2() -> nn.Module:
    """Return a network of pre-activation blocks."""
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), PreActivation(16), PreActivation(16), *head(16))


class ChannelsLastNorm(nn.Module):
    """LayerNorm over the channels of images."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise x (B, C, H, W) over C."""
        found: Tensor = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return found


class LayerScale(nn.Module):
    """Multiplies each channel by a trainable factor, small at first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((channels, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        """Return x multiplied by the factors."""
        return x * self.factor


def convnext() -> nn.Module:
    """Return ConvNeXt: 7 x 7 depthwise convolutions, LayerNorm, and inverted bottlenecks with GELU."""

    def block(channels: int) -> nn.Module:
        body = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels), ChannelsLastNorm(channels),
            nn.Conv2d(channels, 4 * channels, 1), nn.GELU(), nn.Conv2d(4 * channels, channels, 1),
            LayerScale(channels),
        )  # fmt: skip
        return Residual(body, nn.Identity(), nn.Identity())

    return nn.Sequential(
        nn.Conv2d(3, 16, 4, 4), ChannelsLastNorm(16), block(16), nn.Conv2d(16, 32, 2, 2), block(32),
        *head(32),
    )  # fmt: skip


def convmixer() -> nn.Module:
    """Return ConvMixer: patches, then depthwise and pointwise convolutions with GELU."""
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 4, 4), nn.GELU(), nn.BatchNorm2d(24)]
    for _ in range(2):
        spatial = nn.Sequential(
            nn.Conv2d(24, 24, 5, padding=2, groups=24), nn.GELU(), nn.BatchNorm2d(24)
        )
        layers.append(Residual(spatial, nn.Identity(), nn.Identity()))
        layers += [nn.Conv2d(24, 24, 1), nn.GELU(), nn.BatchNorm2d(24)]
    return nn.Sequential(*layers, *head(24))


def ghostnet() -> nn.Module:
    """Return GhostNet, whose modules compute half of the channels cheaply from the other half."""

    class Ghost(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.main = conv_norm(inputs, outputs // 2, 1)
            self.cheap = conv_norm(outputs // 2, outputs // 2, groups=outputs // 2)

        def forward(self, x: Tensor) -> Tensor:
            y = self.main(x)
            return torch.cat([y, self.cheap(y)], 1)

    return nn.Sequential(
        conv_norm(3, 16, 3, 2), Ghost(16, 32), nn.MaxPool2d(2), Ghost(32, 32), *head(32)
    )


class SpatialAttention(nn.Module):
    """CBAM attention: gates channels, then positions, by their mean and maximum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels))
        self.conv = nn.Conv2d(2, 1, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        """Return x multiplied by both gates."""
        by_channel = self.shared(x.mean((2, 3))) + self.shared(x.amax((2, 3)))
        x = x * torch.sigmoid(by_channel)[:, :, None, None]
        planes = torch.stack([x.mean(1), x.max(1).values], 1)
        return x * torch.sigmoid(self.conv(planes))


def cbam() -> nn.Module:
    """Return a small network with CBAM."""
    return nn.Sequential(
        conv_norm(3, 16), SpatialAttention(16), nn.MaxPool2d(2), conv_norm(16, 32), *head(32)
    )


class UNet(nn.Module):
    """A U-Net of two scales with skip connections."""

    def __init__(self, up: Callable[[int, int], nn.Module], outputs: int = 3) -> None:
        super().__init__()
        self.first, self.second = conv_norm(3, 8), conv_norm(8, 16)
        self.deepest, self.last = conv_norm(16, 32), nn.Conv2d(8, outputs, 1)
        self.up2, self.up1 = up(32, 16), up(16, 8)
        self.join2, self.join1 = conv_norm(32, 16), conv_norm(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return all output maps of each image, flattened (B, outputs * H * W)."""
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        deep = self.deepest(functional.max_pool2d(second, 2))
        y = self.join2(torch.cat([second, self.up2(deep)], 1))
        y = self.join1(torch.cat([first, self.up1(y)], 1))
        found: Tensor = self.last(y).flatten(1)
        return found


def upsampled(mode: str) -> Callable[[int, int], nn.Module]:
    """Return a function that creates an upsampling by two, followed by a convolution."""

    def up(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Upsample(scale_factor=2, mode=mode), nn.Conv2d(inputs, outputs, 3, padding=1)
        )

    return up


def transposed(inputs: int, outputs: int) -> nn.Module:
    """Return a transposed convolution that doubles height and width."""
    return nn.ConvTranspose2d(inputs, outputs, 2, 2)


def conv_autoencoder() -> nn.Module:
    """Return an autoencoder: convolutions shrink the image, transposed convolutions enlarge it again."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 8, 3, 2, 1, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 3, 2, 1, 1),
        nn.Sigmoid(), nn.Flatten(),
    )  # fmt: skip


def super_resolution() -> nn.Module:
    """Return ESPCN: convolutions and a pixel shuffle."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 4, 3, padding=1), nn.PixelShuffle(2),
        nn.Flatten(),
    )  # fmt: skip


class Pyramid(nn.Module):
    """Spatial pyramid pooling: averages and maxima of overlapping windows."""

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, C (1 + 9 + 25 + 4))."""
        means = [functional.adaptive_avg_pool2d(x, side).flatten(1) for side in (1, 3, 5)]
        return torch.cat([*means, functional.adaptive_max_pool2d(x, 2).flatten(1)], 1)


def pyramid() -> nn.Module:
    """Return a network with a pyramid of adaptive pools."""
    return nn.Sequential(conv_norm(3, 8, 3, 2), conv_norm(8, 8), Pyramid(), nn.Linear(8 * 39, 10))


def unfolded() -> nn.Module:
    """Return a network whose convolution is implemented as an unfold and a product."""
    return nn.Sequential(
        nn.Unfold(3, stride=2),
        nn.Conv1d(27, 16, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 49, 10),
    )


class Fourier(nn.Module):
    """Mixes positions with a fixed cosine transform."""

    def __init__(self, side: int) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(side), torch.arange(side)) * (2 * torch.pi / side)
        self.basis: Tensor
        self.register_buffer("basis", angles.cos() / side**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return the cosine transform along both sides."""
        return self.basis @ x @ self.basis


def fourier() -> nn.Module:
    """Return a network whose input is the image's cosine transform."""
    return nn.Sequential(
        Fourier(16), nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
