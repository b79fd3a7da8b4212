"""A second reader of ONNX programs, from B13, B15 and B16: fields, limits, loops, what nodes are given."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import sedge_protocol

PAGE = Path(sedge_protocol.__file__).parents[1] / "spec" / "bundle.md"
TEXT = PAGE.read_text()
OPERATORS = set(re.findall(r"`(\w+)`", TEXT[TEXT.index("The operators:") :].split("\n\n")[0]))
BYTES = {1: 4, 7: 8, 9: 1}  # of an element of float32, int64 and bool
# Field: the message in it, or what it holds; * where it may repeat.
Table = dict[int, str]
MODEL: Table = {1: "number", 2: "text", 3: "text", 7: "graph", 8: "opset*"}
OPSET: Table = {1: "text", 2: "number"}
GRAPH: Table = {1: "node*", 2: "text", 5: "tensor*", 11: "value*", 12: "value*"}
NODE: Table = {1: "text*", 2: "text*", 3: "text", 4: "text", 5: "attribute*", 7: "text"}
ATTRIBUTE: Table = {
    1: "text", 2: "f", 3: "number", 4: "text", 5: "tensor", 6: "graph", 7: "f*", 8: "number*",
    20: "number",
}  # fmt: skip
TENSOR: Table = {1: "number*", 2: "number", 4: "text", 5: "text", 7: "text", 8: "text", 9: "text"}
VALUE: Table = {1: "text", 2: "type"}
TYPE: Table = {1: "tensor_type"}
TENSOR_TYPE: Table = {1: "number", 2: "shape"}
SHAPE: Table = {1: "dim*"}
DIM: Table = {1: "number"}


# Of B16, the tables: an attribute's field, its least and largest number; the first constant of the inputs.
ROWS = re.findall(r"^\| ((?:`\w+`,? ?)+) \| (ints|i) \| (-?\d+) to (\d+) \|$", TEXT, re.MULTILINE)
BOUNDS = {
    name.encode(): (8 if field == "ints" else 3, int(low), int(high))
    for names, field, low, high in ROWS
    for name in re.findall(r"\w+", names)
}
OTHERS = {b"alpha", b"approximate", b"body", b"epsilon", b"reduction", b"value"}
CONSTANT = {
    name.encode(): int(index)
    for names, index in re.findall(r"^\| ((?:`\w+`,? ?)+) \| from input (\d)", TEXT, re.MULTILINE)
    for name in re.findall(r"\w+", names)
}
BOOLEAN = {
    b"And", b"Equal", b"Greater", b"GreaterOrEqual", b"Less", b"LessOrEqual", b"Not", b"Or",
}  # fmt: skip
Attribute = list[tuple[int, int | bytes]]


class Node(NamedTuple):
    """A node's parts; attributes by name."""

    operator: bytes
    read: list[bytes]
    made: list[bytes]
    attributes: dict[bytes, Attribute]


class Constant(NamedTuple):
    """A tensor's name, element type, extents, and where its elements are."""

    name: bytes
    kind: int
    dims: list[int]
    data: dict[int, bytes]


class Names:
    """The element type of each name, and the constants."""

    def __init__(self, around: "Names | None") -> None:
        self.kinds: dict[bytes, int] = {} if around is None else dict(around.kinds)
        self.constants: dict[bytes, Constant] = {} if around is None else dict(around.constants)

    def define(self, name: bytes, kind: int) -> None:
        must(name != b"", "a name without text")
        must(name not in self.kinds, "a name defined again")
        must(kind in BYTES, "element type")
        self.kinds[name] = kind


class Broken(Exception):
    """The named rule is broken."""


