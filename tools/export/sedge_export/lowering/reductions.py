"""Sums, means, extremes and indexing."""

from collections.abc import Sequence

import torch
from sedge_protocol.errors import ExportError

from sedge_export.graph import BOOL, FLOAT, INT, Graph, Scalar, Value
from sedge_export.lowering.pointwise import element_type
from sedge_export.lowering.table import lowers

aten = torch.ops.aten


def _axes(x: Value, dim: Sequence[int] | int | None) -> list[int]:
    given = [dim] if isinstance(dim, int) else list(dim or ())
    return given or list(range(x.rank))


@lowers(aten.sum.default)
def sum_all(graph: Graph, x: Value, dtype: torch.dtype | None = None) -> Value:
    """The sum of all elements."""
    return sum_dim(graph, x, None, dtype=dtype)


@lowers(aten.sum.dim_IntList)
def sum_dim(
    graph: Graph, x: Value, dim: Sequence[int] | None, keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """The sum over some axes; booleans are counted as torch does, in int64."""
    kind = element_type(dtype) if dtype else INT if x.dtype == BOOL else x.dtype
    return graph.sum(graph.cast(x, kind), _axes(x, dim), keepdim)


@lowers(aten.mean.default)
def mean_all(graph: Graph, x: Value, dtype: torch.dtype | None = None) -> Value:
    """The mean of all elements."""
    return mean_dim(graph, x, None, dtype=dtype)


@lowers(aten.mean.dim)
def mean_dim(
    graph: Graph, x: Value, dim: Sequence[int] | None, keepdim: bool = False,
    dtype: torch.dtype | None = None,
) -> Value:  # fmt: skip
    """The mean over some axes."""
    kind = element_type(dtype) if dtype else x.dtype
    return graph.mean(graph.cast(x, kind), _axes(x, dim), keepdim)


@lowers(aten.amax.default)
def amax(graph: Graph, x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
    """The largest over some axes."""
    return graph.reduce("ReduceMax", x, _axes(x, dim), keepdim)


@lowers(aten.amin.default)
def amin(graph: Graph, x: Value, dim: Sequence[int] = (), keepdim: bool = False) -> Value:
    """The smallest over some axes."""
    return graph.reduce("ReduceMin", x, _axes(x, dim), keepdim)


@lowers(aten.var_mean.correction)
def var_mean(
    graph: Graph, x: Value, dim: Sequence[int] | None = None, *, correction: Scalar | None = None,
    keepdim: bool = False,
) -> tuple[Value, Value]:  # fmt: skip
    """Variance (two passes, so that a large mean costs no digits) and mean over some axes."""
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
    """Variance over some axes."""
    return var_mean(graph, x, dim, correction=correction, keepdim=keepdim)[0]


@lowers(aten.argmax.default)
def argmax(graph: Graph, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
    """The place of the first largest element along an axis."""
    if dim is None:
        raise ExportError("argmax over all elements, expected one axis")
    axis = dim % x.rank
    shape = [1 if a == axis else e for a, e in enumerate(x.shape) if keepdim or a != axis]
    return graph.op("ArgMax", x, shape=tuple(shape), dtype=INT, axis=axis, keepdims=int(keepdim))


@lowers(aten.gather.default)
def gather(graph: Graph, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """x[index] element by element along an axis."""
    return graph.op("GatherElements", x, index, shape=index.shape, dtype=x.dtype, axis=dim)


@lowers(aten.scatter.value)
def scatter_value(graph: Graph, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    """x with one number at the indexed places."""
    return scatter(graph, x, dim, index, graph.full(index.shape, value, x.dtype))


@lowers(aten.scatter.src)
def scatter(graph: Graph, x: Value, dim: int, index: Value, source: Value) -> Value:
    """x with source's elements at the indexed places."""
    part = graph.slice(source, range(index.rank), [(0, extent, 1) for extent in index.shape])
    return graph.op("ScatterElements", x, index, part, shape=x.shape, dtype=x.dtype, axis=dim)


@lowers(aten.scatter_add.default)
def scatter_add(graph: Graph, x: Value, dim: int, index: Value, source: Value) -> Value:
    """x plus source's elements at the indexed places."""
    part = graph.slice(source, range(index.rank), [(0, extent, 1) for extent in index.shape])
    return graph.op(
        "ScatterElements", x, index, part, shape=x.shape, dtype=x.dtype, axis=dim, reduction="add"
    )


@lowers(aten.index_select.default)
def index_select(graph: Graph, x: Value, dim: int, index: Value) -> Value:
    """The indexed slices of x along an axis."""
    axis = dim % x.rank
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return graph.op("Gather", x, index, shape=shape, dtype=x.dtype, axis=axis)


@lowers(aten.embedding.default)
def embedding(
    graph: Graph, weight: Value, indices: Value, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Value:  # fmt: skip
    """The indexed rows of weight."""
    return index_select(graph, weight, 0, indices)


@lowers(aten.embedding_dense_backward.default)
def embedding_backward(
    graph: Graph, grad: Value, indices: Value, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:  # fmt: skip
    """The rows of grad added up at their indices; the padding row learns nothing."""
    if scale_grad_by_freq:
        raise ExportError("scale_grad_by_freq=True")
    width = grad.shape[-1]
    rows = graph.reshape(grad, (indices.size, width))
    if padding_idx >= 0:
        padding = graph.compare("Equal", indices, graph.scalar(padding_idx, INT))
        counted = graph.cast(graph.unary("Not", padding), FLOAT)
        rows = graph.mul(rows, graph.reshape(counted, (indices.size, 1)))
    places = graph.reshape(indices, (indices.size, 1))
    zeros = graph.full((num_weights, width), 0.0)
    return graph.op("ScatterND", zeros, places, rows, shape=zeros.shape, reduction="add")
