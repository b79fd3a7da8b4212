"""The second pass over a graph: cancels transposes, replaces views with copies, respects XNNPACK's limits.

ExecuTorch has no strides: each view, transpose and slice copies its input, and every tensor is
contiguous. So a transpose is moved behind the element-wise operators and sums that follow it, until it
meets its inverse or an operator that needs the other order. A product with a large transposed matrix
becomes the transpose of a product in which only small matrices are transposed. Equal nodes are merged.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import Argument
from torch.utils._pytree import tree_flatten, tree_map_only

from sedge_protocol.errors import LocalError

aten = torch.ops.aten
Handler: TypeAlias = Callable[["Simplifier", fx.Node, list[Any]], Any]

VIEW, PERMUTE, SLICE = aten.view_copy.default, aten.permute_copy.default, aten.slice_copy.Tensor
EXPAND, PAD, CAT, BMM = (
    aten.expand_copy.default,
    aten.constant_pad_nd.default,
    aten.cat.default,
    aten.bmm.default,
)
MAX_JOINED = 5  # XNNPACK's limit on the tensors of one concatenation


def simplified(module: fx.GraphModule) -> fx.GraphModule:
    """Return an equivalent module in a form that ExecuTorch and XNNPACK run fast."""
    return Simplifier(module).run()


class Simplifier:
    """Builds the new graph from the old one, node by node."""

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._graph = fx.Graph()
        self._mode = FakeTensorMode()
        self._made: dict[object, fx.Node] = {}

    def run(self) -> fx.GraphModule:
        """Build the new module."""
        values: dict[fx.Node, Any] = {}
        for node in self._module.graph.nodes:
            if node.op == "output":
                self._graph.output(tuple(values[result] for result in node.all_input_nodes))
            elif node.op == "call_function":
                values[node] = self._call(node, values)
            else:
                values[node] = self._graph.create_node(node.op, node.target, name=node.name)
                example = node.meta.get("val")
                if example is None:
                    example = getattr(self._module, node.target)
                values[node].meta["val"] = self._empty(example)
        self._graph.eliminate_dead_code()
        return fx.GraphModule(self._module, self._graph)

    def _empty(self, like: Tensor) -> Tensor:
        with self._mode:
            return torch.empty(like.shape, dtype=like.dtype)

    def _call(self, node: fx.Node, values: dict[fx.Node, Any]) -> Any:
        arguments = cast(list[Any], tree_map_only(fx.Node, values.__getitem__, list(node.args)))
        keywords = tree_map_only(fx.Node, values.__getitem__, dict(node.kwargs))
        if node.target is operator.getitem:
            source, index = arguments
            if isinstance(source, tuple):
                return source[index]
            return self.emit(operator.getitem, source, index)
        target = cast(OpOverload, node.target)
        if target in HANDLERS and not keywords.keys() - {"memory_format", "implicit"}:
            made = HANDLERS[target](self, node, arguments)
        elif torch.Tag.pointwise in target.tags:
            made = self._pointwise(target, arguments, keywords, shape_of(node))
        else:
            made = self.emit(target, *arguments, **keywords)
        single = isinstance(made, fx.Node) and isinstance(node.meta["val"], Tensor)
        if single and shape_of(made) != shape_of(node):
            raise LocalError(f"{target}: {shape_of(made)}, traced as {shape_of(node)}")
        return made

    def emit(self, target: Any, *args: Argument, **kwargs: Argument) -> fx.Node:
        """Add a node to the new graph, or return the existing one with the same arguments."""
        leaves, tree = tree_flatten((args, kwargs))
        key = (target, tuple((type(leaf), leaf) for leaf in leaves), str(tree))
        if key not in self._made:
            node = self._graph.call_function(target, args, kwargs)
            examples = tree_map_only(fx.Node, lambda n: n.meta["val"], (args, kwargs))
            with self._mode:
                node.meta["val"] = target(*examples[0], **examples[1])
            self._made[key] = node
        return self._made[key]

    def view(self, x: fx.Node, shape: Sequence[int]) -> fx.Node:
        """Return x with another shape of the same size."""
        if x.target is VIEW:
            x = cast(fx.Node, x.args[0])
        if tuple(shape) == shape_of(x):
            return x
        source, order = self.transposed(x)
        wide = [extent for extent in shape if extent != 1]
        if source is not x and wide == [extent for extent in shape_of(x) if extent != 1]:
            # If the view only adds or removes axes of extent 1, it can move in front of the transpose.
            ones = len(shape) - len(wide)
            axes = [axis for axis in order if shape_of(source)[axis] != 1]
            inner = [1] * ones + [shape_of(source)[axis] for axis in sorted(axes)]
            pending, behind = iter(range(ones)), iter(axes)
            moved = [
                next(pending) if extent == 1 else ones + sorted(axes).index(next(behind))
                for extent in shape
            ]
            return self.permute(self.view(source, inner), moved)
        return self.emit(VIEW, x, list(shape))

    def permute(self, x: fx.Node, order: Sequence[int]) -> fx.Node:
        """Return x with its axes in another order."""
        source, before = self.transposed(x)
        order = [before[axis] for axis in order]
        wide = [axis for axis in order if shape_of(source)[axis] != 1]
        if wide == sorted(wide):  # the data stay in the same order
            return self.view(source, [shape_of(source)[axis] for axis in order])
        return self.emit(PERMUTE, source, order)

    def transposed(self, x: fx.Node) -> tuple[fx.Node, list[int]]:
        """Return the node that x transposes, and the order of axes.

        If x is not a transpose, returns x and the identity.
        """
        if x.target is PERMUTE:
            return cast(fx.Node, x.args[0]), list(cast(Sequence[int], x.args[1]))
        return x, list(range(len(shape_of(x))))

    def cut(self, x: fx.Node, axis: int, start: int, stop: int) -> fx.Node:
        """Return x[start:stop] along an axis."""
        if stop - start == shape_of(x)[axis]:
            return x
        source, order = self.transposed(x)
        return self.permute(self.emit(SLICE, source, order[axis], start, stop), order)

    def join(self, parts: Sequence[fx.Node], axis: int) -> fx.Node:
        """Concatenate the parts, at most five in one node.

        If there are more, small parts are joined first.
        """
        orders = {tuple(self.transposed(part)[1]) for part in parts}
        if len(orders) == 1:
            order = list(orders.pop())
            sources = [self.transposed(part)[0] for part in parts]
            return self.permute(self._joined(sources, order[axis]), order)
        return self._joined(parts, axis)

    def _joined(self, parts: Sequence[fx.Node], axis: int) -> fx.Node:
        pending = list(parts)
        while len(pending) > MAX_JOINED:
            count = min(MAX_JOINED, len(pending) - MAX_JOINED + 1)
            sizes = [_size(part) for part in pending]
            starts = range(len(pending) - count + 1)
            first = min(starts, key=lambda start: sum(sizes[start : start + count]))
            chosen = pending[first : first + count]
            pending[first : first + count] = [self.emit(CAT, chosen, axis)]
        return self.emit(CAT, pending, axis) if len(pending) > 1 else pending[0]

    def _pointwise(
        self, target: OpOverload, args: list[Any], keywords: dict[str, Any], shape: tuple[int, ...]
    ) -> fx.Node:
        """Apply the operator to its operands before their transpose, and transpose the result instead."""
        operands = [arg for arg in args if isinstance(arg, fx.Node)]
        order = list(range(len(shape)))
        for operand in sorted(operands, key=_size):
            if operand.target is PERMUTE and len(shape_of(operand)) == len(shape):
                order = self.transposed(operand)[1]
        inverse = [order.index(axis) for axis in range(len(shape))]
        whole = any(shape_of(o) == shape and o.target is not EXPAND for o in operands)
        moved = [
            self._operand(arg, inverse, whole) if isinstance(arg, fx.Node) else arg for arg in args
        ]
        return self.permute(self.emit(target, *moved, **keywords), order)

    def _operand(self, x: fx.Node, order: list[int], whole: bool) -> fx.Node:
        """Permute an operand.

        If another operand has the ``whole`` shape, an expansion of this one is dropped.
        """
        if whole and x.target is EXPAND:
            x = cast(fx.Node, x.args[0])
        extents = shape_of(x)
        if not extents or order == sorted(order):
            return x
        missing = len(order) - len(extents)
        return self.permute(self.view(x, (1,) * missing + extents), order)

    def product(self, x: fx.Node, y: fx.Node) -> fx.Node:
        """Return the batched product x[i] @ y[i]."""
        source, order = self.transposed(y)
        results = shape_of(x)[1] * shape_of(y)[2] * shape_of(x)[0]
        if order == [0, 2, 1] and _size(source) > _size(x) + results:
            return self.permute(self.emit(BMM, source, self.permute(x, order)), order)
        return self.emit(BMM, x, y)

    def reduction(self, target: OpOverload, x: fx.Node, dims: Sequence[int], *rest: Any) -> fx.Node:
        """Return a sum, mean or extremum over some axes."""
        source, order = self.transposed(x)
        gone = [order[dim] for dim in dims]
        made = self.emit(target, source, gone, *rest)
        if rest[:1] == (True,):
            return self.permute(made, order)
        kept = [axis for axis in order if axis not in gone]
        return self.permute(made, [sorted(kept).index(axis) for axis in kept])


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """Return the static shape of a node's tensor."""
    return tuple(cast(Tensor, node.meta["val"]).shape)


