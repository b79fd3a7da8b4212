"""Segmentation on an emulated fleet: which garment each pixel of a scene belongs to.

    sedge-emulate run examples/segmentation.toml

A scene is composed of three Fashion-MNIST images at half size, later ones in front of earlier ones. Each
device is a household that owns three of the ten kinds of garment. For real devices: `sedge-export
segmentation:build --sample-shape 1,28,28 --batch-size 8 --num-classes 11 --target-shape 28,28 --name scenes
--out bundle`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from sedge_emulate.data.datasets import FASHION_MEAN, FASHION_STD, fashion_mnist

HOUSEHOLDS, SCENES, GARMENTS, SIDE = 8, 60, 3, 28
BACKGROUND, UNSURE = 0, -100
Images = NDArray[np.float32]
Labels = NDArray[np.int64]


class UNet(nn.Module):
    """A U-Net with two downsampling and two upsampling steps, connected by skip connections."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = _block(1, 12), _block(12, 24), _block(24, 32)
        self.back_two, self.back_one = _block(32 + 24, 24), _block(24 + 12, 12)
        self.head = nn.Conv2d(12, 11, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map images (B, 1, 28, 28) to logits (B, 11, 28, 28): background and ten kinds of garment."""
        one = self.one(x)
        two = self.two(max_pool2d(one, 2))
        three = self.three(max_pool2d(two, 2))
        two = self.back_two(torch.cat([interpolate(three, scale_factor=2.0), two], 1))
        one = self.back_one(torch.cat([interpolate(two, scale_factor=2.0), one], 1))
        found: Tensor = self.head(one)
        return found


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU())


def build() -> nn.Module:
    """Return a small U-Net (Ronneberger et al. 2015, arXiv 1505.04597)."""
    return UNet()


def load() -> tuple[Images, Labels, Labels]:
    """Return scenes (N, 1, 28, 28), a label for each pixel (N, 28, 28), and each scene's owner (N,)."""
    garments, rng = fashion_mnist(), np.random.default_rng(0)
    pixels = garments.inputs[:, 0] * np.float32(FASHION_STD) + np.float32(FASHION_MEAN)
    small = pixels.reshape(-1, SIDE // 2, 2, SIDE // 2, 2).mean((2, 4))
    scenes, labels, owners = list[Images](), list[Labels](), list[int]()
    for household in range(HOUSEHOLDS):
        kinds = rng.choice(10, GARMENTS, replace=False)
        owned = np.flatnonzero(np.isin(garments.labels, kinds))
        for _ in range(SCENES):
            chosen = rng.choice(owned, GARMENTS)
            scene, label = _composed(small[chosen], garments.labels[chosen] + 1, rng)
            scenes.append(scene)
            labels.append(label)
            owners.append(household)
    return np.stack(scenes)[:, None], np.stack(labels), np.array(owners)


def _composed(images: Images, kinds: Labels, rng: np.random.Generator) -> tuple[Images, Labels]:
    """Compose a scene of these garments. Pixels on a garment's faint edge are labelled as ignored."""
    scene = rng.uniform(0, 0.2, (SIDE, SIDE)).astype(np.float32)
    label = np.full((SIDE, SIDE), BACKGROUND)
    for image, kind in zip(images, kinds, strict=True):
        top, left = rng.integers(0, SIDE // 2 + 1, 2)
        here = np.s_[top : top + SIDE // 2, left : left + SIDE // 2]
        scene[here] = np.where(image > 0.05, image, scene[here])
        label[here] = np.where(image > 0.3, kind, np.where(image > 0.05, UNSURE, label[here]))
    return scene, label
