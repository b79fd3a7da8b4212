"""Every operator that programs are promised to have: exported, run in onnxruntime, equal to eager torch.

``export`` itself compares gradients, a step, an epoch, evaluation and prediction with autograd and
raises when one differs, so a case passes when it exports.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import torch
from torch import Tensor, nn

from sedge_export import export

torch.set_num_threads(1)

Body: TypeAlias = Callable[[Tensor], Tensor]
Function: TypeAlias = Callable[[Body, Tensor], Tensor]

BATCH, CLASSES = 5, 3


class Lambda(nn.Module):
    """A function of a submodule and the input."""

    def __init__(self, function: Function, body: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """function(body, x)."""
        return self.function(self.body, x)


def gate(a: Body, x: Tensor) -> Tensor:
    """Half of the channels gate the others."""
    values, gates = a(x).chunk(2, 1)
    return values * torch.sigmoid(gates)


def conv(outputs: int = 4, inputs: int = 3) -> nn.Module:
    """A convolution that keeps height and width."""
    return nn.Conv2d(inputs, outputs, 3, padding=1)


CONVOLUTIONS = {
    "plain": {"kernel_size": 3},
    "no bias": {"kernel_size": 3, "bias": False},
    "stride": {"kernel_size": 3, "stride": 2},
    "padding": {"kernel_size": 3, "padding": 1},
    "stride and padding": {"kernel_size": 3, "stride": 2, "padding": 1},
    "unread rows": {"kernel_size": 2, "stride": 3},
    "dilation": {"kernel_size": 3, "dilation": 2, "padding": 2},
    "uneven": {"kernel_size": (3, 2), "stride": (3, 2), "dilation": (1, 2), "padding": (2, 0)},
    "one by one": {"kernel_size": 1, "stride": 2},
    "same": {"kernel_size": 3, "padding": "same"},
    "reflect": {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
    "groups": {"kernel_size": 3, "groups": 3, "stride": 2, "padding": 1},
}
MAX_POOLS = {
    "2": {"kernel_size": 2},
    "3 stride 2 padding 1": {"kernel_size": 3, "stride": 2, "padding": 1},
    "3 stride 1": {"kernel_size": 3, "stride": 1},
    "2 stride 3": {"kernel_size": 2, "stride": 3},
    "ceil": {"kernel_size": 2, "ceil_mode": True},
    "1 by 2": {"kernel_size": (1, 2)},
    "dilation": {"kernel_size": 2, "dilation": 2, "stride": 1},
    "5": {"kernel_size": 5, "stride": 2},
}
AVERAGE_POOLS = {
    "2": {"kernel_size": 2},
    "3 stride 2 padding 1": {"kernel_size": 3, "stride": 2, "padding": 1},
    "margin not counted": {
        "kernel_size": 3,
        "stride": 2,
        "padding": 1,
        "count_include_pad": False,
    },
}
ACTIVATIONS = [
    nn.ReLU(inplace=True),
    nn.LeakyReLU(0.2),
    nn.ELU(),
    nn.SELU(),
    nn.CELU(0.5),
    nn.GELU(),
    nn.GELU("tanh"),
    nn.SiLU(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Hardswish(),
    nn.Hardsigmoid(),
    nn.ReLU6(),
    nn.PReLU(),
    nn.Mish(),
    nn.Softplus(),
    nn.Softmax(1),
    nn.LogSoftmax(1),
    nn.Dropout(0.0),
]
NORMS = {
    "group": nn.GroupNorm(2, 4),
    "group, not affine": nn.GroupNorm(2, 4, affine=False),
    "layer": nn.LayerNorm([4, 8, 7]),
    "layer, not affine": nn.LayerNorm(7, elementwise_affine=False),
    "rms": nn.RMSNorm(7),
    "instance": nn.InstanceNorm2d(4, affine=True),
    "batch": nn.BatchNorm2d(4),
    "batch, not affine": nn.BatchNorm2d(4, affine=False),
}
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
SEQUENCES = {
    "attention": nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
    "attention, norm first": nn.TransformerEncoderLayer(
        8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    ),
    "gru": Lambda(lambda a, x: a(x)[0][:, -1], nn.GRU(8, 5, batch_first=True)),
    "lstm": Lambda(lambda a, x: a(x)[0], nn.LSTM(8, 5, batch_first=True)),
}


def agrees(body: nn.Module, x: Tensor, folder: Path) -> None:
    """Add a classifier to the body and export the whole."""
    torch.manual_seed(0)
    with torch.no_grad():
        width = body.eval()(x).flatten(1).shape[1]
    model = nn.Sequential(body, nn.Flatten(), nn.Linear(width, CLASSES))
    manifest = export(model, x, batch_size=BATCH, name="case", num_classes=CLASSES, folder=folder)
    assert manifest.verification.step_error <= manifest.verification.tolerance


def images() -> Tensor:
    """Six small random images of three channels."""
    return torch.randn(6, 3, 8, 7, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("inputs", [3, 12])  # either form of the weight gradient
def test_convolution(case: str, inputs: int, tmp_path: Path) -> None:
    layer = nn.Conv2d(inputs, 6, **CONVOLUTIONS[case])  # type: ignore[arg-type]
    first = nn.Sequential(conv(12), nn.Tanh()) if inputs == 12 else nn.Identity()
    agrees(nn.Sequential(first, layer), images(), tmp_path)


def test_depthwise_convolution(tmp_path: Path) -> None:
    depthwise = nn.Conv2d(12, 24, 3, groups=12, padding=1, stride=2)
    agrees(nn.Sequential(conv(12), depthwise, nn.Conv2d(24, 5, 1)), images(), tmp_path)


def test_transposed_convolution(tmp_path: Path) -> None:
    up = nn.ConvTranspose2d(12, 9, 3, stride=2, padding=1, output_padding=1)
    agrees(nn.Sequential(conv(12), up, nn.ConvTranspose2d(9, 6, 2, groups=3)), images(), tmp_path)


def test_one_dimension(tmp_path: Path) -> None:
    body = nn.Sequential(
        nn.Conv1d(3, 12, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(12, 6, 3, dilation=2, bias=False),
        nn.AvgPool1d(2),
    )
    agrees(body, images().flatten(2), tmp_path)


@pytest.mark.parametrize("case", MAX_POOLS)
def test_max_pool(case: str, tmp_path: Path) -> None:
    pool = nn.MaxPool2d(**MAX_POOLS[case])  # type: ignore[arg-type]
    agrees(nn.Sequential(conv(), pool, nn.Tanh()), images(), tmp_path)


def test_max_pool_of_relu(tmp_path: Path) -> None:
    body = nn.Sequential(conv(), nn.ReLU(), nn.MaxPool2d(2), conv(4, 4), nn.ReLU(), nn.MaxPool2d(3))
    agrees(body, images(), tmp_path)


@pytest.mark.parametrize("case", AVERAGE_POOLS)
def test_average_pool(case: str, tmp_path: Path) -> None:
    pool = nn.AvgPool2d(**AVERAGE_POOLS[case])  # type: ignore[arg-type]
    agrees(nn.Sequential(conv(), pool), images(), tmp_path)


@pytest.mark.parametrize("size", [1, (2, 7)])
def test_adaptive_average_pool(size: int | tuple[int, int], tmp_path: Path) -> None:
    agrees(nn.Sequential(conv(), nn.AdaptiveAvgPool2d(size)), images(), tmp_path)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=repr)
def test_activation(activation: nn.Module, tmp_path: Path) -> None:
    agrees(nn.Sequential(conv(), activation), images(), tmp_path)


@pytest.mark.parametrize("case", NORMS)
def test_normalisation(case: str, tmp_path: Path) -> None:
    agrees(nn.Sequential(conv(), NORMS[case]), images(), tmp_path)


def test_batch_norm_of_vectors(tmp_path: Path) -> None:
    body = nn.Sequential(nn.Flatten(), nn.Linear(168, 7), nn.BatchNorm1d(7), nn.Tanh())
    agrees(body, images(), tmp_path)


@pytest.mark.parametrize("case", FUNCTIONS)
def test_function(case: str, tmp_path: Path) -> None:
    agrees(Lambda(*FUNCTIONS[case]), images(), tmp_path)


@pytest.mark.parametrize("case", SEQUENCES)
def test_sequence(case: str, tmp_path: Path) -> None:
    x = torch.randn(6, 4, 8, generator=torch.Generator().manual_seed(1))
    agrees(SEQUENCES[case], x, tmp_path)


@pytest.mark.parametrize("padding_idx", [None, 0])
def test_embedding(padding_idx: int | None, tmp_path: Path) -> None:
    table = nn.Embedding(20, 8, padding_idx=padding_idx)
    words = torch.randint(20, (6, 9), generator=torch.Generator().manual_seed(1))
    agrees(Lambda(lambda a, x: a(x).mean(1), table), words, tmp_path)
