"""Lowers matrix products.

For a transposed matrix, Gemm gets the untransposed matrix and a flag. Batched products leave their
transposes to onnxruntime, which fuses them.
"""

import torch

from sedge_export.lowering.onnx.graph import Graph, Scalar, Value
from sedge_export.lowering.onnx.table import lowers

aten = torch.ops.aten


def gemm(graph: Graph, x: Value, y: Value, bias: Value | None = None) -> Value:
    """Return x @ y (+ bias)."""
    (left, order), (right, other) = graph.untransposed(x), graph.untransposed(y)
    return graph.op(
        "Gemm",
        left,
        right,
        *([bias] if bias else []),
        shape=(x.shape[0], y.shape[1]),
        transA=int(order == (1, 0)),
        transB=int(other == (1, 0)),
    )


@lowers(aten.mm.default)
def mm(graph: Graph, x: Value, y: Value) -> Value:
    """Return x @ y for matrices."""
    return gemm(graph, x, y)


@lowers(aten.addmm.default)
def addmm(
    graph: Graph, bias: Value, x: Value, y: Value, beta: Scalar = 1, alpha: Scalar = 1
) -> Value:
    """Return beta * bias + alpha * x @ y."""
    left = x if alpha == 1 else graph.scale(x, alpha)
    return gemm(graph, left, y, bias if beta == 1 else graph.scale(bias, beta))


@lowers(aten.bmm.default)
def bmm(graph: Graph, x: Value, y: Value) -> Value:
    """Return the batched product x[i] @ y[i]."""
    return graph.op("MatMul", x, y, shape=(*x.shape[:2], y.shape[2]))
