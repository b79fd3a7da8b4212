"""Fine-tunes a small transformer on handwritten digits with LoRA adapters of rank 8; the base is frozen.

``base`` pretrains the transformer on 600 images of the digits 0 to 4, which stand for a public data set.
``build`` freezes it and puts adapters (Hu et al. 2021, arXiv 2106.09685) on its attention layers; the fleet
trains the adapters and the head on other images, of all ten digits. ``whole`` returns the same base with
every parameter trainable.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

WIDTH, HEADS, LAYERS, RANK = 128, 4, 4, 8
BASE_IMAGES, BASE_EPOCHS = 600, 8


class Block(nn.Module):
    """A transformer block: attention, then two linear layers, each preceded by a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv: nn.Module = nn.Linear(WIDTH, 3 * WIDTH)
        self.out: nn.Module = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (B, T, WIDTH) to the same shape."""
        rows, tokens = x.shape[:2]
        qkv = self.qkv(self.norm1(x)).view(rows, tokens, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class Transformer(nn.Module):
    """Classifies images (B, 8, 8), whose rows are the tokens, into logits (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(8, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 10)."""
        x = self.blocks(self.embed(x) + self.places)
        found: Tensor = self.head(self.norm(x).mean(1))
        return found


class Adapted(nn.Module):
    """A linear layer plus a low-rank adapter, whose output is 0 at first."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(RANK, layer.in_features) / layer.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(layer.out_features, RANK))

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output plus the adapter's."""
        found: Tensor = self.layer(x) + x @ self.down.T @ self.up.T
        return found


def images() -> tuple[Tensor, Tensor]:
    """Return the 1,797 digits (N, 8, 8) and their labels (N,)."""
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 8 - 1, dtype=torch.float32).view(-1, 8, 8), torch.tensor(y)


def load() -> tuple[object, object]:
    """Return the fleet's data: the images that the base was not trained on, and their labels."""
    x, y = images()
    return x[BASE_IMAGES:].numpy(), y[BASE_IMAGES:].numpy()


def base() -> Transformer:
    """Train the base, without adapters."""
    x, y = (part[:BASE_IMAGES] for part in images())
    x, y = x[y < 5], y[y < 5]
    model = Transformer()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(BASE_EPOCHS):
        for rows in torch.randperm(len(x)).split(32):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
    return model


def build() -> Transformer:
    """Return the frozen base with trainable adapters and a trainable head."""
    model = base().requires_grad_(False)
    for block in model.blocks:
        assert isinstance(block, Block)
        for name in ("qkv", "out"):
            layer = getattr(block, name)
            setattr(block, name, Adapted(layer))
    model.head.requires_grad_(True)
    return model


def whole() -> Transformer:
    """Return the base with every parameter trainable."""
    return base()
