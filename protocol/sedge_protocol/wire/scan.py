"""Scan, the one operator of ONNX programs with a graph of its own: a loop of a known number of steps.

ONNX takes the number of steps from the shapes of the sequences, which only the operators determine. So the
last sequence must be a constant of the program: its first extent is the number, and ONNX wants the same of
the others. The body names what the program names around it, and nothing else is needed to bound it, as it
holds no other Scan (rule B15).
"""

from collections import Counter
from typing import NamedTuple

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.protobuf import Field, text

SCAN, BODY, SEQUENCES = "Scan", "body", "num_scan_inputs"
# Without those of axes, a Scan walks along the first axis of each sequence.
ATTRIBUTES = frozenset([BODY, SEQUENCES, "scan_input_directions", "scan_output_directions"])
MAX_STEPS = 2**14  # a second of sound


class Node(NamedTuple):
    """A node, its names and the fields of its attributes; one that is not there reads as empty."""

    where: str
    operator: str
    inputs: list[bytes]
    outputs: list[bytes]
    attributes: list[dict[str, Field]]


class Names:
    """What a graph names: how often each name is defined, its inputs, and the extents of its constants."""

    def __init__(self) -> None:
        self.defined: Counter[bytes] = Counter()
        self.inputs: list[bytes] = []
        self.constants: dict[bytes, list[int]] = {}
        self.nodes: list[Node] = []


def body_of(node: Node, graph: Names) -> memoryview:
    """The body of a Scan in ``graph``. Raises ``CodecError`` for one that is not allowed."""
    held: dict[str, dict[str, Field]] = {}
    for attribute in node.attributes:
        label = text(attribute["name"].data)
        misplaced = "g" in attribute and label != BODY
        if label not in ATTRIBUTES or label in held or misplaced:
            raise CodecError(
                f"{node.where}: attribute {label!r} is not one of a Scan, there twice, or holds a graph"
            )
        held[label] = attribute
    last = node.inputs[-1] if node.inputs else b""
    extents = graph.constants.get(last)
    if not last or not extents or graph.defined[last] != 1:
        raise CodecError(f"{node.where}: the last input of a Scan must be a constant")
    if not 1 <= extents[0] <= MAX_STEPS:
        raise CodecError(f"{node.where}: {extents[0]} steps, expected 1 to {MAX_STEPS}")
    sequences = held[SEQUENCES]["i"].value if SEQUENCES in held else 0
    if not 1 <= sequences <= len(node.inputs) or BODY not in held:
        raise CodecError(f"{node.where}: expected a body, and 1 to {len(node.inputs)} sequences")
    return held[BODY]["g"].data


def check_body(body: Names, node: Node, graph: Names) -> None:
    """Raise ``CodecError`` for a body of ``node`` that does not fit the graph around it."""
    if len(body.inputs) != len(node.inputs):
        raise CodecError(
            f"{node.where}.body: {len(body.inputs)} inputs, expected {len(node.inputs)}"
        )
    for inner in body.nodes:
        if inner.operator == SCAN:
            raise CodecError(f"{inner.where}: a Scan within a Scan is not allowed")
        for name in inner.inputs:
            if name and name not in body.defined and name not in graph.defined:
                raise CodecError(f"{inner.where}: input {text(name)!r} is defined nowhere")
    for name, count in body.defined.items():
        if name in graph.defined or count != 1:
            raise CodecError(f"{node.where}.body: defines {text(name)!r} again")
