"""Networks for tabular data, custom layers, and losses."""

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [nn.Linear(inputs, outputs), act()]
    return nn.Sequential(*layers[:-1])


class Highway(nn.Module):
    """A highway layer: a gate mixes a layer's output with its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (B, width)."""
        gate = self.gate(x).sigmoid()
        found: Tensor = gate * self.layer(x).relu() + (1 - gate) * x
        return found


class CrossLayer(nn.Module):
    """The cross layer of DCN, which multiplies features with one another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer to x (B, width)."""
        found: Tensor = x * self.layer(x) + x
        return found


class FactorisationMachine(nn.Module):
    """A factorisation machine: products of all pairs of features, weighted by low-rank factors."""

    def __init__(self, inputs: int, rank: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, classes)
        self.factors = nn.Parameter(torch.randn(classes, inputs, rank) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, classes) for rows (B, inputs)."""
        squares = torch.einsum("bi,cir->bcr", x, self.factors) ** 2
        pairs = squares - torch.einsum("bi,cir->bcr", x**2, self.factors**2)
        found: Tensor = self.linear(x) + 0.5 * pairs.sum(-1)
        return found


class Mixture(nn.Module):
    """A mixture of experts, weighted by a softmax."""

    def __init__(self, inputs: int, experts: int, classes: int) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(inputs, classes) for _ in range(experts)])
        self.router = nn.Linear(inputs, experts)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, classes) for rows (B, inputs)."""
        found = torch.stack([expert(x) for expert in self.experts], 1)
        mixed: Tensor = (self.router(x).softmax(1)[..., None] * found).sum(1)
        return mixed


class RadialBasis(nn.Module):
    """A radial basis network: Gaussians around learned centres."""

    def __init__(self, inputs: int, centres: int, classes: int) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(centres, inputs))
        self.head = nn.Linear(centres, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, classes) for rows (B, inputs)."""
        distances = (x[:, None] - self.centres).square().mean(-1)
        found: Tensor = self.head(torch.exp(-distances))
        return found


class Cosine(nn.Module):
    """Classifies by the cosine between features and class prototypes."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(inputs, 16)
        self.prototypes = nn.Parameter(torch.randn(classes, 16))

    def forward(self, x: Tensor) -> Tensor:
        """Return the cosines (B, classes) multiplied by 10."""
        rows = functional.normalize(self.body(x), dim=1)
        return 10 * rows @ functional.normalize(self.prototypes, dim=1).T


class Graph(nn.Module):
    """Two graph convolutions over a fixed ring of nodes."""

    def __init__(self, nodes: int, features: int) -> None:
        super().__init__()
        ring = torch.eye(nodes) + torch.eye(nodes).roll(1, 0) + torch.eye(nodes).roll(-1, 0)
        self.ring: Tensor
        self.register_buffer("ring", ring / 3)
        self.first, self.second = nn.Linear(features, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 5) for graphs (B, nodes, features)."""
        x = torch.relu(self.ring @ self.first(x))
        found: Tensor = (self.ring @ self.second(x)).mean(1)
        return found


class PointNet(nn.Module):
    """PointNet: applies one network to each point and takes the maximum over all points."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.head = mlp(3, 16, 32), mlp(32, 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 5) for points (B, N, 3)."""
        found: Tensor = self.head(self.points(x).amax(1))
        return found


class Siamese(nn.Module):
    """A Siamese network: a classifier of the difference between one network's outputs for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.twin, self.head = mlp(8, 16, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 2) for pairs (B, 2, 8)."""
        left, right = self.twin(x[:, 0]), self.twin(x[:, 1])
        found: Tensor = self.head((left - right).abs())
        return found


class ScaledNorm(nn.BatchNorm2d):
    """A subclass of BatchNorm with its own forward."""

    def forward(self, input: Tensor) -> Tensor:
        """Return twice the normalised input."""
        return 2 * super().forward(input)


class _StraightThrough(torch.autograd.Function):
    """Rounds values, but passes gradients through unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Rounding(nn.Module):
    """Quantisation-aware training: rounds weights to sixteenths with a custom autograd Function."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, classes) for rows (B, inputs)."""
        weight: Tensor = _StraightThrough.apply(self.layer.weight * 16)  # type: ignore[no-untyped-call]
        return functional.linear(x, weight / 16, self.layer.bias)


class Written(nn.Module):
    """Writes features into slices of a tensor, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Return outputs (B, 5) for rows (B, 16)."""
        features = torch.zeros(x.shape[0], 9)
        features[:, 0:8:2] = self.left(x[:, :8])
        features[:, 1:8:2] = self.right(x[:, 8:])
        features[:, 8] = x.mean(1)
        found: Tensor = self.head(features)
        return found


def smooth_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy with label smoothing of 0.1."""
    return functional.cross_entropy(logits, y, reduction="none", label_smoothing=0.1)


def weighted_cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """Return the cross entropy with a weight for each class."""
    weights = torch.linspace(0.5, 2.0, logits.shape[1])
    return functional.cross_entropy(logits, y, weights, reduction="none")


def focal(logits: Tensor, y: Tensor) -> Tensor:
    """Return the focal loss with gamma 2."""
    log = logits.log_softmax(1).gather(1, y[:, None])[:, 0]
    return -((1 - log.exp()) ** 2) * log


def hinge(logits: Tensor, y: Tensor) -> Tensor:
    """Return the multi-class hinge loss."""
    return functional.multi_margin_loss(logits, y, reduction="none")


def multi_label(logits: Tensor, y: Tensor) -> Tensor:
    """Return the binary cross entropy, averaged over the labels."""
    return functional.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(1)


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the Huber loss."""
    return functional.huber_loss(outputs, y, reduction="none").mean(1)


def smooth_l1(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the smooth L1 loss."""
    return functional.smooth_l1_loss(outputs, y, reduction="none").mean(1)


def quantile(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the pinball loss for the ninth decile."""
    error = y - outputs
    return torch.maximum(0.9 * error, -0.1 * error).mean(1)


def gaussian(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the negative log-likelihood of a normal distribution with a learned deviation."""
    mean, log_variance = outputs.chunk(2, 1)
    return (log_variance + (y - mean) ** 2 * torch.exp(-log_variance)).mean(1)


def poisson(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the Poisson negative log-likelihood of |y|."""
    return functional.poisson_nll_loss(outputs, y.abs(), reduction="none").mean(1)
