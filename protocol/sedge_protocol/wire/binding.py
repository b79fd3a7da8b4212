"""Turns an input of an ONNX program into a constant.

onnxruntime can then do at load time whatever depends on that value alone, such as splitting theta into
tensors. The field numbers come from onnx.proto.
"""

from collections.abc import Mapping

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle
from sedge_protocol.wire.programs import FROZEN
from sedge_protocol.wire.protobuf import BYTES, Field, again, field, fields, nested

_GRAPH, _METADATA = 7, 14  # fields of ModelProto
_KEY, _VALUE = 1, 2  # fields of StringStringEntryProto
_INITIALIZER, _INPUT = 5, 11  # fields of GraphProto
_INPUT_NAME = 1  # fields of ValueInfoProto
_DIMS, _DATA_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9  # fields of TensorProto
_FLOAT = 1


def bound_predict(bundle: Bundle, theta: Theta) -> bytes:
    """Return the bundle's ONNX program ``predict`` with theta (n,) and the frozen values built in.

    It maps x to logits. Raises ``CodecError`` for a bundle without such a program.
    """
    program = bound(bundle.program("predict", ONNXRUNTIME), "theta", theta)
    return program if bundle.frozen is None else bound(program, FROZEN, bundle.frozen)


def bound(program: bytes, name: str, values: Theta) -> bytes:
    """Return the program with its input ``name`` (n,) replaced by a constant.

    Raises ``CodecError`` for a program that has no such input.
    """
    model = list(fields(memoryview(program)))
    inputs = [_name(one) for graph in model if _is_graph(graph) for one in _inputs(graph)]
    if inputs.count(name) != 1:
        raise CodecError(f"program: inputs {', '.join(inputs)}, expected one named {name}")
    tensor = [
        field(_DIMS, values.size),
        field(_DATA_TYPE, _FLOAT),
        field(_NAME, name.encode()),
        *nested(_RAW_DATA, [values.astype("<f4", copy=False).data.cast("B")]),
    ]
    made: list[bytes | memoryview] = []
    for part in model:
        if _is_graph(part):
            kept = [
                again(one)
                for one in fields(part.data)
                if one.number != _INPUT or _name(one) != name
            ]
            made += nested(_GRAPH, [*kept, *nested(_INITIALIZER, tensor)])
        else:
            made.append(again(part))
    return b"".join(made)


def described(program: bytes, facts: Mapping[str, str]) -> bytes:
    """Return the program with ``facts`` as its metadata.

    Use this only in files for other programs, because devices reject metadata.
    """
    entries = (
        field(_KEY, key.encode()) + field(_VALUE, text.encode()) for key, text in facts.items()
    )
    return program + b"".join(field(_METADATA, entry) for entry in entries)


def _is_graph(part: Field) -> bool:
    return part.number == _GRAPH and part.wire == BYTES


def _inputs(graph: Field) -> list[Field]:
    return [one for one in fields(graph.data) if one.number == _INPUT]


def _name(value: Field) -> str:
    names = [bytes(one.data) for one in fields(value.data) if one.number == _INPUT_NAME]
    return b"".join(names).decode(errors="replace")
