"""The rules of ExecuTorch programs against torch's own operators, in float64 and without any compiler."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor
from torch._ops import OpOverload

from sedge_export.lowering.executorch import convolution
from sedge_export.lowering.executorch import normalization as channels_last
from sedge_export.lowering.executorch.loops import short_loop
from sedge_export.lowering.executorch.pointwise import (
    empty,
    gelu,
    new_empty,
    remainder,
    threshold_backward,
)
from sedge_export.lowering.executorch.products import addmm, mm, vector_norm
from sedge_export.lowering.onnx import normalization as channels_first
from sedge_export.lowering.rules import pooling, sorting, strided
from sedge_export.lowering.rules.normalization import Normalization
from sedge_export.lowering.rules.table import RULES
from sedge_export.lowering.rules.weight_norm import weight_norm_backward
from sedge_export.recurrent.loop import LOOP
from sedge_protocol.errors import ExportError

torch.set_num_threads(1)

aten = torch.ops.aten
Setting: TypeAlias = dict[str, Any]


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def same(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            mine, theirs = mine.contiguous(), theirs.contiguous()
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], Setting]] = [
    ((2, 3, 7, 8), (4, 3, 3, 3), {}),
    ((2, 9, 7, 8), (4, 9, 3, 3), {"padding": [1, 1]}),
    ((2, 9, 8, 9), (4, 9, 3, 2), {"stride": [2, 3], "padding": [1, 0]}),
    ((2, 2, 9, 9), (4, 2, 2, 2), {"stride": [3, 3]}),  # rows that are not read
    ((2, 9, 9, 9), (4, 9, 3, 3), {"dilation": [2, 1], "padding": [2, 1], "stride": [1, 2]}),
    ((2, 9, 7, 7), (4, 9, 1, 1), {}),
    ((2, 9, 7, 7), (4, 9, 1, 1), {"stride": [2, 2]}),
    ((2, 9, 7, 7), (4, 9, 3, 3), {"stride": [1, 3], "dilation": [3, 3], "padding": [3, 4]}),
    ((2, 12, 7, 7), (6, 4, 3, 3), {"groups": 3, "stride": [2, 2], "padding": [1, 1]}),
    ((2, 12, 7, 7), (24, 1, 3, 3), {"groups": 12, "padding": [1, 1]}),
    ((2, 6, 7, 7), (6, 1, 3, 3), {"groups": 6}),
    ((2, 3, 11), (4, 3, 5), {"stride": [2], "padding": [2]}),
    ((2, 8, 5, 6, 4), (4, 8, 3, 2, 2), {"stride": [2, 1, 2], "padding": [1, 0, 1]}),
    ((2, 9, 5, 5), (9, 4, 3, 3), {"transposed": True, "stride": [2, 2], "padding": [1, 1],
                                 "output_padding": [1, 0]}),
    ((2, 4, 5, 5), (4, 3, 2, 2), {"transposed": True, "groups": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "weights", "setting"), CONVOLUTIONS, ids=str)
def test_convolution(shape: tuple[int, ...], weights: tuple[int, ...], setting: Setting) -> None:
    rank = len(shape) - 2
    defaults: Setting = {
        "stride": [1] * rank, "padding": [0] * rank, "dilation": [1] * rank,
        "transposed": False, "output_padding": [0] * rank, "groups": 1,
    }  # fmt: skip
    options = [*(defaults | setting).values()]
    x, weight = random(*shape), random(*weights, seed=1)
    outputs = weights[1] * options[-1] if options[3] else weights[0]
    bias = random(outputs, seed=2)
    expected = aten.convolution(x, weight, bias, *options)
    same([convolution.convolution(x, weight, bias, *options)], [expected])
    grad = random(*expected.shape, seed=3)
    for mask in ([True, True, True], [False, True, False]):
        arguments: list[Any] = [grad, x, weight, [outputs], *options, mask]
        same(convolution.convolution_backward(*arguments), aten.convolution_backward(*arguments))


POOLS: list[Setting] = [
    {"kernel_size": [2]},
    {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1]},
    {"kernel_size": [3, 3], "stride": [1, 1]},
    {"kernel_size": [2, 2], "stride": [3, 3]},
    {"kernel_size": [2, 3], "stride": [1, 2], "dilation": [2, 1]},
    {"kernel_size": [2, 2], "ceil_mode": True},
    {"kernel_size": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True},
    {"kernel_size": [1, 2]},
    {"kernel_size": [5, 5], "stride": [2, 2]},
]


@pytest.mark.parametrize("setting", POOLS, ids=str)
@pytest.mark.parametrize("values", [3, 1000])
def test_max_pool_and_its_ties(setting: Setting, values: int) -> None:
    """Of few values most are ties, and the first largest of a window gets its gradient, exactly."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-values, values, (2, 3, 9, 8), generator=generator).double()
    expected, indices = aten.max_pool2d_with_indices(x, **setting)
    same([pooling.max_pool(x, **setting)[0]], [expected])
    grad = torch.randint(-9, 9, expected.shape, generator=generator).double()
    defaults: Setting = {"stride": [], "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False}
    options = {"kernel_size": setting["kernel_size"]} | defaults | setting
    backward: list[Any] = [grad, x, *options.values(), indices]
    found = pooling.max_pool_backward(*backward)
    assert torch.equal(found, aten.max_pool2d_with_indices_backward(*backward))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil_mode", "with_margin", "divisor"),
    [
        ([2], [], [0], False, True, None),
        ([3, 3], [2, 2], [1, 1], False, True, None),
        ([3, 3], [2, 2], [1, 1], False, False, None),
        ([2, 3], [1, 3], [0, 1], False, False, None),
        ([3, 3], [2, 2], [1, 1], True, True, None),
        ([3, 3], [2, 3], [1, 0], True, False, None),
        ([2, 2], [3, 3], [0, 0], True, True, 5),
    ],
)
def test_average_pool(
    kernel: list[int], stride: list[int], padding: list[int], ceil_mode: bool, with_margin: bool,
    divisor: int | None,
) -> None:  # fmt: skip
    x = random(2, 3, 9, 8)
    options = (kernel, stride, padding, ceil_mode, with_margin, divisor)
    expected = aten.avg_pool2d(x, *options)
    same([pooling.avg_pool(x, *options)], [expected])
    backward = (random(*expected.shape, seed=1), x, *options)
    same([pooling.avg_pool_backward(*backward)], [aten.avg_pool2d_backward(*backward)])


