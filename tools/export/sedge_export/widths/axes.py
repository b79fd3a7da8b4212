"""Finds which channels of a model's tensors belong together, from the traced forward pass.

Every dimension of every tensor starts as its own stream. A walk over the operators ties dimensions that
must have the same channels. It fixes those that cannot change: the input's channels, the outputs,
kernels, concatenated or cut channels, and everything that reaches an operator without a rule.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from sedge_export.subject.network import Network
from sedge_export.tracing.trace import trace
from sedge_export.widths.axis_rules import Labels, TracedOp, broadcasts, labelled
from sedge_export.widths.resize import resizable
from sedge_export.widths.streams import Dim, Stream, Streams, resolved
from sedge_protocol.axes import FIXED, Axes

Values: TypeAlias = dict[fx.Node, list[Labels]]

EXPAND = torch.ops.aten.expand.default


@dataclass(frozen=True)
class FoundAxes:
    """The axes of a layout (empty if nothing can be narrowed), and the reasons why channels were fixed."""

    axes: Axes
    reasons: tuple[str, ...]


def find_axes(network: Network, x: Tensor) -> FoundAxes:
    """Find the axes of a network that takes x (B, ...). Raises ``ExportError`` if it cannot be traced."""
    names = [tensor.name for tensor in network.layout.tensors]

    def forward(*values: Tensor) -> Tensor:
        return network.output(dict(zip(names, values, strict=False)), values[-1])[0]

    network.model.eval()
    values = [t.clone() for t in network.split(torch.from_numpy(network.theta)).values()]
    streams = Streams()
    labels = _first_labels(network, streams)
    with network.unchanged():
        traced = trace(forward, [*values, x])
    _walk(traced, streams, [*labels, Labels.plain(x.shape)])
    return FoundAxes(_axes(labels, streams), tuple(dict.fromkeys(streams.reasons)))


def _first_labels(network: Network, streams: Streams) -> list[Labels]:
    """Make a stream for each dimension of each tensor.

    Streams are fixed if the tensor's module cannot be resized.
    """
    labels = [
        Labels(
            streams.fresh(extent, f"dimension {number} of {tensor.name!r}")
            for number, extent in enumerate(tensor.shape)
        )
        for tensor in network.layout.tensors
    ]
    modules = dict(network.model.named_modules())
    for tensor, dims in zip(network.layout.tensors, labels, strict=True):
        module = modules[tensor.name.rpartition(".")[0]]
        if not resizable(module):
            for dim in dims:
                streams.fix(dim, f"belongs to a {type(module).__name__}")
    return labels


def _walk(traced: fx.GraphModule, streams: Streams, inputs: Sequence[Labels]) -> None:
    remaining = iter(inputs)
    values: Values = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = [next(remaining)]
            if not node.users:
                _fix(streams, values[node], "is not used")
        elif node.op == "get_attr":
            values[node] = [Labels.plain(getattr(traced, str(node.target)).shape)]
        elif node.op == "call_function" and not _is_static(node):
            _fix(streams, inputs, f"must stay: from {node.target} on, shapes depend on the data")
            return
        elif node.op == "call_function":
            values[node] = _called(node, streams, values)
        elif node.op == "output":
            for source in node.all_input_nodes:
                _fix(streams, values[source], "is one of the outputs")


def _called(node: fx.Node, streams: Streams, values: Values) -> list[Labels]:
    if not isinstance(node.target, OpOverload):  # getitem, for an operator with several results
        source, index = cast(tuple[fx.Node, int], node.args)
        return [values[source][index]]
    if node.target is EXPAND and all(_broadcasts(user) for user in node.users):
        return values[node.all_input_nodes[0]]  # its consumers broadcast it at any width
    names = [argument.name for argument in node.target._schema.arguments]
    arguments = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    labels = cast(dict[str, Any], tree_map_only(fx.Node, lambda n: values[n][0], arguments))
    by_name = {"x" if name in ("self", "input") else name: v for name, v in labels.items()}
    return labelled(TracedOp(str(node.target), streams, _shapes(node)), node.target, by_name)


def _shapes(node: fx.Node) -> list[tuple[int, ...]]:
    """Return the shape of each of the node's results."""
    results = node.meta.get("val", ())  # an operator that only checks values has no result
    many = results if isinstance(results, list | tuple) else (results,)
    return [tuple(result.shape) if isinstance(result, Tensor) else () for result in many]


def _is_static(node: fx.Node) -> bool:
    return not any(isinstance(e, torch.SymInt) for shape in _shapes(node) for e in shape)


def _broadcasts(node: fx.Node) -> bool:
    return broadcasts(node.target) and len(node.all_input_nodes) > 1


def _fix(streams: Streams, tensors: Sequence[Labels], why: str) -> None:
    for labels in tensors:
        for dim in labels:
            streams.fix(dim, why)


def _axes(tensors: Sequence[Labels], streams: Streams) -> Axes:
    """Number the streams that are still free, in order of appearance in the tensors."""
    for labels in tensors:
        for dim in labels:
            if any(isinstance(part, Stream) for part in resolved(dim)[1:]):
                streams.fix(dim, "must stay: flattened behind another dimension")
    numbers: dict[Stream, int] = {}
    dims = tuple(tuple(_number(dim, numbers) for dim in labels) for labels in tensors)
    return Axes(tuple(stream.extent for stream in numbers), dims)


def _number(dim: Dim, numbers: dict[Stream, int]) -> int:
    first = next(iter(resolved(dim)), 1)
    return numbers.setdefault(first, len(numbers)) if isinstance(first, Stream) else FIXED
