"""The operators of ONNX programs: their allowed inputs and the element types of their outputs (rule B16).

onnxruntime 1.31 checks most of its inputs. But it crashes on a Div or Mod of the smallest int64 by -1, on
an empty name among the inputs of Max and Sum or the outputs of Split, on a Split into fewer parts than it
has outputs, and on a group of 0; it hangs on windows of 2^31. So a program may use only inputs that the
exporter writes. Moreover, every size must be a constant, so that a program's time and memory do not depend
on its data and a trial run on any data measures them.
"""

from typing import NamedTuple

import numpy as np

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.protobuf import Field, text

# ONNX's codes for the element types that programs use, and the size of an element in bytes.
FLOAT, INT64, BOOL = 1, 7, 9
ELEMENT_BYTES = {FLOAT: 4, INT64: 8, BOOL: 1}
SCAN = "Scan"
# The operators that the exporter writes. All are standard ONNX operators, none does I/O, and only Scan has
# a body.
OPERATORS = frozenset([
    "Abs", "Add", "And", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Ceil", "Concat",
    "ConstantOfShape", "Conv", "ConvTranspose", "Cos", "CumSum", "Div", "Elu", "Equal", "Erf",
    "Exp", "Expand", "Floor", "Gather", "GatherElements", "Gelu", "Gemm", "Greater",
    "GreaterOrEqual", "Identity", "LeakyRelu", "Less", "LessOrEqual", "Log", "LogSoftmax", "MatMul",
    "Max", "MaxPool", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Pad", "Pow", "Range",
    "Reciprocal", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "Relu", "Reshape", "Round",
    "Scan", "ScatterElements", "ScatterND", "Sigmoid", "Sign", "Sin", "Slice", "Softmax", "Split",
    "Sqrt", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Where",
])  # fmt: skip
_SIZE = 2**20
# The integer attributes: the field that stores them, and the smallest and largest value allowed.
NUMBERS = {
    "axis": ("i", -16, 15),
    "ceil_mode": ("i", 0, 1),
    "count_include_pad": ("i", 0, 1),
    "dilations": ("ints", 1, _SIZE),
    "fmod": ("i", 0, 1),
    "group": ("i", 1, _SIZE),
    "keepdims": ("i", 0, 1),
    "kernel_shape": ("ints", 1, _SIZE),
    "num_scan_inputs": ("i", 1, _SIZE),
    "output_padding": ("ints", 0, _SIZE),
    "pads": ("ints", 0, _SIZE),
    "perm": ("ints", 0, 15),
    "scan_input_directions": ("ints", 0, 1),
    "scan_output_directions": ("ints", 0, 1),
    "strides": ("ints", 1, _SIZE),
    "to": ("i", FLOAT, BOOL),
    "transA": ("i", 0, 1),
    "transB": ("i", 0, 1),
}
OTHER_ATTRIBUTES = frozenset(["alpha", "approximate", "body", "epsilon", "reduction", "value"])
# The index of the first input that must be a constant. All later inputs must be constants as well.
CONSTANT_FROM = {
    "ConstantOfShape": 0,
    "CumSum": 1,
    "Expand": 1,
    "Pad": 1,
    "Range": 0,
    "ReduceMax": 1,
    "ReduceMean": 1,
    "ReduceMin": 1,
    "ReduceSum": 1,
    "Reshape": 1,
    "Slice": 1,
    "Split": 1,
    "Tile": 1,
}
# The only input that may have an empty name: the bias.
UNNAMED = {("Conv", 2), ("ConvTranspose", 2)}
# The operators whose outputs are boolean.
BOOLEAN = frozenset(
    ["And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or"]
)


class Attribute(NamedTuple):
    """A node's attribute: its integers, its tensor's element type (0 for none), and all its fields."""

    name: str
    numbers: list[int]
    kind: int
    fields: dict[str, Field]


class Node(NamedTuple):
    """A node in a graph, with its names and attributes."""

    where: str
    operator: str
    inputs: list[bytes]
    outputs: list[bytes]
    attributes: list[Attribute]


class Constant(NamedTuple):
    """A constant tensor of the program.

    ``raw`` contains its elements, little-endian, unless they are stored in another field.
    """

    kind: int
    extents: list[int]
    raw: memoryview | None


