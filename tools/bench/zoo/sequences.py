"""Networks for signals (B, T, F) and for word indices (B, T)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Through(nn.Module):
    """Calls a function with a module and the input."""

    def __init__(self, module: nn.Module, function: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.module, self.function = module, function

    def forward(self, x: Tensor) -> Tensor:
        """Return function(module, x)."""
        return self.function(self.module, x)


def recurrent(layer: nn.Module, width: int, classes: int = 5) -> nn.Module:
    """Return a recurrent layer whose last step is fed to a linear layer."""
    last = Through(layer, lambda module, x: module(x)[0][:, -1])
    return nn.Sequential(last, nn.Linear(width, classes))


class KeywordGru(nn.Module):
    """Classifies audio features (B, T, 40): a convolution, a GRU over all steps, and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(40, 32, 5, padding=2)
        self.layer, self.head = nn.GRU(32, 64, batch_first=True), nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, classes) from the last step."""
        features = torch.relu(self.conv(x.mT)).mT
        found: Tensor = self.head(self.layer(features)[0][:, -1])
        return found


class Cell(nn.Module):
    """A GRU cell in a loop over the steps."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(inputs, width), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 5) for x (B, T, F)."""
        state = x.new_zeros(x.shape[0], self.cell.hidden_size)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        found: Tensor = self.head(state)
        return found


def words(width: int = 16, vocabulary: int = 50) -> nn.Module:
    """Return a classifier that averages word embeddings."""
    mean = Through(nn.Embedding(vocabulary, width, padding_idx=0), lambda m, x: m(x).mean(1))
    return nn.Sequential(mean, nn.Linear(width, 5))


def bag(mode: str) -> nn.Module:
    """Return an EmbeddingBag and a linear layer."""
    return nn.Sequential(nn.EmbeddingBag(50, 16, mode=mode), nn.Linear(16, 5))


class Positions(nn.Module):
    """Word embeddings plus learned position embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the embeddings (B, T, width) of words (B, T)."""
        found: Tensor = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return found


def encoder_layer(width: int, norm_first: bool = False) -> nn.Module:
    """Return a layer of torch's transformer encoder, without dropout."""
    return nn.TransformerEncoderLayer(
        width, 4, 2 * width, 0.0, batch_first=True, norm_first=norm_first, activation="gelu"
    )


def transformer(norm_first: bool = False) -> nn.Module:
    """Return a transformer: two encoder layers and a classifier on their mean over positions."""
    mean = Through(nn.Identity(), lambda m, x: x.mean(1))
    layers = [encoder_layer(16, norm_first) for _ in range(2)]
    return nn.Sequential(Positions(50, 12, 16), *layers, mean, nn.Linear(16, 5))


class Causal(nn.Module):
    """Self-attention with a mask that hides later positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the attention to x (B, T, width)."""
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        found: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return found


class Block(nn.Module):
    """A block of GPT-2 that uses ``attention``."""

    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = attention
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x (B, T, width)."""
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


def gpt() -> nn.Module:
    """Return a network of two causal blocks that predicts the next word at the last position."""
    last = Through(nn.Identity(), lambda m, x: x[:, -1])
    blocks = [Block(16, Causal(16, 4)) for _ in range(2)]
    return nn.Sequential(Positions(50, 12, 16), *blocks, nn.LayerNorm(16), last, nn.Linear(16, 50))


class Rotary(nn.Module):
    """Attention with rotary position embeddings, whose frequencies are powers of two."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    @staticmethod
    def turned(x: Tensor) -> Tensor:
        """Rotate pairs of elements of x (B, T, width) by angles that grow with the position."""
        half = x.shape[-1] // 2
        frequencies = 2 ** -torch.arange(half).float()
        angles = torch.arange(x.shape[1])[:, None] * frequencies
        left, right = x[..., :half], x[..., half:]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the attention to x (B, T, width)."""
        q, k = self.turned(self.q(x)), self.turned(self.k(x))
        weights = (q @ k.mT / math.sqrt(x.shape[-1])).softmax(-1)
        found: Tensor = weights @ self.v(x)
        return found


class SwiGLU(nn.Module):
    """The gated feed-forward layer of LLaMA."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (B, T, width)."""
        found: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


class LlamaBlock(nn.Module):
    """A block of LLaMA: RMSNorm, rotary attention and SwiGLU."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention, self.mlp = Rotary(width), SwiGLU(width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to x (B, T, width)."""
        x = x + self.attention(self.norm1(x))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


