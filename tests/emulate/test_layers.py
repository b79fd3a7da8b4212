"""Each layer's two passes against autograd, in both precisions."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from sedge_emulate.training import graph
from sedge_emulate.training.layers import (
    DirectConvolution,
    Explicit,
    FlattenLayer,
    HalvingPool,
    LinearLayer,
    MaxPool,
    MinimalConvolution,
    Parameter,
    ReluLayer,
)

SETTINGS = graph.Convolution("w", "b", (1, 1), (1, 1), (1, 1), 1)
STRIDED = graph.Convolution("w", "b", (2, 1), (0, 2), (1, 2), 2)
POOL = graph.Pool((3, 2), (2, 2), (1, 0), (1, 1), True)
HALVING = graph.Pool((2, 2), (2, 2), (0, 0), (1, 1), False)


def parameter(value: Tensor, kind: torch.dtype) -> Parameter:
    """As it is stored, with a gradient that somebody must overwrite."""
    stored = value.detach().contiguous()
    return Parameter(stored.to(kind), torch.full(stored.shape, float("nan")))


def pair(numbers: tuple[int, ...]) -> tuple[int, int]:
    first, second = numbers
    return first, second


def passes(layer: Explicit, x: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    with torch.no_grad():
        return layer.forward(x), layer.backward(gradient, True)


def close(found: Tensor | None, wanted: Tensor | None, kind: torch.dtype) -> None:
    assert found is not None
    assert wanted is not None
    error = (found.float() - wanted).norm() / wanted.norm()
    assert float(error) < (2e-2 if kind is torch.bfloat16 else 3e-6)


@pytest.mark.parametrize(
    ("settings", "minimal", "kind"),
    [
        (SETTINGS, False, torch.float32),
        (STRIDED, False, torch.float32),
        (SETTINGS, False, torch.bfloat16),
        (STRIDED, False, torch.bfloat16),
        (SETTINGS, True, torch.float32),
    ],
)
def test_convolutions(settings: graph.Convolution, minimal: bool, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    s = settings
    module = nn.Conv2d(4, 6, 3, groups=s.groups)
    module.stride, module.padding, module.dilation = map(pair, (s.stride, s.padding, s.dilation))
    assert module.bias is not None
    x = torch.randn(3, 4, 9, 8, requires_grad=True)
    wanted = module(x)
    gradient = torch.randn(wanted.shape)
    torch.autograd.backward(wanted, gradient)
    axes = (2, 0, 3, 1) if minimal else (0, 2, 3, 1)
    filters, bias = (
        parameter(module.weight.permute(axes), kind), parameter(module.bias, kind)
    )  # fmt: skip
    make = MinimalConvolution if minimal else DirectConvolution
    last = torch.channels_last
    x_last = x.detach().to(kind).contiguous(memory_format=last)
    g_last = gradient.to(kind).contiguous(memory_format=last)
    output, back = passes(make(settings, filters, bias), x_last, g_last)
    close(output, wanted.detach(), kind)
    close(back, x.grad, kind)
    assert module.weight.grad is not None
    close(filters.gradient, module.weight.grad.permute(axes), kind)
    close(bias.gradient, module.bias.grad, kind)
    with torch.no_grad():
        layer = make(settings, filters, None)
        layer.forward(x_last)
        assert layer.backward(g_last, False) is None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_linear(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Linear(12, 5)
    x = torch.randn(7, 12, requires_grad=True)
    gradient = torch.randn(7, 5)
    wanted = module(x)
    torch.autograd.backward(wanted, gradient)
    # Stored as behind images of (2, 3) pixels and 2 channels; flat it is the same matrix.
    weight = parameter(module.weight.view(5, 2, 3, 2), kind)
    bias = parameter(module.bias, kind)
    output, back = passes(LinearLayer(weight, bias), x.detach().to(kind), gradient.to(kind))
    close(output, wanted.detach(), kind)
    close(back, x.grad, kind)
    assert module.weight.grad is not None
    close(weight.gradient.flatten(1), module.weight.grad, kind)
    close(bias.gradient, module.bias.grad, kind)
    bare = LinearLayer(weight, None)
    with torch.no_grad():
        close(bare.forward(x.detach().to(kind)), (wanted - module.bias).detach(), kind)
        assert bare.backward(gradient.to(kind), False) is None


def pooled(x: Tensor) -> Tensor:
    return torch.max_pool2d(x, POOL.kernel, POOL.stride, POOL.padding, 1, True)


def flat(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).flatten(1)


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda: MaxPool(POOL), pooled),
        (HalvingPool, partial(torch.max_pool2d, kernel_size=2)),
        (ReluLayer, torch.relu),
        (FlattenLayer, flat),
    ],
)  # fmt: skip
def test_layers_without_parameters(
    make: Callable[[], Explicit], function: Callable[[Tensor], Tensor]
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, 7, 6).round().contiguous(memory_format=torch.channels_last)
    x.requires_grad_()
    wanted = function(x)
    gradient = torch.randn(wanted.shape)
    torch.autograd.backward(wanted, gradient)
    if gradient.ndim == 4:
        gradient = gradient.contiguous(memory_format=torch.channels_last)
    layer = make()
    output, back = passes(layer, x.detach().clone(memory_format=torch.preserve_format), gradient)
    assert torch.equal(output, wanted)
    assert back is not None
    assert x.grad is not None
    assert torch.equal(back, x.grad)
    assert layer.backward(gradient, False) is None


@pytest.mark.parametrize("make", [lambda: MaxPool(HALVING), HalvingPool])
def test_the_first_of_equal_elements_counts(make: Callable[[], Explicit]) -> None:
    _, back = passes(make(), torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 1, 1))
    assert back is not None
    assert back.flatten().tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sides", [(6, 8), (7, 6), (5, 7)])
def test_both_pools_of_squares_are_one(sides: tuple[int, int], kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, *sides).mul(2).round().to(kind)  # many are equal
    x = x.contiguous(memory_format=torch.channels_last)
    gradient = torch.randn(3, 4, sides[0] // 2, sides[1] // 2).to(kind)
    found = passes(HalvingPool(), x, gradient)
    wanted = passes(MaxPool(HALVING), x, gradient.contiguous(memory_format=torch.channels_last))
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine is not None
        assert theirs is not None
        assert torch.equal(mine, theirs)
        assert mine.is_contiguous(memory_format=torch.channels_last)


def test_flat_inputs_stay() -> None:
    layer = FlattenLayer()
    x = torch.arange(12.0).view(2, 3, 2)
    assert torch.equal(layer.forward(x), x.flatten(1))
    back = layer.backward(torch.ones(2, 6), True)
    assert back is not None
    assert back.shape == x.shape