def test_adaptive_average_pool() -> None:
    x, grad = random(2, 3, 8, 6), random(2, 3, 4, 3)
    same([pooling.adaptive_avg_pool(x, [4, 3])], [aten._adaptive_avg_pool2d(x, [4, 3])])
    expected = aten._adaptive_avg_pool2d_backward(grad, x)
    same([pooling.adaptive_avg_pool_backward(grad, x)], [expected])
    with pytest.raises(ExportError, match="whose windows overlap"):
        pooling.adaptive_avg_pool(random(1, 1, 5, 5), [2, 2])


KINDS = {"last": channels_last.NORMALIZATION, "first": channels_first.NORMALIZATION}
ORDERS = pytest.mark.parametrize("normalization", KINDS.values(), ids=KINDS)


@ORDERS
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (6, 3)])
def test_batch_norm(
    affine: bool, training: bool, shape: tuple[int, ...], normalization: Normalization
) -> None:
    x = 3 * random(*shape) + 1
    weight, bias = (random(3, seed=1), random(3, seed=2)) if affine else (None, None)
    mean, variance = random(3, seed=3), random(3, seed=4).abs() + 0.5
    options = (x, weight, bias, mean, variance, training, 0.3, 1e-5)
    expected = aten._native_batch_norm_legit_functional(*options)
    found = normalization.batch_norm(*options)
    same(found, expected)
    grad, mask = random(*shape, seed=5), [True, affine, affine]
    backward: list[Any] = [grad, x, weight, mean, variance, *found[1:3], training, 1e-5, mask]
    wanted = aten.native_batch_norm_backward(*backward)
    same(normalization.batch_norm_backward(*backward)[: 1 + 2 * affine], wanted[: 1 + 2 * affine])


@ORDERS
def test_instance_norm(normalization: Normalization) -> None:
    x, weight, bias = random(1, 6, 5, 2), random(6, seed=1), random(6, seed=2)
    options = (x, weight, bias, None, None, True, 0.1, 1e-5)
    same(normalization.instance_norm(*options), aten.native_batch_norm(*options))
    with pytest.raises(ExportError, match="running statistics outside"):
        normalization.instance_norm(x, None, None, random(6), random(6), True, 0.1, 1e-5)


@ORDERS
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_group_norm(affine: bool, groups: int, normalization: Normalization) -> None:
    x = 3 * random(2, 6, 4, 3) + 1
    weight, bias = (random(6, seed=1), random(6, seed=2)) if affine else (None, None)
    forward = normalization.group_norm(x, weight, bias, 2, 6, 12, groups, 1e-5)
    same(forward, aten.native_group_norm(x, weight, bias, 2, 6, 12, groups, 1e-5))
    grad, mask = random(*x.shape, seed=3), [True, affine, affine]
    backward = (grad, x, forward[1], forward[2], weight, 2, 6, 12, groups, mask)
    wanted = aten.native_group_norm_backward(*backward)
    same(normalization.group_norm_backward(*backward)[: 1 + 2 * affine], wanted[: 1 + 2 * affine])


def test_products() -> None:
    x, y, bias = random(3, 4), random(4, 5, seed=1), random(5, seed=2)
    same([mm(x, y)], [x @ y])
    same([addmm(bias, x, y, 2, 0.5)], [aten.addmm(bias, x, y, beta=2, alpha=0.5)])


@pytest.mark.parametrize("reverse", [False, True])
def test_loops(reverse: bool) -> None:
    a, first, weights = random(5, 2, 3), random(2, 3, seed=1), random(3, 3, seed=2)
    arguments = ("rnn_tanh", [first], [a], [weights], reverse)
    same(short_loop(*arguments), LOOP(*arguments))
    with pytest.raises(ExportError, match=r"33 steps of rnn_tanh, expected at most 32: .*onnxrun"):
        short_loop("rnn_tanh", [first], [random(33, 2, 3)], [weights], reverse)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(("dim", "keep"), [(None, False), ([1], True)])
