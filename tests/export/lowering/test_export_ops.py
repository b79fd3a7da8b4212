"""Every operator that programs are promised to have: exported, run in onnxruntime, equal to eager torch.

``export`` itself compares gradients, tensor by tensor, a step, an epoch, evaluation and prediction with
autograd and raises when one differs, so a case passes when it exports. The operators of a case are
branches of one network, each with parameters of its own.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.export.layers import Beside, Body, Function, Lambda
from torch import Tensor, nn

from sedge_export import export

torch.set_num_threads(1)

BATCH, CLASSES = 5, 3


def gate(a: Body, x: Tensor) -> Tensor:
    """Half of the channels gate the others."""
    values, gates = a(x).chunk(2, 1)
    return values * torch.sigmoid(gates)


def conv(outputs: int = 4, inputs: int = 3) -> nn.Module:
    """A convolution that keeps height and width."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


def convolutions(inputs: int) -> nn.Module:
    """Every kind of convolution. From 12 channels on the weight's gradient has its other form."""
    settings: list[dict[str, Any]] = [
        {"kernel_size": 3},
        {"kernel_size": 3, "bias": False},
        {"kernel_size": 3, "stride": 2},
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "stride": 2, "padding": 1},
        {"kernel_size": 2, "stride": 3},  # rows that are not read
        {"kernel_size": 3, "dilation": 2, "padding": 2},
        {"kernel_size": (3, 2), "stride": (3, 2), "dilation": (1, 2), "padding": (2, 0)},
        {"kernel_size": 1, "stride": 2},
        {"kernel_size": 3, "padding": "same"},
        {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
        {"kernel_size": 3, "groups": 3, "stride": 2, "padding": 1},
    ]
    chosen = settings if inputs < 12 else settings[1::3]
    return Beside(*(nn.Conv2d(inputs, 6, **setting) for setting in chosen))


# More in test_rules.py: one lowering serves both runtimes.
POOLS = [
    nn.MaxPool2d(3, 2, 1),
    nn.MaxPool2d(2, ceil_mode=True),
    nn.MaxPool2d(2, 1, dilation=2),
    nn.AvgPool2d(3, 2, 1),
    nn.AvgPool2d((2, 3), 3, ceil_mode=True, count_include_pad=False),
    nn.AdaptiveAvgPool2d((2, 7)),
]
ACTIVATIONS = [
    nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.ELU(), nn.SELU(), nn.CELU(0.5), nn.GELU(),
    nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.Tanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.ReLU6(),
    nn.PReLU(), nn.Mish(), nn.Softplus(), nn.Softmax(1), nn.LogSoftmax(1), nn.Dropout(0.0),
]  # fmt: skip
NORMS = [
    nn.GroupNorm(2, 4),
    nn.GroupNorm(2, 4, affine=False),
    nn.LayerNorm([4, 8, 7]),
    nn.LayerNorm(7, elementwise_affine=False),
    nn.RMSNorm(7),
    nn.InstanceNorm2d(4, affine=True),
    nn.BatchNorm2d(4),
    nn.BatchNorm2d(4, affine=False),
    nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 6, 3)),
    nn.BatchNorm2d(4, track_running_stats=False),
    nn.Sequential(nn.Flatten(), nn.Linear(224, 7), nn.BatchNorm1d(7), nn.Tanh()),
]
FUNCTIONS: dict[str, tuple[Function, nn.Module]] = {
    "residual, module used twice": (lambda a, x: torch.relu(a(torch.relu(a(x))) + x), conv(3)),
    "cat": (lambda a, x: torch.cat([a(x), x], 1), conv()),
    "stack": (lambda a, x: torch.stack([a(x), x], 1), conv(3)),
    "slice and select": (lambda a, x: a(x)[:, 1:, ::2, 0], conv()),
    "advanced index": (lambda a, x: a(x)[:, torch.tensor([0, 2, 2, -1])], conv()),
    "chunk": (gate, conv()),
    "in place": (lambda a, x: a(x).mul_(2).add_(1).relu_(), conv()),
    "powers": (lambda a, x: a(x) ** 2 + (a(x).abs() + 1).sqrt() + (a(x) + 3).log(), conv()),
    "mean": (lambda a, x: a(x).mean((2, 3)), conv()),
    "extremes": (lambda a, x: torch.cat([a(x).amax((2, 3)), a(x).mean(3).max(2)[0]], 1), conv()),
    "deviation": (lambda a, x: a(x).std((2, 3)), conv()),
    "norm": (lambda a, x: nn.functional.normalize(a(x), dim=1), conv()),
    "clamp and where": (lambda a, x: torch.where(x > 0, a(x).clamp(-0.5, 0.4), 0.0), conv(3)),
    "pad": (lambda a, x: nn.functional.pad(a(x), (1, -1, 2, 0)), conv()),
    "einsum": (lambda a, x: torch.einsum("bchw,bdhw->bcd", a(x), x), conv()),
    "cumsum and flip": (lambda a, x: a(x).cumsum(1).flip(2, 3), conv()),
    "softmax of images": (lambda a, x: a(x).softmax(1) * a(x).sigmoid(), conv()),
}