def must(rule: bool, name: str) -> None:
    """Raise ``Broken`` unless the rule is kept."""
    if not rule:
        raise Broken(name)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        must(at < len(data) and shift < 70, "varint")
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data: bytes, table: Table) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message, each of which its table must have."""
    at, seen = 0, set[int]()
    while at < len(data):
        tag, at = varint(data, at)
        number, wire = tag >> 3, tag & 7
        must(number in table, "a field that is not in the table")
        must(number not in seen or table[number].endswith("*"), "a field twice")
        seen.add(number)
        if wire == 0:
            value, at = varint(data, at)
            yield number, value
            continue
        length, at = (4, at) if wire == 5 else varint(data, at)
        must(wire in (2, 5) and at + length <= len(data), "wire")
        yield number, data[at : at + length]
        at += length


def one(data: bytes, table: Table) -> dict[int, int | bytes]:
    return dict(fields(data, table))


def inside(value: int | bytes) -> bytes:
    must(isinstance(value, bytes), "a message")
    assert isinstance(value, bytes)
    return value


def program(data: bytes) -> bool:
    """B13: whether a program is taken."""
    found = {number for number, _ in fields(data, MODEL)}
    must({7, 8} <= found, "graph and opset")
    for number, value in fields(data, MODEL):
        if number == 8:
            opset = one(inside(value), OPSET)
            must(opset.get(1, b"") == b"" and opset.get(2) == 20, "opset")
        elif number == 7:
            graph(inside(value))
    return True


def graph(data: bytes, around: Names | None = None, given: list[int] | None = None) -> list[int]:
    """The element types of its outputs; ``given`` are those of a body's inputs."""
    here = Names(around)
    nodes, tensors = list[Node](), list[Constant]()
    takes, gives = list[int](), list[bytes]()
    for number, value in fields(data, GRAPH):
        if number == 1:
            nodes.append(node(inside(value), tensors))
        elif number == 5:
            constant = tensor(inside(value))
            tensors.append(constant)
            here.define(constant.name, constant.kind)
            here.constants[constant.name] = constant
        elif number == 11:
            name, kind = declared(inside(value))
            takes.append(kind)
            here.define(name, kind)
        elif number == 12:
            gives.append(declared(inside(value))[0])
    constants = sum(math.prod(one.dims) * BYTES[one.kind] for one in tensors)
    must(len(nodes) <= 25_000 and constants <= 64 * 2**20, "limits")
    if given is not None:
        must(all(one.operator != b"Scan" for one in nodes), "a Scan within a Scan")
        must(len(takes) == len(given), "the body's inputs")
        must(takes == given, "the types of the body's inputs")
    for one in nodes:
        kinds = types(one, here)
        must(len(kinds) >= len(one.made), "outputs")
        for name, kind in zip(one.made, kinds, strict=False):
            here.define(name, kind)
    return [here.kinds[name] for name in gives] if given is not None else []


def types(one: Node, here: Names) -> list[int]:
    """B16: the element types of a node's outputs."""
    for name, held in one.attributes.items():
        if name in OTHERS:
            continue
        field, low, high = BOUNDS[name]
        numbers = [value for number, value in held if number not in (1, 20)]
        must({number for number, _ in held} - {1, 20} == {field}, "an attribute's field")
        must(all(isinstance(value, int) for value in numbers), "one by one")
        signed = [int(value) - 2**64 * (int(value) >= 2**63) for value in numbers]
        must(all(low <= value <= high for value in signed), "an attribute's bounds")
    bias = one.operator in (b"Conv", b"ConvTranspose")
    read = [name for at, name in enumerate(one.read) if name or not (bias and at == 2)]
    must(all(name in here.kinds for name in read), "a name from nowhere")
    must(len(read) > 0, "inputs")
    kinds = [here.kinds[name] for name in read]
    first = CONSTANT.get(one.operator, len(one.read))
    must(all(name in here.constants for name in one.read[first:]), "a size")
    if one.operator in (b"Div", b"Mod") and kinds != [1, 1]:
        by = here.constants[one.read[-1]]
        must(by.kind == 7 and list(by.data) == [9], "a divisor")
        must(len(by.data[9]) % 8 == 0, "whole numbers")
        numbers = [by.data[9][at : at + 8] for at in range(0, len(by.data[9]), 8)]
        must(bytes(8) not in numbers, "a division by 0")
        must(b"\xff" * 8 not in numbers, "a division by -1")
    if one.operator == b"Scan":
        return loop(one, kinds, here)
    made = [kinds[0]] * max(1, len(one.made))
    if one.operator == b"Where":
        made = [kinds[-1]] * len(made)
    elif one.operator in BOOLEAN:
        made = [9] * len(made)
    elif one.operator == b"ArgMax":
        made = [7] * len(made)
    elif one.operator == b"MaxPool":
        made = [kinds[0], *[7] * len(made)]
    elif one.operator == b"Cast":
        made = [int(dict(one.attributes[b"to"])[3])] * len(made)
    elif one.operator == b"ConstantOfShape":
        value = dict(one.attributes.get(b"value", []))
        made = [tensor(inside(value[5])).kind if value else 1] * len(made)
    return made


