"""One rule per ATen operator: its effect on streams of channels.

A rule's arguments are named as in the operator's schema, but ``self`` and ``input`` become ``x``. Tensors
among them are passed as labels. The rule ties the dimensions that must have the same channels, and
returns the labels of each result. An operator without a rule, or with arguments that its rule does not
handle, fixes every stream it meets. That is always correct; these channels just cannot be left out.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch
from torch._ops import OpOverload

from sedge_export.widths.streams import Dim, Streams, extent_of, resolved


class Labels(tuple[Dim, ...]):
    """The labels of a tensor: the streams in each of its dimensions."""

    @classmethod
    def plain(cls, shape: Iterable[int]) -> "Labels":
        """Return the labels of a tensor whose dimensions are not streams."""
        return cls(resolved((extent,)) for extent in shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(extent_of(dim) for dim in self)


Rule: TypeAlias = Callable[..., list[Labels]]
Function = TypeVar("Function", bound=Rule)

aten = torch.ops.aten
RULES: dict[OpOverload, Rule] = {}


@dataclass(frozen=True)
class TracedOp:
    """One operator in the traced graph: its name, the model's streams, and the shapes of its results."""

    name: str
    streams: Streams
    shapes: Sequence[tuple[int, ...]]

    @property
    def why(self) -> str:
        """The reason to report if this operator fixes a stream."""
        return f"must stay for {self.name}"

    def fix(self, *dims: Dim) -> None:
        """Fix all streams in the dimensions."""
        for dim in dims:
            self.streams.fix(dim, self.why)

    def tie(self, first: Dim, second: Dim) -> Dim:
        """Unify two dimensions. Returns the result."""
        return self.streams.tie(first, second, self.why)


def labelled(step: TracedOp, operator: OpOverload, arguments: dict[str, Any]) -> list[Labels]:
    """Return the labels of each result of an operator, given its arguments by name."""
    rule = RULES.get(operator) or (_side_by_side if broadcasts(operator) else None)
    results = rule(step, **arguments) if rule else []
    if [labels.shape for labels in results] == list(step.shapes):
        return results
    for labels in _tensors(arguments.values()):
        step.fix(*labels)
    return [Labels.plain(shape) for shape in step.shapes]


def broadcasts(operator: object) -> bool:
    """Return True if an operator is element-wise and broadcasts its arguments."""
    return isinstance(operator, OpOverload) and torch.Tag.pointwise in operator.tags


def _tensors(arguments: Iterable[object]) -> list[Labels]:
    """Return the labels among the arguments, including those in lists."""
    found: list[Labels] = []
    for argument in arguments:
        if isinstance(argument, Labels):
            found.append(argument)
        elif isinstance(argument, list | tuple):
            found += _tensors(argument)
    return found


def _rule(*operators: OpOverload) -> Callable[[Function], Function]:
    def enter(function: Function) -> Function:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return enter


# Element-wise operators.


@_rule(
    aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default, aten._to_copy.default,
    aten._softmax.default, aten._log_softmax.default, aten.cumsum.default, aten.full_like.default,
)  # fmt: skip
def _side_by_side(step: TracedOp, /, **arguments: object) -> list[Labels]:
    """Broadcast tensors against each other, aligned at their last dimensions."""
    given = _tensors(arguments.values())
    found: list[Dim] = []
    for back in range(len(step.shapes[0]), 0, -1):
        wide = [g[-back] for g in given if len(g) >= back and extent_of(g[-back]) > 1]
        dim: Dim = wide[0] if wide else ()
        for other in wide[1:]:
            dim = step.tie(dim, other)
        found.append(dim)
    return [Labels(found)]


# Layers.


