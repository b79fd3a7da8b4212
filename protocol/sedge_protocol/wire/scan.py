"""Scan, the only ONNX operator with an inner graph that programs may use: a loop of fixed length.

ONNX takes the number of steps from the shapes of the sequences, which are known only when the program runs.
So the last sequence must be a constant of the program: its first extent is the number of steps, and ONNX
requires the same extent of the other sequences. The body may use the names of the graph around it. It may
not contain another Scan, so this suffices to bound its time (rule B15).
"""

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.operators import Names, Node
from sedge_protocol.wire.protobuf import text

BODY, SEQUENCES = "body", "num_scan_inputs"
MAX_STEPS = 2**14  # roughly one second of audio samples


def body_of(node: Node, names: Names) -> memoryview:
    """Return the body of a Scan. Raises ``CodecError`` if the Scan is not allowed.

    ``names`` are the names that the graph around it defines.
    """
    constant = names.constant(node.inputs[-1])
    if constant is None or not constant.extents:
        raise CodecError(f"{node.where}: the last input of a Scan must be a constant")
    if not 1 <= constant.extents[0] <= MAX_STEPS:
        raise CodecError(f"{node.where}: {constant.extents[0]} steps, expected 1 to {MAX_STEPS}")
    held = {attribute.name: attribute for attribute in node.attributes}
    sequences = held[SEQUENCES].numbers[0] if SEQUENCES in held else 0
    if not 1 <= sequences <= len(node.inputs) or BODY not in held or "g" not in held[BODY].fields:
        raise CodecError(f"{node.where}: expected a body, and 1 to {len(node.inputs)} sequences")
    return held[BODY].fields["g"].data


def check_body(body: Names, kinds: list[int], where: str) -> None:
    """Raise ``CodecError`` unless a body's inputs have the element types ``kinds``, in this order."""
    if len(body.inputs) != len(kinds):
        raise CodecError(f"{where}: {len(body.inputs)} inputs, expected {len(kinds)}")
    for name, kind in zip(body.inputs, kinds, strict=True):
        if body.kind(name, where) != kind:
            found = f"element type {body.kind(name, where)}"
            raise CodecError(f"{where}: input {text(name)!r} has {found}, expected {kind}")
