"""A second reader of ONNX programs, from B13 and B15: every field by its table, limits, and loops."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

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


OF_A_SCAN = {b"body", b"num_scan_inputs", b"scan_input_directions", b"scan_output_directions"}


class Names:
    """What a graph defines, its constants' extents, and its nodes: operator, inputs, attributes."""

    def __init__(self) -> None:
        self.defined: list[bytes] = []
        self.inputs = 0
        self.extents: dict[bytes, list[int]] = {}
        self.nodes: list[tuple[bytes, list[bytes], list[dict[int, int | bytes]]]] = []


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


def graph(data: bytes, around: Names | None = None) -> None:
    here = Names()
    constants = nodes = 0
    for number, value in fields(data, GRAPH):
        if number == 1:
            nodes += 1
            constants += node(inside(value), here)
        elif number == 5:
            constants += tensor(inside(value), here)
        elif number in (11, 12):
            name = declared(inside(value))
            if number == 11:
                here.inputs += 1
                here.defined.append(name)
    must(nodes <= 25_000 and constants <= 64 * 2**20, "limits")
    if around is not None:
        must(not any(kind == b"Scan" for kind, _, _ in here.nodes), "a Scan within a Scan")
        must(len(here.defined) == len(set(here.defined)), "a name defined twice")
        must(not set(here.defined) & set(around.defined), "a name defined again")
        known = {b"", *here.defined, *around.defined}
        must(all(known >= set(read) for _, read, _ in here.nodes), "a name from nowhere")
        must(here.inputs == len(around.nodes[-1][1]), "the body's inputs")
        return
    for kind, read, attributes in here.nodes:
        if kind == b"Scan":
            loop(read, attributes, here)


def loop(read: list[bytes], attributes: list[dict[int, int | bytes]], here: Names) -> None:
    """B15."""
    held = {inside(one.get(1, b"")): one for one in attributes}
    must(len(held) == len(attributes) and set(held) <= OF_A_SCAN, "a Scan's attributes")
    must(all(6 not in one for name, one in held.items() if name != b"body"), "a graph elsewhere")
    last = read[-1] if read else b""
    must(here.defined.count(last) == 1 and bool(here.extents.get(last)), "a Scan's end")
    must(1 <= here.extents[last][0] <= 16384, "a Scan's steps")
    sequences = held.get(b"num_scan_inputs", {}).get(3, 0)
    must(isinstance(sequences, int) and 1 <= sequences <= len(read), "a sequence")
    outer = Names()
    outer.defined, outer.nodes = here.defined, [(b"Scan", read, attributes)]
    graph(inside(held[b"body"][6]), outer)


def node(data: bytes, here: Names) -> int:
    """The bytes of a node's constants."""
    constants, operator, domain = 0, b"", b""
    read, attributes = list[bytes](), list[dict[int, int | bytes]]()
    for number, value in fields(data, NODE):
        if number == 1:
            read.append(inside(value))
        elif number == 2 and value:
            here.defined.append(inside(value))
        elif number == 4:
            operator = inside(value)
        elif number == 7:
            domain = inside(value)
        elif number == 5:
            held = dict(fields(inside(value), ATTRIBUTE))
            attributes.append(held)
            constants += tensor(inside(held[5])) if 5 in held else 0
    must(operator.decode() in OPERATORS and domain == b"", "operator")
    must(operator == b"Scan" or all(6 not in one for one in attributes), "a subgraph")
    here.nodes.append((operator, read, attributes))
    return constants


def tensor(data: bytes, here: Names | None = None) -> int:
    """The bytes of a constant, by its dims and its type."""
    dims, kind, name = list[int](), 0, b""
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
    if here is not None:
        here.defined.append(name)
        here.extents[name] = dims
    must(kind in BYTES, "element type")
    must(len(dims) <= 16, "rank")
    return math.prod(dims) * BYTES[kind]


def declared(data: bytes) -> bytes:
    """The name of an input or output, which has a fixed shape."""
    value = one(data, VALUE)
    found = one(inside(one(inside(value[2]), TYPE)[1]), TENSOR_TYPE)
    must(found.get(1) in BYTES, "element type")
    dims = [one(inside(dim), DIM).get(1) for _, dim in fields(inside(found[2]), SHAPE)]
    must(None not in dims, "a fixed shape")
    must(len(dims) <= 16, "rank")
    must(math.prod(dim for dim in dims if isinstance(dim, int)) <= 2**28, "elements")
    return inside(value.get(1, b""))
