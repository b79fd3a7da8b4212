"""Checks the ONNX programs that a device runs: only operators and fields that the exporter writes.

A bundle is untrusted input, and an ONNX file can do more than compute: a tensor may name a file or an
address to read instead, metadata may set options of the runtime, an operator may come from a library, and a
loop may never end. So this module lists every allowed field and rejects all others; operators.py does the
same for the inputs of operators. A nested graph is allowed only as the body of a Scan. It may not contain
another Scan, and a constant in the program determines how often the body runs.

The size of intermediate results is not checked here, because it becomes known only when the operators run.
The device limits that memory while the program runs (``sedge_edge.backends.onnx_runtime``). The time of a
step is not limited.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.operators import (
    ELEMENT_BYTES,
    OPERATORS,
    SCAN,
    Attribute,
    Constant,
    Names,
    Node,
    check_node,
    output_kinds,
)
from sedge_protocol.wire.protobuf import BYTES, FIXED32, VARINT, Field, fields, numbers, text
from sedge_protocol.wire.scan import BODY, body_of, check_body

# Opset 20 is the first with Gelu and is read by every onnxruntime from 1.17 on.
OPSET = 20
# For comparison, the training program of a network with 100 convolutions has 6,000 nodes and 51,000 fields.
MAX_NODES = 25_000
MAX_FIELDS = 250_000
MAX_CONSTANT_BYTES = 64 * 2**20  # the limit for an entire bundle
MAX_ELEMENTS = 2**28  # elements of one input or output; as float32 a gigabyte
MAX_RANK = 16

_INTEGER, _STRING, _FLOAT = (VARINT,), (BYTES,), (FIXED32,)
_INTEGERS, _FLOATS = (VARINT, BYTES), (FIXED32, BYTES)  # either one by one or packed


class Message(NamedTuple):
    """A message type in onnx.proto: its allowed fields and their wire types, and its forbidden fields.

    A field whose name ends in ``*`` may repeat.
    """

    allowed: Mapping[int, tuple[str, tuple[int, ...]]]
    refused: Mapping[int, str] = {}


_MODEL = Message(
    {
        1: ("ir_version", _INTEGER),
        2: ("producer_name", _STRING),
        3: ("producer_version", _STRING),
        7: ("graph", _STRING),
        8: ("opset_import*", _STRING),
    },
    {14: "metadata_props", 20: "training_info", 25: "functions"},
)
_OPSET_ID = Message({1: ("domain", _STRING), 2: ("version", _INTEGER)})
_GRAPH = Message(
    {
        1: ("node*", _STRING),
        2: ("name", _STRING),
        5: ("initializer*", _STRING),
        11: ("input*", _STRING),
        12: ("output*", _STRING),
    },
    {15: "sparse_initializer", 16: "metadata_props"},
)
_NODE = Message(
    {
        1: ("input*", _STRING),
        2: ("output*", _STRING),
        3: ("name", _STRING),
        4: ("op_type", _STRING),
        5: ("attribute*", _STRING),
        7: ("domain", _STRING),
    },
    {8: "overload", 9: "metadata_props"},
)
_ATTRIBUTE = Message(
    {
        1: ("name", _STRING),
        2: ("f", _FLOAT),
        3: ("i", _INTEGER),
        4: ("s", _STRING),
        5: ("t", _STRING),
        6: ("g", _STRING),
        7: ("floats*", _FLOATS),
        8: ("ints*", _INTEGER),
        20: ("type", _INTEGER),
    },
    {10: "tensors", 11: "graphs", 22: "sparse_tensor", 23: "sparse_tensors"},
)
_TENSOR = Message(
    {
        1: ("dims*", _INTEGERS),
        2: ("data_type", _INTEGER),
        4: ("float_data", _STRING),
        5: ("int32_data", _STRING),
        7: ("int64_data", _STRING),
        8: ("name", _STRING),
        9: ("raw_data", _STRING),
    },
    {3: "segment", 13: "external_data", 14: "data_location"},
)
_VALUE = Message({1: ("name", _STRING), 2: ("type", _STRING)})
_TYPE = Message({1: ("tensor_type", _STRING)})
_TENSOR_TYPE = Message({1: ("elem_type", _INTEGER), 2: ("shape", _STRING)})
_SHAPE = Message({1: ("dim*", _STRING)})
_DIMENSION = Message({1: ("dim_value", _INTEGER)}, {2: "dim_param"})
MESSAGES: Mapping[str, Message] = {
    "ModelProto": _MODEL,
    "OperatorSetIdProto": _OPSET_ID,
    "GraphProto": _GRAPH,
    "NodeProto": _NODE,
    "AttributeProto": _ATTRIBUTE,
    "TensorProto": _TENSOR,
    "ValueInfoProto": _VALUE,
    "TypeProto": _TYPE,
    "TypeProto.Tensor": _TENSOR_TYPE,
    "TensorShapeProto": _SHAPE,
    "Dimension": _DIMENSION,
}


def check_program(data: bytes) -> None:
    """Check an ONNX program before a runtime reads it. Raises ``CodecError`` if it is not allowed."""
    _Check().model(memoryview(data))


class _Check:
    """Checks one program, and counts everything that has a limit."""

    def __init__(self) -> None:
        self._fields = self._nodes = self._constant_bytes = 0

    def model(self, data: memoryview) -> None:
        missing = {"graph", "opset_import"}
        for name, field, where in self._read(_MODEL, data, "model"):
            missing.discard(name)
            if name == "graph":
                self._graph(field.data, where)
            elif name == "opset_import":
                self._opset(field.data, where)
        if missing:
            raise CodecError(f"model: no {min(missing)}")

    def _opset(self, data: memoryview, where: str) -> None:
        held = self._held(_OPSET_ID, data, where)
        domain, version = text(held["domain"].data), held["version"].value
        if domain or version != OPSET:
            raise CodecError(f"{where}: {domain!r} {version}, expected '' {OPSET}")

    def _graph(self, data: memoryview, where: str, outer: Names | None = None) -> Names:
        names = Names(outer)
        nodes: list[Node] = []
        for name, field, place in self._read(_GRAPH, data, where):
            if name == "node":
                nodes.append(self._node(field.data, place))
            elif name == "initializer":
                label, constant = self._constant(field.data, place)
                names.define(label, constant.kind, place, constant)
            elif name == "input":
                label, kind = self._declared(field.data, place)
                names.define(label, kind, place)
                names.inputs.append(label)
            elif name == "output":
                names.outputs.append(self._declared(field.data, place)[0])
        for node in nodes:
            kinds = check_node(node, names)
            made = (
                self._scanned(node, kinds, names)
                if node.operator == SCAN
                else output_kinds(node, kinds)
            )
            if len(node.outputs) > len(made):
                raise CodecError(f"{node.where}: expected at most {len(made)} outputs")
            for label, kind in zip(node.outputs, made, strict=False):
                names.define(label, kind, node.where)
        return names

    def _scanned(self, node: Node, kinds: list[int], names: Names) -> list[int]:
        """Return the element types of a Scan's outputs."""
        if names.outer is not None:
            raise CodecError(f"{node.where}: a Scan within a Scan is not allowed")
        where = f"{node.where}.body"
        body = self._graph(body_of(node, names), where, names)
        check_body(body, kinds, where)
        return [body.kind(name, where) for name in body.outputs]

    def _node(self, data: memoryview, where: str) -> Node:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise CodecError(f"{where}: expected at most {MAX_NODES} nodes")
        operator = domain = ""
        inputs: list[bytes] = []
        outputs: list[bytes] = []
        attributes: list[Attribute] = []
        for name, field, place in self._read(_NODE, data, where):
            if name == "op_type":
                operator = text(field.data)
            elif name == "domain":
                domain = text(field.data)
            elif name == "input":
                inputs.append(bytes(field.data))
            elif name == "output":
                outputs.append(bytes(field.data))
            elif name == "attribute":
                attributes.append(self._attribute(field.data, place))
        if domain or operator not in OPERATORS:
            found = f"{domain}.{operator}" if domain else operator
            raise CodecError(f"{where}: operator {found!r} is not allowed in a program")
        for index, attribute in enumerate(attributes):
            if "g" in attribute.fields and (operator, attribute.name) != (SCAN, BODY):
                raise CodecError(f"{where}.attribute[{index}]: g is not allowed in a program")
        return Node(where, operator, inputs, outputs, attributes)

    def _attribute(self, data: memoryview, where: str) -> Attribute:
        held: dict[str, Field] = {}
        whole: list[int] = []
        kind = 0
        for name, field, place in self._read(_ATTRIBUTE, data, where):
            held[name] = field
            if name == "t":
                kind = self._constant(field.data, place)[1].kind
            elif name in ("i", "ints"):
                whole.append(field.value)
        signed = [number - 2**64 if number >= 2**63 else number for number in whole]
        return Attribute(text(held.get("name", _NOTHING).data), signed, kind, held)

    def _constant(self, data: memoryview, where: str) -> tuple[bytes, Constant]:
        """Return a constant tensor and its name."""
        label = b""
        dims: list[int] = []
        kind = 0
        stored: dict[str, memoryview] = {}
        for name, field, place in self._read(_TENSOR, data, where):
            if name == "dims":
                dims += [field.value] if field.wire == VARINT else _numbers(field.data, place)
                _require_rank(dims, place)
            elif name == "data_type":
                kind = field.value
            elif name == "name":
                label = bytes(field.data)
            else:
                stored[name] = field.data
        self._constant_bytes += math.prod(dims) * _element_bytes(kind, where)
        if self._constant_bytes > MAX_CONSTANT_BYTES:
            raise CodecError(f"{where}: expected at most {MAX_CONSTANT_BYTES} bytes of constants")
        return label, Constant(kind, dims, stored.get("raw_data") if len(stored) == 1 else None)

    def _declared(self, data: memoryview, where: str) -> tuple[bytes, int]:
        """Return the name and element type of an input or output, which must be a tensor of fixed shape."""
        value = self._held(_VALUE, data, where)
        tensor = self._held(_TYPE, value["type"].data, where)["tensor_type"]
        found = self._held(_TENSOR_TYPE, tensor.data, where)
        _element_bytes(found["elem_type"].value, where)
        dims: list[int] = []
        for _, dim, place in self._read(_SHAPE, found["shape"].data, where):
            extent = self._held(_DIMENSION, dim.data, place)
            if "dim_value" not in extent:
                raise CodecError(f"{place}: no dim_value, expected a fixed shape")
            dims.append(extent["dim_value"].value)
            _require_rank(dims, place)
        if math.prod(dims) > MAX_ELEMENTS:
            raise CodecError(f"{where}: shape {dims}, expected at most {MAX_ELEMENTS} elements")
        return bytes(value["name"].data), found["elem_type"].value

    def _held(self, message: Message, data: memoryview, where: str) -> dict[str, Field]:
        """Return the fields of a message, keyed by name.

        No field may repeat; a missing one reads as empty.
        """
        found: dict[str, Field] = defaultdict(lambda: _NOTHING)
        found.update((name, field) for name, field, _ in self._read(message, data, where))
        return found

    def _read(
        self, message: Message, data: memoryview, where: str
    ) -> Iterator[tuple[str, Field, str]]:
        """Yield every field of a message, with its name and its location for error messages."""
        counts: dict[str, int] = {}
        for field in _fields(data, where):
            self._fields += 1
            if self._fields > MAX_FIELDS:
                raise CodecError(f"{where}: expected at most {MAX_FIELDS} fields in all")
            if field.number not in message.allowed:
                name = message.refused.get(field.number, f"field {field.number}")
                raise CodecError(f"{where}: {name} is not allowed in a program")
            label, wires = message.allowed[field.number]
            name = label.removesuffix("*")
            if field.wire not in wires:
                raise CodecError(f"{where}.{name}: wire type {field.wire}, expected {wires}")
            index = counts[name] = counts.get(name, -1) + 1
            if index and name == label:
                raise CodecError(f"{where}: {name} appears twice")
            yield name, field, f"{where}.{name}" if name == label else f"{where}.{name}[{index}]"


_NOTHING = Field(0, VARINT, 0, memoryview(b""))


def _fields(data: memoryview, where: str) -> Iterator[Field]:
    try:
        yield from fields(data)
    except CodecError as exc:
        raise CodecError(f"{where}: not a protocol buffer: {exc}") from exc


def _numbers(packed: memoryview, where: str) -> list[int]:
    """Return the numbers in a packed field, stopping after one more than ``MAX_RANK``."""
    try:
        return list(islice(numbers(packed), MAX_RANK + 1))
    except CodecError as exc:
        raise CodecError(f"{where}: not a protocol buffer: {exc}") from exc


def _element_bytes(kind: int, where: str) -> int:
    if kind not in ELEMENT_BYTES:
        raise CodecError(f"{where}: element type {kind}, expected one of {[*ELEMENT_BYTES]}")
    return ELEMENT_BYTES[kind]


def _require_rank(dims: list[int], where: str) -> None:
    if len(dims) > MAX_RANK:
        raise CodecError(f"{where}: expected at most {MAX_RANK} dimensions")
