"""What each operator does to channels, on a model of one function between two convolutions.

The tensors are ``first`` (6 outputs of 3 channels), ``second`` (which reads what the function gives), and
those of the function itself. Axis 0, where there is one, is that of the 6 channels.
"""

from collections.abc import Callable

import pytest
import torch
from tests.export.layers import Body, Function, Lambda
from torch import Tensor, nn
from torch.nn import functional

from sedge_edge.backends.rows import REGRESSION
from sedge_export.subject.network import Network
from sedge_export.widths.axes import FoundAxes, find_axes
from sedge_protocol.axes import FIXED

torch.set_num_threads(1)


IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Sandwich(nn.Module):
    """first (6 channels) - function(body, x) - mean over positions - second."""

    def __init__(self, function: Function, body: nn.Module) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.body = body
        self.function = function
        given = function(self.body, torch.zeros(4, 6, 8, 8))
        self.second = nn.Linear(given.flatten(2).shape[1], 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.function(self.body, self.first(x))
        output: Tensor = self.second(x.flatten(2).mean(2))
        return output


class Scale(nn.Module):
    """A parameter of the user's own."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


def axes_of(model: nn.Module, x: Tensor) -> tuple[dict[str, tuple[int, ...]], FoundAxes]:
    """The axis of each dimension, by name of the tensor, kernels left out."""
    network = Network(model, REGRESSION)
    found = find_axes(network, x)
    found.axes.check(network.layout)
    names = [tensor.name for tensor in network.layout.tensors]
    return {name: dims[:2] for name, dims in zip(names, found.axes.dims, strict=True)}, found


def plain(a: Body, x: Tensor) -> Tensor:
    """The body alone."""
    return a(x)


def constant(_a: Body, x: Tensor) -> Tensor:
    """A width of its own in the forward pass."""
    return x * torch.linspace(0, 1, 6)[:, None, None]


def conv(inputs: int = 6, outputs: int = 6, groups: int = 1) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1, groups=groups, bias=False)


NONE = nn.Identity()
# What leaves the channels as they are: first and second are joined by axis 0.
KEPT: dict[str, tuple[Function, nn.Module]] = {
    "relu": (lambda a, x: torch.relu(x), NONE),
    "in place": (lambda a, x: x.mul_(2).add_(1).relu_(), NONE),
    "gelu": (lambda a, x: functional.gelu(x), NONE),
    "hardswish": (lambda a, x: functional.hardswish(x), NONE),
    "clamp and where": (lambda a, x: torch.where(x > 0, x.clamp(-1, 1), 0.0), NONE),
    "softmax": (lambda a, x: x.softmax(1) + x.log_softmax(1), NONE),
    "cumsum": (lambda a, x: x.cumsum(1), NONE),
    "max pool": (plain, nn.MaxPool2d(3, 2, 1)),
    "average pool": (plain, nn.AvgPool2d(2)),
    "adaptive pool": (plain, nn.AdaptiveAvgPool2d(1)),
    "global mean": (lambda a, x: x.mean((2, 3), keepdim=True), NONE),
    "mean of all, subtracted": (lambda a, x: x - x.mean() + x.sum(1, keepdim=True), NONE),
    "extremes": (lambda a, x: x.amax((2, 3)).unsqueeze(2) + x.max(2)[0], NONE),
    "deviation": (lambda a, x: x / x.std((1, 2, 3), keepdim=True), NONE),
    "vector norm": (lambda a, x: functional.normalize(x, dim=1), NONE),
    "residual": (lambda a, x: torch.relu(x + a(x)), conv()),
    "module used twice": (lambda a, x: a(a(x)), conv()),
    "batch norm": (plain, nn.BatchNorm2d(6)),
    "batch norm, not affine": (plain, nn.BatchNorm2d(6, affine=False)),
    "instance norm": (plain, nn.InstanceNorm2d(6, affine=True)),
    "group norm": (plain, nn.GroupNorm(3, 6)),
    "layer norm of images": (plain, nn.LayerNorm([6, 8, 8])),
    "layer norm of positions": (plain, nn.LayerNorm([8], elementwise_affine=False)),
    "own scale": (plain, Scale(6, 1, 1)),
    "prelu": (plain, nn.PReLU(6)),
    "depthwise": (plain, conv(groups=6)),
    "pad": (lambda a, x: functional.pad(x, (1, 2, 0, -1)), NONE),
    "reflect": (lambda a, x: functional.pad(x, (1, 1, 1, 1), mode="reflect"), NONE),
    "slice of positions": (lambda a, x: x[:, :, 1:, ::2], NONE),
    "one position": (lambda a, x: x[:, :, 0], NONE),
    "flip of positions": (lambda a, x: x.flip(2, 3), NONE),
    "chunks of positions": (lambda a, x: x.chunk(2, 3)[1], NONE),
    "joined positions": (lambda a, x: torch.cat([x, x.sin()], 2), NONE),
    "there and back": (lambda a, x: x.permute(2, 3, 0, 1).permute(2, 3, 0, 1), NONE),
    "last and back": (lambda a, x: x.transpose(1, -1).transpose(-1, 1), NONE),
    "flat and back": (lambda a, x: x.flatten(1).view(4, 6, 8, 8), NONE),
    "flat residual": (lambda a, x: (x.flatten(1) + a(x).flatten(1)).view(4, 6, 8, 8), conv()),
    "flat rows": (lambda a, x: x.movedim(1, 3).reshape(-1, 6).view(4, 64, 6).mT, NONE),
    "squeezed": (lambda a, x: x[:, :, :1].squeeze(2).unsqueeze(-1), NONE),
    "expanded": (lambda a, x: x.mean(3, keepdim=True).expand(-1, -1, -1, 5), NONE),
    "expanded channels": (lambda a, x: x * x.mean(1, keepdim=True).expand_as(x), NONE),
    "positions repeated": (lambda a, x: x.repeat(1, 1, 2, 1), NONE),
    "batched product": (lambda a, x: torch.bmm(x.flatten(2), x.flatten(2).mT @ x.flatten(2)), NONE),
}
# What no channel comes through: first and second are fixed, where they meet it.
FIXED_BY: dict[str, tuple[Function, nn.Module, str]] = {
    "cat": (lambda a, x: torch.cat([x, x], 1), NONE, "aten.cat"),
    "slice": (lambda a, x: x[:, 1:], NONE, "aten.slice"),
    "select": (lambda a, x: x[:, 0:1] + x[:, 2].unsqueeze(1), NONE, "aten.s"),
    "advanced index": (lambda a, x: x[:, torch.tensor([0, 2, 4])], NONE, "aten.index"),
    "chunk": (lambda a, x: x.chunk(2, 1)[0], NONE, "aten.s"),
    "flip": (lambda a, x: x.flip(1), NONE, "aten.flip"),
    "roll": (lambda a, x: x.roll(1, 1), NONE, "aten."),
    "pad": (lambda a, x: functional.pad(x, (0, 0, 0, 0, 1, 1)), NONE, "aten.constant_pad_nd"),
    "channel shuffle": (plain, nn.ChannelShuffle(2), "aten."),
    "no boundary kept": (lambda a, x: x.view(6, 256).view(4, 6, 8, 8), NONE, "aten.view"),
    "pixel shuffle": (
        lambda a, x: functional.pixel_shuffle(x[:, :4], 2), NONE, "aten.",
    ),
    "groups": (plain, conv(groups=2), "aten.convolution"),
    "constant": (constant, NONE, "aten.mul"),
    "channels last in flattening": (
        lambda a, x: a(x.movedim(1, 3).flatten(1)).view(4, 1, 5), nn.Linear(384, 5), "behind another",
    ),
    "group norm, not affine": (plain, nn.GroupNorm(3, 6, affine=False), "aten.native_group_norm"),
    "layer norm, not affine": (
        plain, nn.LayerNorm([6, 8, 8], elementwise_affine=False), "aten.native_layer_norm",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", KEPT)
def test_channels_come_through(case: str) -> None:
    dims, found = axes_of(Sandwich(*KEPT[case]), IMAGES)
    assert dims["first.weight"] == (0, FIXED), found.reasons
    assert dims["second.weight"] == (FIXED, 0)
    assert found.axes.channels == (6,)
    for name, axes in dims.items():
        if name.startswith("body."):
            assert 0 in axes, name


@pytest.mark.parametrize("case", FIXED_BY)
def test_channels_are_fixed(case: str) -> None:
    function, body, reason = FIXED_BY[case]
    dims, found = axes_of(Sandwich(function, body), IMAGES)
    assert dims["first.weight"] == (FIXED, FIXED)
    assert any("'first.weight'" in why and reason in why for why in found.reasons), found.reasons


F = FIXED
Dims = tuple[tuple[int, ...], ...]
FLAT = nn.Flatten()
# Whole models: the axis of each dimension, tensor by tensor, kernels left out, and each axis' channels.
MODELS: dict[str, tuple[Callable[[], nn.Module], Dims, tuple[int, ...]]] = {
    "flattened": (
        lambda: nn.Sequential(conv(3, 4), nn.ReLU(), FLAT, nn.Linear(256, 5), nn.Linear(5, 3)),
        ((0, F), (1, 0), (1,), (F, 1), (F,)), (4, 5),
    ),
    "depthwise, three filters for each": (
        lambda: nn.Sequential(
            conv(3, 4), conv(4, 12, 4), nn.GroupNorm(4, 12), FLAT, nn.Linear(768, 3)
        ),
        ((0, F), (0, F), (0,), (0,), (F, 0), (F,)), (4,),
    ),
    "depthwise on the input": (
        lambda: nn.Sequential(conv(3, 3, 3), FLAT, nn.Linear(192, 5), nn.Linear(5, 3)),
        ((F, F), (0, F), (0,), (F, 0), (F,)), (5,),
    ),
    "transposed convolution": (
        lambda: nn.Sequential(conv(3, 4), nn.ConvTranspose2d(4, 5, 2, 2), FLAT, nn.Linear(1280, 3)),
        ((0, F), (0, 1), (1,), (F, 1), (F,)), (4, 5),
    ),
    "transposed convolution of groups": (
        lambda: nn.Sequential(
            conv(3, 4), nn.ConvTranspose2d(4, 4, 2, 2, groups=4), FLAT, nn.Linear(1024, 3)
        ),
        ((F, F), (F, F), (F,), (F, F), (F,)), (),
    ),
    "vectors": (
        lambda: nn.Sequential(
            FLAT, nn.Linear(192, 6), nn.BatchNorm1d(6), nn.Linear(6, 5), nn.RMSNorm(5), nn.Linear(5, 3)
        ),
        # The second layer's are weight, bias, mean and variance.
        ((0, F), (0,), (0,), (0,), (0,), (0,), (1, 0), (1,), (1,), (F, 1), (F,)), (6, 5),
    ),
    "signals": (
        lambda: nn.Sequential(
            nn.Flatten(2), nn.Conv1d(3, 6, 3, 2), nn.AvgPool1d(2), nn.MaxPool1d(3), FLAT, nn.Linear(30, 3)
        ),
        ((0, F), (0,), (F, 0), (F,)), (6,),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_model(case: str) -> None:
    build, expected, channels = MODELS[case]
    dims, found = axes_of(build(), IMAGES)
    assert tuple(dims.values()) == expected, (dims, found.reasons)
    assert found.axes.channels == channels


def test_words() -> None:
    """An embedding's width, a layer inside a transformer, and the widths of attention, which stay."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    head = nn.Sequential(nn.Flatten(), nn.Linear(72, 3))
    words = torch.randint(20, (4, 9), generator=torch.Generator().manual_seed(0))
    dims, found = axes_of(nn.Sequential(nn.Embedding(20, 8), layer, *head), words)
    assert {name: axes for name, axes in dims.items() if set(axes) != {F}} == {
        "1.linear1.weight": (0, F),
        "1.linear1.bias": (0,),
        "1.linear2.weight": (F, 0),
    }
    assert any("MultiheadAttention" in why for why in found.reasons)
    mean = Lambda(lambda a, x: a(x).mean(1), nn.Embedding(20, 8))
    dims, found = axes_of(nn.Sequential(mean, nn.Linear(8, 3)), words)
    assert dims == {"0.body.weight": (F, 0), "1.weight": (F, 0), "1.bias": (F,)}


@pytest.mark.parametrize("layer", [nn.LSTM(8, 5, batch_first=True), nn.GRU(8, 5, batch_first=True)])
def test_recurrent_layers_have_one_width(layer: nn.Module) -> None:
    sandwich = Sandwich(lambda a, x: a(x[:, 0])[0].mT.unsqueeze(2), layer)
    dims, found = axes_of(sandwich, IMAGES)
    assert all(set(axes) == {F} for name, axes in dims.items() if name.startswith("body"))
    assert any(f"belongs to a {type(layer).__name__}" in why for why in found.reasons)


def test_what_is_not_used_is_fixed() -> None:
    model = Sandwich(lambda a, x: x, conv())
    dims, found = axes_of(model, IMAGES)
    assert dims["body.weight"] == (F, F)
    assert "dimension 0 of 'body.weight' is not used" in found.reasons


def test_tied_layers_have_one_width() -> None:
    """A matrix that is used both ways round ties what it reads to what it gives."""
    inner = nn.Linear(6, 6, bias=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 6), inner, nn.Tanh(), inner, nn.Linear(6, 3))
    dims, _ = axes_of(model, IMAGES)
    assert dims["1.weight"] == (0, F)
    assert dims["2.weight"] == (0, 0)
    assert dims["5.weight"] == (F, 0)