def assigned(a: Body, x: Tensor) -> Tensor:
    """Slices, steps and single planes written into a tensor."""
    made = torch.zeros(x.shape[0], 4, 9, 8)
    made[:, :, :8, :7] = a(x)
    made[:, 1:, 8] = x[:, :, 0, :1]
    made[:, ::2, 1::3, 7] += 0.5 * x[:, :2, ::3, 2]
    return made.tanh()


class Swish(torch.autograd.Function):
    """A function with a context, a constant, and two outputs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        gate = torch.sigmoid(rate * x)
        ctx.rate = rate
        ctx.save_for_backward(x, gate)
        return x * gate, gate.sum((1, 2, 3), keepdim=True)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x, gate = ctx.saved_tensors
        slope = ctx.rate * gate * (1 - gate)
        return gradients[0] * (gate + x * slope) + gradients[1] * slope, None


def own_function(a: Body, x: Tensor) -> Tensor:
    """Both outputs of a function of one's own."""
    values, total = Swish.apply(a(x), 1.5)  # type: ignore[no-untyped-call]
    found: Tensor = values + 0.01 * total
    return found


class Doubled(nn.BatchNorm2d):
    """A batch normalisation with a forward pass of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def resized(**options: Any) -> Function:
    return lambda a, x: nn.functional.interpolate(a(x), **options)


# What a trace replaces, or torch decomposes: each beside a convolution.
REPLACED: dict[str, tuple[Function, nn.Module]] = {
    "assigned": (assigned, conv()),
    "powers of two": (lambda a, x: 2 ** a(x), conv()),
    "unfold": (lambda a, x: a(x).unfold(2, 3, 2).unfold(-2, 2, 1), conv()),
    "im2col": (lambda a, x: nn.functional.unfold(a(x), 3, stride=2), conv()),
    "nearest": (resized(scale_factor=2), conv()),
    "nearest, not whole": (resized(size=(5, 11)), conv()),
    "nearest, exact": (resized(size=(5, 11), mode="nearest-exact"), conv()),
    "bilinear": (resized(scale_factor=1.7, mode="bilinear"), conv()),
    "bilinear, corners": (resized(size=(16, 3), mode="bilinear", align_corners=True), conv()),
    "bilinear, recomputed": (
        resized(scale_factor=1.7, mode="bilinear", recompute_scale_factor=True), conv(),
    ),
    "linear": (lambda a, x: nn.functional.interpolate(a(x)[:, :, 0], size=5, mode="linear"), conv()),
    "adaptive averages": (lambda a, x: nn.functional.adaptive_avg_pool2d(a(x), (3, None)), conv()),
    "adaptive maxima": (lambda a, x: nn.functional.adaptive_max_pool2d(a(x), (3, 5)), conv()),
    "adaptive, one axis": (
        lambda a, x: nn.functional.adaptive_avg_pool1d(a(x)[:, :, 0], 3)
        + nn.functional.adaptive_max_pool1d(a(x)[:, :, 1], 3),
        conv(),
    ),
    "response norm": (lambda a, x: nn.functional.local_response_norm(a(x), 3, 0.5), conv()),
    "own function": (own_function, conv()),
    "own batch norm": (lambda a, x: a(x), nn.Sequential(conv(), Doubled(4))),
}  # fmt: skip


def begun(x: Tensor, count: int) -> Tensor:
    """First states (count, B, 5) that depend on x (B, T, 8)."""
    return torch.stack([x[:, 0, at : at + 5] for at in range(count)])


def last_states(a: Body, x: Tensor) -> Tensor:
    """Those of one direction of an LSTM."""
    states = a(x.transpose(0, 1), (begun(x, 2), begun(x, 2).tanh()))[1]
    return torch.cat(list(states), 2)[0]


SEQUENCES = [
    nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
    nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True),
    # More layers, both ways, in test_recurrent.py.
    Lambda(lambda a, x: a(x)[0], nn.RNN(8, 5, bias=False, batch_first=True)),
    Lambda(
        lambda a, x: a(x.transpose(0, 1), begun(x, 2))[1].transpose(0, 1),
        nn.GRU(8, 5, bidirectional=True),
    ),
    Lambda(last_states, nn.LSTM(8, 5, bidirectional=True, bias=False)),
    Lambda(lambda a, x: a(x)[0], nn.RNN(8, 5, nonlinearity="relu", batch_first=True)),
]
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "convolutions of a few channels": lambda: convolutions(3),
    "convolutions of many": lambda: nn.Sequential(conv(12), nn.Tanh(), convolutions(12)),
    # Each input's gradient is one product over the batch.
    "convolutions of small maps": lambda: nn.Sequential(
        conv(9), nn.Tanh(), nn.AvgPool2d(2), convolutions(9)
    ),
    "depthwise and transposed convolutions": lambda: nn.Sequential(
        conv(12),
        Beside(
            nn.Sequential(nn.Conv2d(12, 24, 3, 2, 1, groups=12), nn.Conv2d(24, 5, 1)),
            nn.Sequential(
                nn.ConvTranspose2d(12, 9, 3, 2, 1, 1), nn.ConvTranspose2d(9, 6, 2, groups=3)
            ),
        ),
    ),
    "one dimension": lambda: nn.Sequential(
        nn.Flatten(2), nn.Conv1d(3, 12, 5, 2, 2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(12, 6, 3, dilation=2, bias=False), nn.AvgPool1d(2),
    ),
    "pools": lambda: Beside(*(nn.Sequential(conv(), pool, nn.Tanh()) for pool in POOLS)),
    "pools of relu": lambda: nn.Sequential(
        conv(), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4), nn.ReLU(), nn.MaxPool2d(3)
    ),
    "activations": lambda: Beside(*(nn.Sequential(conv(), layer) for layer in ACTIVATIONS)),
    "normalisations": lambda: Beside(*(nn.Sequential(conv(), norm) for norm in NORMS)),
    "functions": lambda: Beside(*(Lambda(*case) for case in FUNCTIONS.values())),
    "replaced functions": lambda: Beside(*(Lambda(*case) for case in REPLACED.values())),
}  # fmt: skip


def agrees(body: nn.Module, x: Tensor, folder: Path) -> None:
    """Add a classifier to the body and export the whole."""
    with torch.no_grad():
        width = body.eval()(x).flatten(1).shape[1]
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(width, CLASSES))
    manifest = export(model, x, batch_size=BATCH, name="case", num_classes=CLASSES, folder=folder)
    assert manifest.verification is not None
    assert manifest.verification.step_error <= manifest.verification.tolerance


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("network", NETWORKS)
def test_images(network: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    agrees(NETWORKS[network](), random(6, 3, 8, 7), tmp_path)


def test_sequences(tmp_path: Path) -> None:
    torch.manual_seed(0)
    agrees(Beside(*SEQUENCES), random(6, 2, 8), tmp_path)


def test_layer_norm_of_equal_values(tmp_path: Path) -> None:
    """A patch of one colour is 0 after it, and not the rounding of its mean, divided by sqrt(eps)."""
    torch.manual_seed(0)
    patches = nn.Unflatten(1, (2, 192))
    head = nn.Sequential(nn.Linear(192, 8), nn.LayerNorm(8), nn.Flatten())
    agrees(nn.Sequential(patches, nn.LayerNorm(192), head), random(6, 384), tmp_path)


def test_embeddings(tmp_path: Path) -> None:
    tables = [nn.Embedding(20, 8, padding_idx=padding) for padding in (None, 0)]
    words = torch.randint(20, (6, 9), generator=torch.Generator().manual_seed(1))
    bags = [nn.EmbeddingBag(20, 8, mode=mode) for mode in ("mean", "sum", "max")]
    means = [Lambda(lambda a, x: a(x).mean(1), table) for table in tables]
    agrees(Beside(*means, *bags), words, tmp_path)


def smoothed(logits: Tensor, y: Tensor) -> Tensor:
    """Cross entropy with label smoothing and class weights."""
    weights = torch.tensor([1.0, 2.0, 0.5])
    return nn.functional.cross_entropy(
        logits, y, weights, reduction="none", label_smoothing=0.1
    ) + nn.functional.multi_margin_loss(logits, y, reduction="none")


def test_bilinear_products_and_losses(tmp_path: Path) -> None:
    layer = Lambda(lambda a, x: a(x[:, :4], x[:, 4:]), nn.Bilinear(4, 3, CLASSES))
    manifest = export(
        layer, random(6, 7), batch_size=BATCH, name="b", num_classes=CLASSES, folder=tmp_path,
        loss=smoothed,
    )  # fmt: skip
    assert manifest.verification is not None
    assert manifest.verification.step_error <= manifest.verification.tolerance
