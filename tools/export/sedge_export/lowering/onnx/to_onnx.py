"""Converts a traced ATen graph to an ONNX program, in one pass with one table.

Every node is lowered through the table, in order. The shape and type of each result are compared with
those that torch traced, so that a wrong lowering fails here and not on a device.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from sedge_export.lowering.missing import missing
from sedge_export.lowering.onnx.graph import Array, Graph, Value
from sedge_export.lowering.onnx.pointwise import element_type, wrapped
from sedge_export.lowering.onnx.table import LOWERINGS, Lowered, Lowering
from sedge_export.stages import Where
from sedge_protocol.errors import ExportError, LocalError


def to_onnx(
    module: fx.GraphModule, name: str, inputs: Sequence[str], outputs: Sequence[str], where: Where,
    table: Mapping[OpOverload, Lowering] = LOWERINGS,
) -> bytes:  # fmt: skip
    """Convert a traced graph to a program.

    ``inputs`` and ``outputs`` name its inputs and outputs, in order. Raises ``ExportError`` naming the
    first operator that has no lowering; ``where`` says which module of the model it came from.
    """
    graph = Graph()
    specs = [_spec(node) for node in module.graph.find_nodes(op="placeholder")]
    given = [
        graph.input(label, tuple(spec.shape), element_type(spec.dtype))
        for label, spec in zip(inputs, specs, strict=True)
    ]
    results = lowered(graph, module, given, where, table)
    return graph.build(name, dict(zip(outputs, results, strict=True)))


def lowered(
    graph: Graph, module: fx.GraphModule, inputs: Sequence[Value], where: Where,
    table: Mapping[OpOverload, Lowering] = LOWERINGS,
) -> list[Value]:  # fmt: skip
    """Add a traced graph to ``graph``, with ``inputs`` as its inputs. Returns its results."""
    remaining = iter(inputs)
    values: dict[fx.Node, Lowered] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = _constant(graph, module, str(node.target))
        elif node.op == "call_function":
            values[node] = _call(graph, node, values, where, table)
        elif node.op == "output":
            given = node.args[0]
            results = (given,) if isinstance(given, fx.Node) else cast(Sequence[fx.Node], given)
            return [_one(values[result]) for result in results]
    raise LocalError("the traced graph has no output")


def _spec(node: fx.Node) -> Tensor:
    return cast(Tensor, node.meta["val"])


def _one(lowered: Lowered) -> Value:
    if not isinstance(lowered, Value):
        raise LocalError(f"expected one value, found {lowered!r}")
    return lowered


def _constant(graph: Graph, module: fx.GraphModule, target: str) -> Value:
    tensor = cast(Tensor, getattr(module, target)).detach()
    try:
        kind = element_type(tensor.dtype)
    except ExportError as exc:
        raise ExportError(f"model: a buffer or constant in its forward pass has {exc}") from exc
    return graph.constant(cast(Array, tensor.numpy()).astype(kind, copy=False))


def _call(
    graph: Graph, node: fx.Node, values: dict[fx.Node, Lowered], where: Where,
    table: Mapping[OpOverload, Lowering],
) -> Lowered:  # fmt: skip
    arguments = cast(tuple[Any, ...], tree_map_only(fx.Node, values.__getitem__, node.args))
    keywords = cast(dict[str, Any], tree_map_only(fx.Node, values.__getitem__, node.kwargs))
    if node.target is operator.getitem:
        source, index = cast(tuple[tuple[Value, ...], int], arguments)
        return source[index]
    target = cast(OpOverload, node.target)
    if target not in table:
        raise missing(target, where, "ONNX has no counterpart for it here")
    try:
        result = table[target](graph, *arguments, **keywords)
    except ExportError as exc:
        raise ExportError(f"cannot lower {target}{where(target)}: {exc}") from exc
    if isinstance(result, Value):
        result = wrapped(graph, target, result, _spec(node).dtype)
    _check(node, result)
    return result


def _check(node: fx.Node, result: Lowered) -> None:
    many = isinstance(result, tuple)
    specs = cast(tuple[Tensor | None, ...], node.meta["val"]) if many else (_spec(node),)
    made = result if isinstance(result, tuple) else (result,)
    for spec, value in zip(specs, made, strict=True):
        if value is None or spec is None:
            continue
        if value.shape != tuple(spec.shape) or value.dtype != element_type(spec.dtype):
            raise LocalError(
                f"{node.target}: lowered to {value.dtype} {value.shape},"
                f" traced as {spec.dtype} {tuple(spec.shape)}"
            )