def llama() -> nn.Module:
    """Return a network of two LLaMA blocks that predicts the next word at the last position."""
    last = Through(nn.Identity(), lambda m, x: x[:, -1])
    return nn.Sequential(
        nn.Embedding(50, 16), LlamaBlock(16), LlamaBlock(16), nn.RMSNorm(16), last,
        nn.Linear(16, 50, bias=False),
    )  # fmt: skip


class LowRank(nn.Module):
    """LoRA: a frozen linear layer plus a trained low-rank product."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the frozen layer's output plus the trained product."""
        found: Tensor = self.layer(x) + self.up(self.down(x))
        return found


def lora() -> nn.Module:
    """Return a frozen transformer layer with trained low-rank adapters and a trained classifier."""
    block = Block(16, Causal(16, 4)).requires_grad_(False)
    block.mlp = nn.Sequential(
        LowRank(nn.Linear(16, 64), 4), nn.GELU(), LowRank(nn.Linear(64, 16), 4)
    )
    mean = Through(nn.Identity(), lambda m, x: x.mean(1))
    table = nn.Embedding(50, 16).requires_grad_(False)
    return nn.Sequential(table, block, mean, nn.Linear(16, 5))


class VisionTransformer(nn.Module):
    """A vision transformer: patches, a class token written into the sequence, and an encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.token = nn.Parameter(torch.zeros(16))
        self.positions = nn.Parameter(torch.randn(17, 16) * 0.02)
        self.layer, self.head = encoder_layer(16, True), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 10) for images (B, 3, 16, 16)."""
        rows = self.patches(x).flatten(2).mT
        sequence = rows.new_zeros(rows.shape[0], 17, 16)
        sequence[:, 0] = self.token
        sequence[:, 1:] = rows
        found: Tensor = self.head(self.layer(sequence + self.positions)[:, 0])
        return found


def mlp_mixer() -> nn.Module:
    """Return an MLP-Mixer, which mixes patches, then channels."""

    class Mix(nn.Module):
        def __init__(self, positions: int, width: int) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.across = nn.Sequential(
                nn.Linear(positions, 32), nn.GELU(), nn.Linear(32, positions)
            )
            self.along = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

        def forward(self, x: Tensor) -> Tensor:
            x = x + self.across(self.norm1(x).mT).mT
            found: Tensor = x + self.along(self.norm2(x))
            return found

    patches = Through(nn.Conv2d(3, 16, 4, 4), lambda m, x: m(x).flatten(2).mT)
    mean = Through(nn.Identity(), lambda m, x: x.mean(1))
    return nn.Sequential(patches, Mix(16, 16), Mix(16, 16), mean, nn.Linear(16, 10))


def keyword_cnn() -> nn.Module:
    """Return a network of depthwise separable convolutions over time, for audio features (B, F, T)."""
    layers: list[nn.Module] = [nn.Conv1d(10, 16, 5, 2, 2), nn.BatchNorm1d(16), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv1d(16, 16, 5, padding=2, groups=16), nn.Conv1d(16, 16, 1)]
        layers += [nn.BatchNorm1d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, 5))


class Dilated(nn.Module):
    """A causal dilated convolution with a gate, as in WaveNet."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 2 * channels, 2, dilation=dilation)
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution to x (B, C, T)."""
        values, gates = self.conv(functional.pad(x, (self.dilation, 0))).chunk(2, 1)
        found: Tensor = x + values.tanh() * gates.sigmoid()
        return found


def tcn() -> nn.Module:
    """Return a network of dilated causal convolutions."""
    return nn.Sequential(
        nn.Conv1d(10, 16, 1), Dilated(16, 1), Dilated(16, 2), Dilated(16, 4),
        Through(nn.Identity(), lambda m, x: x[..., -1]), nn.Linear(16, 5),
    )  # fmt: skip


class Pooled(nn.Module):
    """Attention pooling: a learned query attends to the steps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.head = nn.Parameter(torch.randn(width)), nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 5) for x (B, T, width)."""
        weights = (x @ self.query).softmax(1)
        found: Tensor = self.head((weights[..., None] * x).sum(1))
        return found


class Windows(nn.Module):
    """Applies one layer to overlapping windows of a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 5) for signals (B, T)."""
        found: Tensor = self.head(torch.relu(self.layer(x.unfold(1, 8, 4))).mean(1))
        return found
