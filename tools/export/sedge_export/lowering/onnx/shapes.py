"""Operators that move, split, join and create tensors."""

import math
from collections.abc import Sequence

import numpy as np
import torch

from sedge_export.lowering.onnx.graph import FLOAT, INT, Graph, Scalar, Value
from sedge_export.lowering.onnx.pointwise import element_type, kind_of
from sedge_export.lowering.onnx.table import lowers

aten = torch.ops.aten
END = 2**63 - 1


@lowers(aten.view.default, aten._unsafe_view.default, aten.reshape.default)
def view(graph: Graph, x: Value, size: Sequence[int]) -> Value:
    """Return x with another shape, in which one extent may be -1."""
    known = math.prod(extent for extent in size if extent != -1)
    return graph.reshape(x, tuple(x.size // known if e == -1 else e for e in size))


@lowers(aten.permute.default)
def permute(graph: Graph, x: Value, dims: Sequence[int]) -> Value:
    """Return x with its axes in another order."""
    return graph.transpose(x, [dim % x.rank for dim in dims])


@lowers(aten.transpose.int)
def transpose(graph: Graph, x: Value, dim0: int, dim1: int) -> Value:
    """Return x with two axes swapped."""
    order = list(range(x.rank))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return graph.transpose(x, order)


@lowers(aten.t.default)
def matrix_transpose(graph: Graph, x: Value) -> Value:
    """Return the transpose of a matrix; a vector is returned unchanged."""
    return graph.transpose(x, list(range(x.rank))[::-1])


@lowers(aten.expand.default)
def expand(graph: Graph, x: Value, size: Sequence[int], implicit: bool = False) -> Value:
    """Return x broadcast to a shape; -1 keeps an extent."""
    own = (1,) * (len(size) - x.rank) + x.shape
    return graph.expand(x, tuple(b if a == -1 else a for a, b in zip(size, own, strict=True)))


@lowers(aten.squeeze.dims, aten.squeeze.dim)
def squeeze(graph: Graph, x: Value, dim: Sequence[int] | int) -> Value:
    """Return x without the given axes, except those whose extent is not 1."""
    gone = {axis % x.rank for axis in ([dim] if isinstance(dim, int) else dim)}
    kept = [e for axis, e in enumerate(x.shape) if axis not in gone or e != 1]
    return graph.reshape(x, tuple(kept))


@lowers(aten.squeeze.default)
def squeeze_all(graph: Graph, x: Value) -> Value:
    """Return x without any axes of extent 1."""
    return graph.reshape(x, tuple(extent for extent in x.shape if extent != 1))


@lowers(aten.unsqueeze.default)
def unsqueeze(graph: Graph, x: Value, dim: int) -> Value:
    """Return x with a new axis of extent 1."""
    place = dim % (x.rank + 1)
    return graph.reshape(x, (*x.shape[:place], 1, *x.shape[place:]))


@lowers(aten.cat.default)
def cat(graph: Graph, tensors: Sequence[Value], dim: int = 0) -> Value:
    """Concatenate the tensors. As in torch, empty vectors are skipped."""
    parts = [tensor for tensor in tensors if tensor.shape != (0,)]
    return graph.concat(parts, dim % parts[0].rank)


@lowers(aten.split_with_sizes.default)
def split(graph: Graph, x: Value, sizes: Sequence[int], dim: int = 0) -> tuple[Value, ...]:
    """Split x into parts with the given extents."""
    return graph.split(x, sizes, dim % x.rank)


@lowers(aten.slice.Tensor)
def slice_tensor(
    graph: Graph,
    x: Value,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Value:
    """Return x[start:end:step] along an axis."""
    axis = dim % x.rank
    bounds = range(x.shape[axis])[start:end:step]
    return graph.slice(x, [axis], [(bounds.start, bounds.stop, step)])


@lowers(aten.select.int)
def select(graph: Graph, x: Value, dim: int, index: int) -> Value:
    """Return x[index] along an axis, and remove that axis."""
    axis = dim % x.rank
    place = index % x.shape[axis]
    part = graph.slice(x, [axis], [(place, place + 1, 1)])
    return graph.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


@lowers(aten.constant_pad_nd.default)
def constant_pad(graph: Graph, x: Value, pad: Sequence[int], value: Scalar = 0) -> Value:
    """Return x padded with a constant. ``pad`` begins with the last axis; negative margins crop."""
    before, after = [0] * x.rank, [0] * x.rank
    for place in range(len(pad) // 2):
        before[-1 - place], after[-1 - place] = pad[2 * place], pad[2 * place + 1]
    grown = graph.pad(x, [max(b, 0) for b in before], [max(a, 0) for a in after], value)
    ranges = [
        (max(-b, 0), e - max(-a, 0), 1) for b, e, a in zip(before, grown.shape, after, strict=True)
    ]
    return graph.slice(grown, range(x.rank), ranges)


@lowers(aten.flip.default)
def flip(graph: Graph, x: Value, dims: Sequence[int]) -> Value:
    """Return x reversed along some axes."""
    axes = [dim % x.rank for dim in dims]
    ends = tuple(graph.ints([value] * len(axes)) for value in (-1, -END))
    steps = graph.ints([-1] * len(axes))
    return graph.op("Slice", x, *ends, graph.ints(axes), steps, shape=x.shape, dtype=x.dtype)


@lowers(aten.full.default)
def full(
    graph: Graph,
    size: Sequence[int],
    fill: Scalar,
    dtype: torch.dtype | None = None,
    **_placement: object,
) -> Value:
    """Return a tensor filled with one number."""
    kind = element_type(dtype) if dtype else kind_of(fill)
    return graph.full(tuple(size), fill, kind)


@lowers(aten.empty_permuted.default, aten.empty.memory_format)
def empty(
    graph: Graph, size: Sequence[int], *_order: Sequence[int], dtype: torch.dtype | None = None,
    **_placement: object,
) -> Value:  # fmt: skip
    """Return zeros instead of uninitialised memory. Decompositions use only the shape."""
    return graph.full(tuple(size), 0, element_type(dtype or torch.float32))


@lowers(aten.new_empty_strided.default)
def new_empty(
    graph: Graph, x: Value, size: Sequence[int], _stride: Sequence[int],
    dtype: torch.dtype | None = None, **_placement: object,
) -> Value:  # fmt: skip
    """Return zeros of the type of x instead of uninitialised memory. Every element is overwritten later."""
    return graph.full(tuple(size), 0, element_type(dtype) if dtype else x.dtype)


@lowers(aten.full_like.default)
def full_like(
    graph: Graph, x: Value, fill: Scalar, dtype: torch.dtype | None = None, **_placement: object
) -> Value:
    """Return a tensor with the shape of x, filled with one number."""
    kind = element_type(dtype) if dtype else x.dtype
    return graph.full(x.shape, fill, kind)


@lowers(aten.scalar_tensor.default)
def scalar_tensor(
    graph: Graph, number: Scalar, dtype: torch.dtype | None = None, **_placement: object
) -> Value:
    """Return a tensor of shape () with one number."""
    return graph.scalar(number, element_type(dtype or torch.float32))


@lowers(aten.arange.start_step)
def arange(
    graph: Graph, start: Scalar, end: Scalar, step: Scalar = 1, dtype: torch.dtype | None = None,
    **_placement: object,
) -> Value:  # fmt: skip
    """Return the constant vector start, start + step, ... up to but not including end."""
    bounds = [kind_of(bound) for bound in (start, end, step)]
    kind = element_type(dtype) if dtype else FLOAT if FLOAT in bounds else INT
    return graph.constant(np.arange(start, end, step).astype(kind))


@lowers(aten.repeat.default)
def repeat(graph: Graph, x: Value, repeats: Sequence[int]) -> Value:
    """Return x repeated along its axes."""
    own = graph.reshape(x, (1,) * (len(repeats) - x.rank) + x.shape)
    shape = tuple(e * r for e, r in zip(own.shape, repeats, strict=True))
    return graph.op("Tile", own, graph.ints(repeats), shape=shape, dtype=x.dtype)
