"""Reads from and writes to indexed positions.

Every write is a scatter along one axis. ``put`` moves that axis to the front, where ScatterND copies
whole slices, and back again.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from sedge_export.lowering.onnx.graph import FLOAT, INT, Graph, Scalar, Value
from sedge_export.lowering.onnx.table import lowers
from sedge_protocol.errors import ExportError

aten = torch.ops.aten


def put(
    graph: Graph, x: Value, axis: int, places: Value, source: Value, reduction: str = "none"
) -> Value:
    """Return x with slices of ``source`` written, or added, at the positions ``places`` (P,) along an axis.

    ``source`` has extent P along that axis.
    """
    front = [axis, *(a for a in range(x.rank) if a != axis)]
    back = [front.index(a) for a in range(x.rank)]
    moved, slices = graph.transpose(x, front), graph.transpose(source, front)
    index = graph.reshape(places, (places.size, 1))
    written = graph.op(
        "ScatterND", moved, index, slices, shape=moved.shape, dtype=x.dtype, reduction=reduction
    )
    return graph.transpose(written, back)


@lowers(aten.slice_scatter.default)
def slice_scatter(
    graph: Graph, x: Value, source: Value, dim: int = 0, start: int | None = None,
    end: int | None = None, step: int = 1,
) -> Value:  # fmt: skip
    """Return x with x[start:end:step] along an axis replaced by source."""
    axis = dim % x.rank
    extent = x.shape[axis]
    bounds = range(extent)[start:end:step]
    if step != 1:
        return put(graph, x, axis, graph.constant(np.array(bounds, np.int64)), source)
    parts = [  # plain copies: the part before, source, and the part after
        graph.slice(x, [axis], [(0, bounds.start, 1)]) if bounds.start > 0 else None,
        source,
        graph.slice(x, [axis], [(bounds.stop, extent, 1)]) if bounds.stop < extent else None,
    ]
    return graph.concat([part for part in parts if part is not None], axis)


@lowers(aten.select_scatter.default)
def select_scatter(graph: Graph, x: Value, source: Value, dim: int, index: int) -> Value:
    """Return x with x[index] along an axis replaced by source."""
    axis = dim % x.rank
    place = index % x.shape[axis]
    row = graph.reshape(source, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
    return slice_scatter(graph, x, row, axis, place, place + 1)


@lowers(aten.gather.default)
def gather(graph: Graph, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    """Pick elements of x by ``index`` along an axis."""
    return graph.op("GatherElements", x, index, shape=index.shape, dtype=x.dtype, axis=dim)


@lowers(aten.scatter.value)
def scatter_value(graph: Graph, x: Value, dim: int, index: Value, value: Scalar) -> Value:
    """Return x with one number at the indexed positions."""
    return scatter(graph, x, dim, index, graph.full(index.shape, value, x.dtype))


@lowers(aten.scatter.src)
def scatter(
    graph: Graph, x: Value, dim: int, index: Value, source: Value, reduction: str = "none"
) -> Value:
    """Return x with source's elements at the indexed positions."""
    part = graph.slice(source, range(index.rank), [(0, extent, 1) for extent in index.shape])
    return graph.op(
        "ScatterElements", x, index, part,
        shape=x.shape, dtype=x.dtype, axis=dim, reduction=reduction,
    )  # fmt: skip


@lowers(aten.scatter_add.default)
def scatter_add(graph: Graph, x: Value, dim: int, index: Value, source: Value) -> Value:
    """Return x plus source's elements at the indexed positions."""
    return scatter(graph, x, dim, index, source, "add")


@lowers(aten.index_select.default)
def index_select(graph: Graph, x: Value, dim: int, index: Value) -> Value:
    """Return the indexed slices of x along an axis."""
    axis = dim % x.rank
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    return graph.op("Gather", x, index, shape=shape, dtype=x.dtype, axis=axis)


@lowers(aten.embedding.default)
def embedding(
    graph: Graph, weight: Value, indices: Value, padding_idx: int = -1,
    scale_grad_by_freq: bool = False, sparse: bool = False,
) -> Value:  # fmt: skip
    """Return the indexed rows of weight."""
    return index_select(graph, weight, 0, indices)


@lowers(aten.embedding_dense_backward.default)
def embedding_backward(
    graph: Graph, grad: Value, indices: Value, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Value:  # fmt: skip
    """Return the sum of grad's rows for each index (num_weights, ...); the padding row gets 0."""
    if scale_grad_by_freq:
        raise ExportError("scale_grad_by_freq=True")
    width = grad.shape[-1]
    rows = graph.reshape(grad, (indices.size, width))
    if padding_idx >= 0:
        padding = graph.compare("Equal", indices, graph.scalar(padding_idx, INT))
        counted = graph.cast(graph.unary("Not", padding), FLOAT)
        rows = graph.mul(rows, graph.reshape(counted, (indices.size, 1)))
    return put(graph, graph.full((num_weights, width), 0.0), 0, indices, rows, "add")


@lowers(aten.index.Tensor, aten._unsafe_index.Tensor)
def index(graph: Graph, x: Value, indices: Sequence[Value | None]) -> Value:
    """Return x[i, j, ...] with index tensors on neighbouring axes, which are merged into one axis."""
    axis, places, merged = _merged(graph, x.shape, indices)
    rows = graph.reshape(x, merged)
    taken = index_select(graph, rows, axis, graph.reshape(places, (places.size,)))
    after = x.shape[axis + sum(i is not None for i in indices) :]
    return graph.reshape(taken, (*x.shape[:axis], *places.shape, *after))


@lowers(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    graph: Graph, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    """Return x with values written to, or added at, x[i, j, ...]."""
    axis, places, merged = _merged(graph, x.shape, indices)
    after = merged[axis + 1 :]
    spread = graph.expand(values, (*x.shape[:axis], *places.shape, *after))
    slices = graph.reshape(spread, (*x.shape[:axis], places.size, *after))
    rows, flat = graph.reshape(x, merged), graph.reshape(places, (places.size,))
    written = put(graph, rows, axis, flat, slices, "add" if accumulate else "none")
    return graph.reshape(written, x.shape)


def _merged(
    graph: Graph, shape: tuple[int, ...], indices: Sequence[Value | None]
) -> tuple[int, Value, tuple[int, ...]]:
    """Merge the indexed axes. Returns the first of them, the merged index, and the new shape of x."""
    given = {axis: value for axis, value in enumerate(indices) if value is not None}
    axis, count = min(given), len(given)
    if list(given) != list(range(axis, axis + count)) or any(
        v.dtype != INT for v in given.values()
    ):
        raise ExportError("indices that are boolean or not on neighbouring axes")
    places: Value | None = None
    for a, value in given.items():
        # Negative indices count from the end.
        extent = graph.scalar(shape[a], INT)
        below = graph.cast(graph.compare("Less", value, graph.scalar(0, INT)), INT)
        counted = graph.add(value, graph.mul(below, extent))
        places = counted if places is None else graph.add(graph.mul(places, extent), counted)
    assert places is not None
    merged = math.prod(shape[axis : axis + count])
    return axis, places, (*shape[:axis], merged, *shape[axis + count :])