def _size(node: fx.Node) -> int:
    return cast(Tensor, node.meta["val"]).numel()


def _view(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    return graph.view(args[0], shape_of(node))


def _same(_graph: Simplifier, _node: fx.Node, args: list[Any]) -> fx.Node:
    return cast(fx.Node, args[0])


def _permute(graph: Simplifier, _node: fx.Node, args: list[Any]) -> fx.Node:
    rank = len(shape_of(args[0]))
    return graph.permute(args[0], [axis % rank for axis in args[1]])


def _transpose(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    order = list(range(len(shape_of(node))))
    first, second = args[1:] or (0, -1)
    if order:
        order[first], order[second] = order[second], order[first]
    return graph.permute(args[0], order)


def _select(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    x, dim, index = args
    axis = dim % len(shape_of(x))
    place = index % shape_of(x)[axis]
    return graph.view(graph.cut(x, axis, place, place + 1), shape_of(node))


def _slice(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    x, rest = cast(fx.Node, args[0]), [*args[1:], *[None] * (5 - len(args))]
    dim, start, stop, step = rest[0] or 0, rest[1], rest[2], rest[3] or 1
    axis = dim % len(shape_of(x))
    bounds = range(shape_of(x)[axis])[start:stop:step]
    if step == 1:
        return graph.cut(x, axis, bounds.start, bounds.stop)
    return graph.emit(SLICE, x, axis, bounds.start, bounds.stop, step)


def _split(graph: Simplifier, node: fx.Node, args: list[Any]) -> tuple[fx.Node, ...]:
    x, dim = args[0], args[2] if len(args) > 2 else 0
    axis = dim % len(shape_of(x))
    extents = [part.shape[axis] for part in node.meta["val"]]
    starts = [sum(extents[:number]) for number in range(len(extents))]
    return tuple(
        graph.cut(x, axis, s, s + extent) for s, extent in zip(starts, extents, strict=True)
    )


def _expand(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    x, shape = args[0], shape_of(node)
    if shape_of(x) == shape:
        return cast(fx.Node, x)
    return graph.emit(
        EXPAND, graph.view(x, (1,) * (len(shape) - len(shape_of(x))) + shape_of(x)), list(shape)
    )


def _pad(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    """Pad the last axes. Negative margins crop; slices do that, because ExecuTorch's padding cannot."""
    x, margins, *fill = args
    rank = len(shape_of(x))
    for place in range(len(margins) // 2):
        axis, (before, after) = rank - 1 - place, margins[2 * place : 2 * place + 2]
        x = graph.cut(x, axis, max(-before, 0), shape_of(x)[axis] - max(-after, 0))
    source, order = graph.transposed(x)
    moved = [0] * (2 * rank)
    for place in range(len(margins) // 2):
        start = 2 * (rank - 1 - order[rank - 1 - place])
        moved[start : start + 2] = [max(margin, 0) for margin in margins[2 * place : 2 * place + 2]]
    return graph.permute(graph.emit(PAD, source, moved, *fill), order) if any(moved) else x


def _cat(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    parts, dim = args[0], args[1] if len(args) > 1 else 0
    kept = [part for part in parts if _size(part)]
    return graph.join(kept, dim % len(shape_of(node)))


def _product(graph: Simplifier, _node: fx.Node, args: list[Any]) -> fx.Node:
    return graph.product(*args)


def _reduction(graph: Simplifier, node: fx.Node, args: list[Any]) -> fx.Node:
    x, dims, rest = args[0], args[1] if len(args) > 1 else None, args[2:]
    rank = len(shape_of(x))
    over = [dims] if isinstance(dims, int) else dims or range(rank)
    target = cast(OpOverload, node.target)
    return graph.reduction(target, x, [dim % rank for dim in over], *rest)


HANDLERS: dict[OpOverload, Handler] = {
    **dict.fromkeys(
        [
            aten.view.default, aten._unsafe_view.default, aten.view_copy.default,
            aten.reshape.default, aten.unsqueeze.default, aten.squeeze.default,
            aten.squeeze.dim, aten.squeeze.dims,
        ],
        _view,
    ),
    **dict.fromkeys(
        [aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default],
        _same,
    ),
    **dict.fromkeys(
        [aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default], _reduction
    ),
    aten.permute.default: _permute,
    aten.t.default: _transpose,
    aten.transpose.int: _transpose,
    aten.select.int: _select,
    aten.slice.Tensor: _slice,
    aten.split_with_sizes.default: _split,
    aten.split.Tensor: _split,
    aten.expand.default: _expand,
    aten.constant_pad_nd.default: _pad,
    aten.cat.default: _cat,
    aten.bmm.default: _product,
}  # fmt: skip