def loop(one: Node, kinds: list[int], here: Names) -> list[int]:
    """B15."""
    last = one.read[-1] if one.read else b""
    must(bool(here.constants[last].dims), "a Scan's end")
    must(1 <= here.constants[last].dims[0] <= 16384, "a Scan's steps")
    sequences = dict(one.attributes[b"num_scan_inputs"])[3]
    must(isinstance(sequences, int) and 1 <= sequences <= len(one.read), "a sequence")
    return graph(inside(dict(one.attributes[b"body"])[6]), here, kinds)


def node(data: bytes, tensors: list[Constant]) -> Node:
    """A node; the tensors of its attributes are entered."""
    operator, domain = b"", b""
    read, made = list[bytes](), list[bytes]()
    attributes: dict[bytes, Attribute] = {}
    for number, value in fields(data, NODE):
        if number == 1:
            read.append(inside(value))
        elif number == 2:
            made.append(inside(value))
        elif number == 4:
            operator = inside(value)
        elif number == 7:
            domain = inside(value)
        elif number == 5:
            held = list(fields(inside(value), ATTRIBUTE))
            name = inside(dict(held).get(1, b""))
            must(name not in attributes, "an attribute twice")
            attributes[name] = held
            tensors += [tensor(inside(one)) for at, one in held if at == 5]
    must(operator.decode() in OPERATORS and domain == b"", "operator")
    graphs = {name for name, held in attributes.items() if any(at == 6 for at, _ in held)}
    must(operator == b"Scan" or not graphs, "a subgraph")
    must(graphs <= {b"body"}, "a graph elsewhere")
    return Node(operator, read, made, attributes)


def tensor(data: bytes) -> Constant:
    """A constant."""
    dims, kind, name = list[int](), 0, b""
    stored: dict[int, bytes] = {}
    for number, value in fields(data, TENSOR):
        if number == 1 and isinstance(value, int):
            dims.append(value)
        elif number == 1:
            packed, at = inside(value), 0
            while at < len(packed):
                extent, at = varint(packed, at)
                dims.append(extent)
        elif number == 2 and isinstance(value, int):
            kind = value
        elif number == 8:
            name = inside(value)
        elif number in (4, 5, 7, 9):
            stored[number] = inside(value)
    must(kind in BYTES, "element type")
    must(len(dims) <= 16, "rank")
    return Constant(name, kind, dims, stored)


def declared(data: bytes) -> tuple[bytes, int]:
    """The name and the element type of an input or output, which has a fixed shape."""
    value = one(data, VALUE)
    found = one(inside(one(inside(value[2]), TYPE)[1]), TENSOR_TYPE)
    must(found.get(1) in BYTES, "element type")
    dims = [one(inside(dim), DIM).get(1) for _, dim in fields(inside(found[2]), SHAPE)]
    must(None not in dims, "a fixed shape")
    must(len(dims) <= 16, "rank")
    must(math.prod(dim for dim in dims if isinstance(dim, int)) <= 2**28, "elements")
    return inside(value.get(1, b"")), int(found[1])