@_rule(aten.convolution.default)
def _convolution(
    step: TracedOp, /, *, x: Labels, weight: Labels, bias: Labels | None, transposed: bool, groups: int,
    **_: object,
) -> list[Labels]:  # fmt: skip
    step.fix(*x[2:])
    for kernel in weight[2:]:
        step.streams.fix(kernel, "")
    channels = extent_of(x[1])
    if groups == 1:
        ins, outs = (weight[0], weight[1]) if transposed else (weight[1], weight[0])
        step.tie(x[1], ins)
    elif groups == channels and not transposed:  # depthwise: each channel is separate
        outs = step.tie(weight[0], resolved((*x[1], extent_of(weight[0]) // channels)))
    else:
        return []
    if bias is not None:
        step.tie(outs, bias[0])
    return [Labels((x[0], outs, *Labels.plain(step.shapes[0][2:])))]


@_rule(aten._native_batch_norm_legit_functional.default, aten.native_batch_norm.default)
def _batch_norm(
    step: TracedOp, /, *, x: Labels, weight: Labels | None, bias: Labels | None,
    running_mean: Labels | None, running_var: Labels | None, **_: object,
) -> list[Labels]:  # fmt: skip
    for vector in (weight, bias, running_mean, running_var):
        if vector is not None:
            step.tie(x[1], vector[0])
    return [x, *(Labels.plain(shape) for shape in step.shapes[1:])]


@_rule(aten.native_group_norm.default)
def _group_norm(
    step: TracedOp, /, *, x: Labels, weight: Labels | None, bias: Labels | None, **_: object
) -> list[Labels]:
    if weight is None:  # without a weight, the module cannot be narrowed
        return []
    step.tie(x[1], weight[0])
    if bias is not None:
        step.tie(x[1], bias[0])
    return [x, *(Labels.plain(shape) for shape in step.shapes[1:])]


@_rule(aten.native_layer_norm.default)
def _layer_norm(
    step: TracedOp, /, *, x: Labels, normalized_shape: Sequence[int], weight: Labels | None,
    bias: Labels | None, **_: object,
) -> list[Labels]:  # fmt: skip
    last = x[-len(normalized_shape) :]
    if weight is None:
        step.fix(*last)
    for vector in (weight, bias):
        for mine, its in zip(last, vector or (), strict=False):
            step.tie(mine, its)
    return [x, *(Labels.plain(shape) for shape in step.shapes[1:])]


@_rule(aten.embedding.default)
def _embedding(step: TracedOp, /, *, weight: Labels, indices: Labels, **_: object) -> list[Labels]:
    step.fix(weight[0])
    return [Labels((*indices, weight[1]))]


@_rule(
    aten.max_pool2d_with_indices.default, aten.avg_pool2d.default, aten._adaptive_avg_pool2d.default
)
def _pool(step: TracedOp, /, *, x: Labels, **_: object) -> list[Labels]:
    step.fix(*x[-2:])
    return [Labels((*x[:-2], *Labels.plain(shape[-2:]))) for shape in step.shapes]


# Products.


@_rule(aten.mm.default)
def _mm(step: TracedOp, /, *, x: Labels, mat2: Labels) -> list[Labels]:
    step.tie(x[1], mat2[0])
    return [Labels((x[0], mat2[1]))]


@_rule(aten.addmm.default)
def _addmm(
    step: TracedOp, /, *, x: Labels, mat1: Labels, mat2: Labels, **_: object
) -> list[Labels]:
    return _side_by_side(step, product=_mm(step, x=mat1, mat2=mat2)[0], added=x)


@_rule(aten.bmm.default)
def _bmm(step: TracedOp, /, *, x: Labels, mat2: Labels) -> list[Labels]:
    step.tie(x[2], mat2[1])
    return [Labels((step.tie(x[0], mat2[0]), x[1], mat2[2]))]


# Reductions.


@_rule(
    aten.sum.default, aten.sum.dim_IntList, aten.mean.default, aten.mean.dim, aten.amax.default,
    aten.amin.default, aten.any.dim, aten.argmax.default, aten.max.dim, aten.var.correction,
    aten.var_mean.correction, aten.linalg_vector_norm.default,
)  # fmt: skip
def _reduction(
    step: TracedOp, /, *, x: Labels, dim: int | Sequence[int] | None = None, **_: object
) -> list[Labels]:
    listed = [dim] if isinstance(dim, int) else dim or range(len(x))
    over = {d % len(x) for d in listed}
    kept = [d for number, d in enumerate(x) if number not in over]
    ones: list[Dim] = [() if number in over else d for number, d in enumerate(x)]
    return [Labels(ones if len(shape) == len(x) else kept) for shape in step.shapes]


# Shapes.


@_rule(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def _view(step: TracedOp, /, *, x: Labels, **_: object) -> list[Labels]:
    return [Labels(step.streams.regroup(x, step.shapes[0], step.why))]


@_rule(aten.permute.default)
def _permute(step: TracedOp, /, *, x: Labels, dims: Sequence[int]) -> list[Labels]:
    return [Labels(x[d] for d in dims)]


@_rule(aten.transpose.int)
def _transpose(step: TracedOp, /, *, x: Labels, dim0: int, dim1: int) -> list[Labels]:
    turned = list(x)
    turned[dim0], turned[dim1] = x[dim1], x[dim0]
    return [Labels(turned)]


@_rule(aten.t.default)
def _t(step: TracedOp, /, *, x: Labels) -> list[Labels]:
    return [Labels(x[::-1])]


@_rule(aten.expand.default)
def _expand(step: TracedOp, /, *, x: Labels, **_: object) -> list[Labels]:
    wide = Labels.plain(step.shapes[0])
    padded = ((),) * (len(wide) - len(x)) + x
    return [Labels(p or w for p, w in zip(padded, wide, strict=True))]


@_rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(
    step: TracedOp, /, *, x: Labels, dim: int | Sequence[int] | None = None
) -> list[Labels]:
    listed = [dim] if isinstance(dim, int) else range(len(x)) if dim is None else dim
    gone = {d % len(x) for d in listed if not x[d]}
    return [Labels(d for number, d in enumerate(x) if number not in gone)]


@_rule(aten.unsqueeze.default)
def _unsqueeze(step: TracedOp, /, *, x: Labels, dim: int) -> list[Labels]:
    axis = dim % (len(x) + 1)
    return [Labels((*x[:axis], (), *x[axis:]))]


@_rule(aten.repeat.default)
def _repeat(step: TracedOp, /, *, x: Labels, repeats: Sequence[int]) -> list[Labels]:
    padded = ((),) * (len(repeats) - len(x)) + x
    return [Labels(resolved((times, *dim)) for times, dim in zip(repeats, padded, strict=True))]


# Parts of a tensor: a dimension that is cut cannot be narrowed, but the others can.


def _cut(step: TracedOp, x: Labels, *dims: int) -> list[Labels]:
    cut = {d % len(x) for d in dims}
    step.fix(*(x[d] for d in cut))
    return [
        Labels(
            resolved((extent,)) if number in cut else dim
            for number, (dim, extent) in enumerate(zip(x, shape, strict=True))
        )
        for shape in step.shapes
    ]


@_rule(aten.slice.Tensor, aten.split_with_sizes.default, aten.index_select.default)
def _slice(step: TracedOp, /, *, x: Labels, dim: int = 0, **_: object) -> list[Labels]:
    return _cut(step, x, dim)


@_rule(aten.select.int)
def _select(step: TracedOp, /, *, x: Labels, dim: int, **_: object) -> list[Labels]:
    step.fix(x[dim])
    axis = dim % len(x)
    return [Labels((*x[:axis], *x[axis + 1 :]))]


@_rule(aten.flip.default)
def _flip(step: TracedOp, /, *, x: Labels, dims: Sequence[int]) -> list[Labels]:
    return _cut(step, x, *dims)


@_rule(aten.constant_pad_nd.default)
def _pad(step: TracedOp, /, *, x: Labels, pad: Sequence[int], **_: object) -> list[Labels]:
    return _cut(step, x, *(-1 - number // 2 for number, margin in enumerate(pad) if margin))


@_rule(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(step: TracedOp, /, *, x: Labels, indices: Sequence[Labels | None]) -> list[Labels]:
    """Keep the dimensions before the first indexed one, and fix that one and all after it."""
    indexed = [number for number, index in enumerate(indices) if index is not None]
    first = indexed[0]
    if indexed != list(
        range(first, first + len(indexed))
    ):  # torch would move the indexed dimensions to the front
        return []
    step.fix(*x[first:])
    return [Labels((*x[:first], *Labels.plain(step.shapes[0][first:])))]


@_rule(aten.cat.default)
def _cat(step: TracedOp, /, *, tensors: Sequence[Labels], dim: int = 0) -> list[Labels]:
    first = tensors[0]
    axis = dim % len(first)
    for other in tensors[1:]:
        for number in set(range(len(first))) - {axis}:
            step.tie(first[number], other[number])
    for labels in tensors:
        step.fix(labels[axis])
    return _cut(step, first, axis)
