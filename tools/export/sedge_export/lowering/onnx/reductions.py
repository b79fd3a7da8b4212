"""Sums, means, extrema and norms."""

from collections.abc import Sequence

import torch

from sedge_export.lowering.onnx.graph import BOOL, INT, Graph, Scalar, Value
from sedge_export.lowering.onnx.pointwise import element_type
from sedge_export.lowering.onnx.table import lowers
from sedge_protocol.errors import ExportError

aten = torch.ops.aten


def _axes(x: Value, dim: Sequence[int] | int | None) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return given or list(range(x.rank))


@lowers(aten.sum.default)
def sum_all(graph: Graph, x: Value, dtype: torch.dtype | None = None) -> Value:
    """Return the sum of all elements."""
    return sum_dim(graph, x, None, dtype=dtype)


@lowers(aten.sum.dim_IntList)
def sum_dim(
    graph: Graph, x: Value, dim: Sequence[int] | None, keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """Return the sum over some axes. Booleans are counted in int64, as in torch."""
    kind = element_type(dtype) if dtype else INT if x.dtype == BOOL else x.dtype
    return graph.sum(graph.cast(x, kind), _axes(x, dim), keepdim)


@lowers(aten.mean.default)
def mean_all(graph: Graph, x: Value, dtype: torch.dtype | None = None) -> Value:
    """Return the mean of all elements."""
    return mean_dim(graph, x, None, dtype=dtype)


@lowers(aten.mean.dim)
def mean_dim(
    graph: Graph, x: Value, dim: Sequence[int] | None, keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """Return the mean over some axes."""
    kind = element_type(dtype) if dtype else x.dtype
    return graph.mean(graph.cast(x, kind), _axes(x, dim), keepdim)


@lowers(aten.max.default)
def max_all(graph: Graph, x: Value) -> Value:
    """Return the largest element."""
    return amax(graph, x)


@lowers(aten.min.default)
def min_all(graph: Graph, x: Value) -> Value:
    """Return the smallest element."""
    return amin(graph, x)


@lowers(aten.amax.default)
def amax(graph: Graph, x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
    """Return the largest elements over some axes."""
    return graph.reduce("ReduceMax", x, _axes(x, dim), keepdim)


@lowers(aten.any.dim)
def any_dim(graph: Graph, x: Value, dim: int, keepdim: bool = False) -> Value:
    """Return True where an element along an axis is not zero."""
    largest = amax(graph, graph.cast(graph.cast(x, BOOL), INT), [dim], keepdim)
    return graph.cast(largest, BOOL)


@lowers(aten.amin.default)
def amin(graph: Graph, x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
    """Return the smallest elements over some axes."""
    return graph.reduce("ReduceMin", x, _axes(x, dim), keepdim)


@lowers(aten.var_mean.correction)
def var_mean(
    graph: Graph, x: Value, dim: Sequence[int] | None = None, *, correction: Scalar | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """Return the variance and mean over some axes.

    Two passes keep the variance accurate for a large mean.
    """
    axes = _axes(x, dim)
    mean = graph.mean(x, axes, keep=True)
    centred = graph.sub(x, mean)
    total = graph.sum(graph.mul(centred, centred), axes, keepdim)
    count = x.size // mean.size - (1 if correction is None else correction)
    shaped = graph.reshape(mean, total.shape)
    return graph.binary("Div", total, graph.scalar(float(count))), shaped


@lowers(aten.var.correction)
def var(
    graph: Graph, x: Value, dim: Sequence[int] | None = None, *, correction: Scalar | None = None,
    keepdim: bool = False,
) -> Value:  # fmt: skip
    """Return the variance over some axes."""
    return var_mean(graph, x, dim, correction=correction, keepdim=keepdim)[0]


@lowers(aten.argmax.default)
def argmax(graph: Graph, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Return the index of the first largest element along an axis, or in the whole tensor."""
    if dim is None:
        flat = argmax(graph, graph.reshape(x, (x.size,)), 0)
        return graph.reshape(flat, (1,) * x.rank if keepdim else ())
    axis = dim % x.rank
    shape = [1 if a == axis else e for a, e in enumerate(x.shape) if keepdim or a != axis]
    return graph.op("ArgMax", x, shape=tuple(shape), dtype=INT, axis=axis, keepdims=int(keepdim))


@lowers(aten.argmin.default)
def argmin(graph: Graph, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """Return the index of the first smallest element along an axis, or in the whole tensor."""
    return argmax(graph, graph.unary("Neg", x), dim, keepdim)


@lowers(aten.min.dim)
def min_dim(graph: Graph, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Return the smallest element along an axis and the index of its first occurrence."""
    return amin(graph, x, [dim], keepdim), argmin(graph, x, dim, keepdim)


@lowers(aten.max.dim)
def max_dim(graph: Graph, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
    """Return the largest element along an axis and the index of its first occurrence."""
    return amax(graph, x, [dim], keepdim), argmax(graph, x, dim, keepdim)


@lowers(aten.cumsum.default)
def cumsum(graph: Graph, x: Value, dim: int, dtype: torch.dtype | None = None) -> Value:
    """Return running sums along an axis. Booleans are counted in int64, as in torch."""
    kind = element_type(dtype) if dtype else INT if x.dtype == BOOL else x.dtype
    source = graph.cast(x, kind)
    axis = graph.scalar(dim % x.rank, INT)
    return graph.op("CumSum", source, axis, shape=x.shape, dtype=source.dtype)


@lowers(aten.linalg_vector_norm.default)
def vector_norm(
    graph: Graph, x: Value, order: Scalar = 2, dim: Sequence[int] | None = None,
    keepdim: bool = False, dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """Return the norm of order 1 or 2 over some axes."""
    if order == 1:
        return graph.sum(graph.unary("Abs", x), _axes(x, dim), keepdim)
    if order != 2:
        raise ExportError(f"norm of order {order}, expected 1 or 2")
    return graph.unary("Sqrt", graph.sum(graph.mul(x, x), _axes(x, dim), keepdim))