class Names:
    """The names that a graph defines, with their element types, and its constants.

    Every name is defined once. ``outer`` is the graph around a body; the body may read its names, but not
    redefine them.
    """

    def __init__(self, outer: "Names | None" = None) -> None:
        self.outer = outer
        self.inputs: list[bytes] = []
        self.outputs: list[bytes] = []
        self._kinds: dict[bytes, int] = {}
        self._constants: dict[bytes, Constant] = {}

    def define(self, name: bytes, kind: int, where: str, constant: Constant | None = None) -> None:
        """Define a name. Raises ``CodecError`` for an empty name or one that is already defined."""
        if not name:
            raise CodecError(f"{where}: defines an empty name")
        if name in self._kinds or (self.outer is not None and name in self.outer._kinds):
            raise CodecError(f"{where}: defines {text(name)!r} again")
        self._kinds[name] = kind
        if constant is not None:
            self._constants[name] = constant

    def kind(self, name: bytes, where: str) -> int:
        """Return the element type of a name. Raises ``CodecError`` if it is not defined yet."""
        if name in self._kinds:
            return self._kinds[name]
        if self.outer is None:
            raise CodecError(f"{where}: input {text(name)!r} is not defined before this node")
        return self.outer.kind(name, where)

    def constant(self, name: bytes) -> Constant | None:
        """Return the constant of this name, or None if it is not a constant."""
        if name in self._constants or self.outer is None:
            return self._constants.get(name)
        return self.outer.constant(name)


def check_node(node: Node, names: Names) -> list[int]:
    """Check a node and return the element types of its inputs.

    Raises ``CodecError`` for an input that is not allowed.
    """
    held: set[str] = set()
    for one in node.attributes:
        if one.name in held:
            raise CodecError(f"{node.where}: attribute {one.name!r} appears twice")
        held.add(one.name)
        _check_attribute(one, node.where)
    kinds: list[int] = []
    constant_from = CONSTANT_FROM.get(node.operator, len(node.inputs))
    for index, name in enumerate(node.inputs):
        if not name and (node.operator, index) in UNNAMED:
            continue
        kinds.append(names.kind(name, node.where))
        if index >= constant_from and names.constant(name) is None:
            raise CodecError(f"{node.where}: input {index} of {node.operator} must be a constant")
    if not kinds:
        raise CodecError(f"{node.where}: {node.operator} has no inputs")
    if node.operator in ("Div", "Mod") and kinds != [FLOAT, FLOAT]:
        _check_divisor(node, names)
    return kinds


def _check_attribute(one: Attribute, where: str) -> None:
    if one.name in OTHER_ATTRIBUTES:
        return
    if one.name not in NUMBERS:
        raise CodecError(f"{where}: attribute {one.name!r} is not allowed in a program")
    field, low, high = NUMBERS[one.name]
    good = one.fields.keys() - {"name", "type"} == {field}
    if not good or min(one.numbers) < low or max(one.numbers) > high:
        found = ", ".join(map(str, one.numbers[:8])) or "none"
        expected = f"whole numbers from {low} to {high} as {field}"
        raise CodecError(f"{where}: attribute {one.name!r}: {found}, expected {expected}")


def _check_divisor(node: Node, names: Names) -> None:
    """Reject -1 as well as 0: dividing the smallest int64 by -1 raises the same processor exception."""
    constant = names.constant(node.inputs[-1])
    if constant is not None and constant.kind == INT64 and constant.raw is not None:
        values = np.frombuffer(constant.raw, np.uint8)
        if values.size % 8 == 0 and not np.isin(values.view("<i8"), (0, -1)).any():
            return
    expected = "a constant int64 divisor in raw_data, without 0 or -1"
    raise CodecError(f"{node.where}: {node.operator} of integers, expected {expected}")


def output_kinds(node: Node, kinds: list[int]) -> list[int]:
    """Return the element types of a node's outputs, given those of its inputs. It must not have a body."""
    kind = kinds[0]
    if node.operator in BOOLEAN:
        kind = BOOL
    elif node.operator == "ArgMax":
        kind = INT64
    elif node.operator == "Cast":
        kind = next((one.numbers[0] for one in node.attributes if one.name == "to"), 0)
    elif node.operator == "ConstantOfShape":
        kind = next((one.kind for one in node.attributes if one.name == "value"), FLOAT)
    elif node.operator == "Where":
        kind = kinds[-1]
    if kind not in ELEMENT_BYTES:
        raise CodecError(f"{node.where}: element type {kind}, expected one of {[*ELEMENT_BYTES]}")
    indices = [INT64] if node.operator == "MaxPool" else [kind]
    return [kind, *indices * len(node.outputs)][: len(node.outputs)]