def test_vector_norm(order: int, dim: list[int] | None, keep: bool) -> None:
    x = random(3, 4)
    same([vector_norm(x, order, dim, keep)], [aten.linalg_vector_norm(x, order, dim, keep)])
    with pytest.raises(ExportError, match="norm of order 3"):
        vector_norm(x, 3)


@pytest.mark.parametrize("threshold", [0, 0.5])
def test_threshold_backward(threshold: float) -> None:
    smallest = torch.finfo(torch.float32).tiny
    x = torch.tensor([-math.inf, -1.0, -smallest, 0.0, smallest, 0.5, 0.75, 1e38])
    grad = torch.arange(1.0, 9.0)
    expected = aten.threshold_backward(grad, x, threshold)
    assert torch.equal(threshold_backward(grad, x, threshold), expected)


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu(form: str) -> None:
    x = random(50)
    found = gelu(x, form)
    if isinstance(found, Tensor):
        same([found], [aten.gelu(x, approximate=form)])
    assert isinstance(found, Tensor) == (form == "tanh"), "the exact one has a kernel"


@pytest.mark.parametrize("y", [3, -3])
def test_remainders(y: int) -> None:
    x = torch.arange(-7, 8)
    same([remainder(x, y)], [torch.remainder(x, y)])
    same([remainder(x / 2, y)], [torch.remainder(x / 2, y)])


def test_empty_memory_is_zero() -> None:
    assert torch.equal(empty((2, 3), (1, 0), torch.int64), torch.zeros(2, 3, dtype=torch.int64))
    assert torch.equal(new_empty(random(2), (2, 3), (3, 1)), random(2).new_zeros(2, 3))


@pytest.mark.parametrize("descending", [False, True])
def test_sorting_keeps_the_order_of_equals(descending: bool) -> None:
    x = torch.randint(5, (2, 9, 3), generator=torch.Generator().manual_seed(0)).double()
    values, places = torch.sort(x, dim=1, descending=descending, stable=True)
    same(sorting.sort(x, 1, descending, stable=True), [values, places])
    same(sorting.topk(x, 4, 1, descending), [values[:, :4], places[:, :4]])
    ascending = torch.sort(x, dim=1, stable=True)
    same(sorting.kth_value(x, 3, 1), [each[:, 2] for each in ascending])
    same(sorting.median(x, 1, True), [each[:, 4:5] for each in ascending])
    with pytest.raises(ExportError, match="sorts 5000 elements in each of 2 rows, expected at"):
        sorting.sort(random(2, 5000))


@pytest.mark.parametrize(
    "view",
    [
        ((2, 3), (20, 1), 21),  # a slice of some axes
        ((2, 2, 5), (20, 10, 2), None),  # with steps
        ((3, 4), (7, 2), 1),  # none of any axes
    ],
)
def test_views_of_memory(view: tuple[tuple[int, ...], tuple[int, ...], int | None]) -> None:
    x, source = random(3, 2, 10), random(*view[0], seed=1)
    same([strided.as_strided(x, *view)], [aten.as_strided(x, *view)])
    expected = aten.as_strided_scatter(x, source, *view)
    same([strided.as_strided_scatter(x, source, *view)], [expected])


@pytest.mark.parametrize("dim", [0, 2])
def test_weight_norm(dim: int) -> None:
    v, g = random(4, 3, 5), random(*[(4, 1, 1), (1, 1, 5)][dim // 2], seed=1)
    _, norms = aten._weight_norm_interface(v, g, dim)
    grad = random(4, 3, 5, seed=2)
    expected = aten._weight_norm_interface_backward(grad, v, g, norms, dim)
    same(weight_norm_backward(grad, v, g, norms, dim), expected)


def test_every_rule_has_a_test_here() -> None:
    """The table is complete: a new rule has to be named here, beside its test."""
    tested: set[OpOverload] = {
        aten.convolution.default, aten.convolution_backward.default,
        aten.max_pool2d_with_indices.default, aten.max_pool2d_with_indices_backward.default,
        aten.avg_pool2d.default, aten.avg_pool2d_backward.default,
        aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool2d_backward.default,
        aten._native_batch_norm_legit_functional.default, aten.native_batch_norm.default,
        aten.native_batch_norm_backward.default, aten.native_group_norm.default,
        aten.native_group_norm_backward.default, aten.mm.default, aten.addmm.default,
        aten.threshold_backward.default, aten.gelu.default, aten.linalg_vector_norm.default,
        aten.empty_permuted.default, aten.new_empty_strided.default,
        aten.remainder.Scalar, aten.remainder.Tensor, aten.topk.default,
        aten.sort.default, aten.sort.stable, aten.kthvalue.default,
        aten.median.dim, aten.as_strided.default, aten.as_strided_scatter.default,
        aten.view.default, aten._unsafe_view.default, LOOP,
        aten._weight_norm_interface_backward.default,
    }  # fmt: skip
    assert set(RULES) == tested
