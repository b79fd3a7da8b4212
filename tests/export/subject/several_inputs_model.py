"""A model of three inputs, its loss and its data, as users write them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

CLASSES, WORDS, ROWS = 3, 9, 24


class Several(nn.Module):
    """An image, a table and words with a mask-like padding of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.Conv2d(1, 4, 3)
        self.words = nn.Embedding(WORDS, 5)
        self.head = nn.Linear(4 + 5 + 2, CLASSES)

    def forward(self, image: Tensor, table: Tensor, tokens: Tensor) -> Tensor:
        """Outputs (B, 3) of image (B, 1, 6, 6), table (B, 2) and tokens (B, 4)."""
        seen = self.look(image).relu().mean((2, 3))
        known = (tokens != 0).float()[..., None]
        read = (self.words(tokens) * known).sum(1) / known.sum(1).clamp(min=1)
        found: Tensor = self.head(torch.cat([seen, table, read], 1))
        return found


def top_two(logits: Tensor, y: Tensor) -> Tensor:
    """1 for each row in which at most one output is above the label's."""
    above = logits > logits.gather(1, y[:, None])
    return (above.sum(1) < 2).float()


def build() -> nn.Module:
    """The model, the same at every call."""
    torch.manual_seed(5)
    return Several()


def arrays(seed: int = 0) -> dict[str, NDArray[np.float32 | np.int64]]:
    """Rows of the inputs by name."""
    rng = np.random.default_rng(seed)
    return {
        "image": rng.standard_normal((ROWS, 1, 6, 6), np.float32),
        "table": rng.standard_normal((ROWS, 2), np.float32),
        "tokens": rng.integers(0, WORDS, (ROWS, 4)),
    }


def misshapen() -> tuple[NDArray[np.float32 | np.int64], NDArray[np.int64]]:
    """Rows that are not the model's."""
    return arrays()["table"], load()[1]


def load() -> tuple[dict[str, NDArray[np.float32 | np.int64]], NDArray[np.int64]]:
    """The data of a device."""
    return arrays(), np.random.default_rng(1).integers(0, CLASSES, ROWS)
