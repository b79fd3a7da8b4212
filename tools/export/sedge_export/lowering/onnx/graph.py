"""A small builder of ONNX graphs in which every value has a static shape.

It tracks shapes and element types, so that a lowering does not have to get them from a runtime, and a
wrong shape is reported where it first occurs. It does not fuse operators: onnxruntime does that when it
loads the program. The body of a loop is a separate graph, which may use every value of the enclosing
graph.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from sedge_protocol.errors import LocalError
from sedge_protocol.wire.program import OPSET

IR_VERSION = 9  # the version that goes with opset 20

Scalar: TypeAlias = bool | int | float
Attribute: TypeAlias = int | float | str | Sequence[int] | onnx.TensorProto | onnx.GraphProto
Array: TypeAlias = NDArray[np.generic]
ElementType: TypeAlias = np.dtype[np.generic]

# The element types that programs may have.
FLOAT: ElementType = np.dtype(np.float32)
INT: ElementType = np.dtype(np.int64)
BOOL: ElementType = np.dtype(np.bool_)


@dataclass(frozen=True)
class Value:
    """One tensor of the graph."""

    name: str
    shape: tuple[int, ...]
    dtype: ElementType

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


# Operators whose last output is optional and takes time to compute.
_WITH_OPTIONAL_OUTPUTS = {"MaxPool"}


class Graph:
    """Builds one program, or the body of a loop: nodes, constants and inputs."""

    def __init__(self, around: "Graph | None" = None) -> None:
        self._numbers: Iterator[int] = around._numbers if around else itertools.count(1)
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: dict[str, Value] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Value] = {}
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._transposes: dict[str, tuple[Value, tuple[int, ...]]] = {}
        self._broadcasts: dict[str, Value] = {}
        self._kinds: dict[str, str] = {}

    def input(self, name: str, shape: tuple[int, ...], dtype: ElementType) -> Value:
        """Add a named input to the program."""
        self._inputs[name] = Value(name, shape, dtype)
        return self._inputs[name]

    def unnamed_input(self, shape: tuple[int, ...], dtype: ElementType) -> Value:
        """Add an input to a loop's body, where only its position matters."""
        return self.input(self._new(shape, dtype).name, shape, dtype)

    def constant(self, array: Array) -> Value:
        """Return a constant; equal constants are stored once."""
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            value = self._new(array.shape, array.dtype)
            self._initializers[value.name] = numpy_helper.from_array(array, value.name)
            self._constants[key] = value
        return self._constants[key]

    def scalar(self, number: Scalar, dtype: ElementType = FLOAT) -> Value:
        """Return a constant of shape ()."""
        return self.constant(np.array(number, dtype))

    def ints(self, numbers: Sequence[int]) -> Value:
        """Return a constant int64 vector, which is how ONNX passes shapes, axes and pads."""
        return self.constant(np.array(numbers, np.int64))

    def full(self, shape: tuple[int, ...], number: Scalar, dtype: ElementType = FLOAT) -> Value:
        """Return a tensor filled with one number; only the number is stored."""
        if not shape:
            return self.scalar(number, dtype)
        fill = numpy_helper.from_array(np.array([number], dtype))
        made = self.op("ConstantOfShape", self.ints(shape), shape=shape, dtype=dtype, value=fill)
        self._broadcasts[made.name] = self.scalar(number, dtype)
        return made

    def _new(self, shape: tuple[int, ...], dtype: ElementType) -> Value:
        return Value(f"v{next(self._numbers)}", shape, dtype)

    def op(
        self,
        kind: str,
        *inputs: Value | None,
        shape: tuple[int, ...],
        dtype: ElementType = FLOAT,
        **attributes: Attribute,
    ) -> Value:
        """Add a node with one output of the given shape."""
        return self.ops(kind, *inputs, outputs=((shape, dtype),), **attributes)[0]

    def ops(
        self,
        kind: str,
        *inputs: Value | None,
        outputs: Sequence[tuple[tuple[int, ...], ElementType]],
        **attributes: Attribute,
    ) -> tuple[Value, ...]:
        """Add a node with several outputs. None stands for an optional input that is omitted."""
        made = tuple(self._new(shape, dtype) for shape, dtype in outputs)
        names = [value.name if value else "" for value in inputs]
        node = helper.make_node(kind, names, [value.name for value in made])
        node.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())
        self._nodes.append(node)
        self._kinds.update((value.name, kind) for value in made)
        return made

    def is_output_of(self, kind: str, value: Value) -> bool:
        """Return True if a node of this kind produces ``value``."""
        return self._kinds.get(value.name) == kind

    def unary(self, kind: str, x: Value, **attributes: Attribute) -> Value:
        """Add an element-wise node that keeps shape and type."""
        return self.op(kind, x, shape=x.shape, dtype=x.dtype, **attributes)

    def binary(self, kind: str, x: Value, y: Value) -> Value:
        """Add an element-wise arithmetic node with broadcasting; both operands must have the same type."""
        return self._broadcasting(kind, x, y, x.dtype)

    def _broadcasting(self, kind: str, x: Value, y: Value, dtype: ElementType) -> Value:
        shape = np.broadcast_shapes(x.shape, y.shape)
        # If one operand already has the full shape, the other does not have to be expanded to it.
        if y.shape == shape:
            x = self._broadcasts.get(x.name, x)
        if x.shape == shape:
            y = self._broadcasts.get(y.name, y)
        return self.op(kind, x, y, shape=shape, dtype=dtype)

    def add(self, x: Value, y: Value) -> Value:
        """Return x + y."""
        return self.binary("Add", x, y)

    def sub(self, x: Value, y: Value) -> Value:
        """Return x - y."""
        return self.binary("Sub", x, y)

    def mul(self, x: Value, y: Value) -> Value:
        """Return x * y."""
        return self.binary("Mul", x, y)

    def scale(self, x: Value, factor: float) -> Value:
        """Return x times a constant."""
        return self.mul(x, self.scalar(factor))

    def compare(self, kind: str, x: Value, y: Value) -> Value:
        """Add an element-wise comparison with broadcasting. The result is boolean."""
        return self._broadcasting(kind, x, y, BOOL)

    def cast(self, x: Value, dtype: ElementType) -> Value:
        """Return x converted to another element type."""
        if x.dtype == dtype:
            return x
        to = int(helper.np_dtype_to_tensor_dtype(dtype))
        return self.op("Cast", x, shape=x.shape, dtype=dtype, to=to)

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Return x with another shape of the same size; costs nothing at run time."""
        if shape == x.shape:
            return x
        if math.prod(shape) != x.size:
            raise LocalError(f"reshape: {x.shape} to {shape}")
        return self.op("Reshape", x, self.ints(shape), shape=shape, dtype=x.dtype)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        """Return x with its axes in another order.

        A transpose of a transpose becomes a single transpose, or none at all.
        """
        source, before = self.untransposed(x)
        order = tuple(before[axis] for axis in axes)
        if order == tuple(range(x.rank)):
            return source
        shape = tuple(source.shape[axis] for axis in order)
        made = self.op("Transpose", source, shape=shape, dtype=x.dtype, perm=order)
        self._transposes[made.name] = source, order
        return made

    def untransposed(self, x: Value) -> tuple[Value, tuple[int, ...]]:
        """Return the value that x transposes, and the order of axes.

        If x is not a transpose, returns x and the identity.
        """
        return self._transposes.get(x.name, (x, tuple(range(x.rank))))

    def reduce(self, kind: str, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """Reduce x over some axes with ReduceSum, ReduceMean, ReduceMax or ReduceMin."""
        over = {axis % x.rank for axis in axes}
        if not over:
            return x
        full = tuple(1 if axis in over else extent for axis, extent in enumerate(x.shape))
        shape = full if keep else tuple(e for axis, e in enumerate(x.shape) if axis not in over)
        axes_value = self.ints(sorted(over))
        return self.op(kind, x, axes_value, shape=shape, dtype=x.dtype, keepdims=int(keep))

    def sum(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """Return the sum over some axes."""
        return self.reduce("ReduceSum", x, axes, keep)

    def mean(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        """Return the mean over some axes."""
        return self.reduce("ReduceMean", x, axes, keep)

    def slice(self, x: Value, axes: Sequence[int], ranges: Sequence[tuple[int, int, int]]) -> Value:
        """Return x[start:stop:step] along each of ``axes``; adds no node if that selects all of x."""
        shape = list(x.shape)
        for axis, bounds in zip(axes, ranges, strict=True):
            shape[axis] = len(range(x.shape[axis])[slice(*bounds)])
        if tuple(shape) == x.shape and all(step == 1 for _, _, step in ranges):
            return x
        starts, stops, steps = (self.ints(column) for column in zip(*ranges, strict=True))
        kind = {"shape": tuple(shape)}
        return self.op("Slice", x, starts, stops, self.ints(axes), steps, **kind, dtype=x.dtype)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        """Return the parts concatenated along an axis."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.op("Concat", *parts, shape=tuple(shape), dtype=parts[0].dtype, axis=axis)

    def split(self, x: Value, sizes: Sequence[int], axis: int) -> tuple[Value, ...]:
        """Return x cut into parts of the given extents along an axis."""
        if len(sizes) == 1:
            return (x,)
        shapes = [(*x.shape[:axis], size, *x.shape[axis + 1 :]) for size in sizes]
        outputs = [(shape, x.dtype) for shape in shapes]
        return self.ops("Split", x, self.ints(sizes), outputs=outputs, axis=axis)

    def pad(self, x: Value, before: Sequence[int], after: Sequence[int], fill: Scalar) -> Value:
        """Return x padded with a constant."""
        if not any(before) and not any(after):
            return x
        shape = tuple(b + e + a for b, e, a in zip(before, x.shape, after, strict=True))
        pads = self.ints([*before, *after])
        return self.op("Pad", x, pads, self.scalar(fill, x.dtype), shape=shape, dtype=x.dtype)

    def expand(self, x: Value, shape: tuple[int, ...]) -> Value:
        """Return x broadcast to a shape."""
        if shape == x.shape:
            return x
        made = self.op("Expand", x, self.ints(shape), shape=shape, dtype=x.dtype)
        self._broadcasts[made.name] = x
        return made

    def build(self, name: str, outputs: Mapping[str, Value]) -> bytes:
        """Serialise the program with the named outputs."""
        model = helper.make_model(
            self._finished(name, outputs),
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="sedge-export",
        )
        program: bytes = model.SerializeToString()
        return program

    def body(self, name: str, outputs: Iterable[Value]) -> onnx.GraphProto:
        """Finish the body of a loop, with its outputs in order."""
        return self._finished(name, {self._new(v.shape, v.dtype).name: v for v in outputs})

    def _finished(self, name: str, outputs: Mapping[str, Value]) -> onnx.GraphProto:
        """Assemble the graph with the named outputs. Nodes that no output needs are left out."""
        renamed: dict[str, str] = {}
        for label, value in outputs.items():
            if value.name in renamed or value.name in self._inputs or value.name not in self._kinds:
                value = self.unary("Identity", value)
            renamed[value.name] = label
        nodes, used = self._needed(set(renamed))
        for node in _nested(nodes):
            node.input[:] = [renamed.get(name, name) for name in node.input]
            node.output[:] = [renamed.get(name, name) for name in node.output]
        return helper.make_graph(
            nodes,
            name,
            [_value_info(value.name, value) for value in self._inputs.values()],
            [_value_info(label, value) for label, value in outputs.items()],
            [tensor for key, tensor in self._initializers.items() if key in used],
        )

    def _needed(self, wanted: set[str]) -> tuple[list[onnx.NodeProto], set[str]]:
        nodes: list[onnx.NodeProto] = []
        for node in reversed(self._nodes):
            if any(name in wanted for name in node.output):
                while node.op_type in _WITH_OPTIONAL_OUTPUTS and node.output[-1] not in wanted:
                    del node.output[-1]
                nodes.append(node)
                wanted.update(name for part in _nested([node]) for name in part.input)
        return nodes[::-1], wanted


def _nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes, and the nodes in the bodies of loops among them."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            yield from attribute.g.node


def _value_info(name: str, value: Value) -> onnx.ValueInfoProto:
    kind = int(helper.np_dtype_to_tensor_dtype(value.dtype))
    return helper.make_tensor_value_info(name, kind, list(value.shape))
