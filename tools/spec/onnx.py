"""Writes what ONNX programs may contain, for Java and for bundle.md.

The checks themselves are a security boundary and are written by hand in each language.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping

from tools.spec.java import MADE

from sedge_protocol.wire import operators, program, scan
from sedge_protocol.wire.program import Message
from sedge_protocol.wire.protobuf import BYTES, FIXED32, VARINT

# The fields of AttributeProto, by number.
_FIELDS = {
    name.removesuffix("*"): number
    for number, (name, _) in program.MESSAGES["AttributeProto"].allowed.items()
}
_WIRES = {VARINT: "v", BYTES: "s", FIXED32: "f"}
# The tables of OnnxTables.java, by the messages' names in onnx.proto.
_JAVA_NAMES = {
    "ModelProto": "MODEL",
    "OperatorSetIdProto": "OPSET_ID",
    "GraphProto": "GRAPH",
    "NodeProto": "NODE",
    "AttributeProto": "ATTRIBUTE",
    "TensorProto": "TENSOR",
    "ValueInfoProto": "VALUE",
    "TypeProto": "TYPE",
    "TypeProto.Tensor": "TENSOR_TYPE",
    "TensorShapeProto": "SHAPE",
    "Dimension": "DIMENSION",
}


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def operator_list() -> str:
    """Return the paragraph that lists every operator."""
    return textwrap.fill(_code(sorted(operators.OPERATORS)), 120) + "\n"


def attributes() -> str:
    """Return the table of the integer attributes."""
    rows = ["| attributes of B16 | field | numbers |", "|---|---|---|"]
    for names, (field, least, most) in _numbers():
        rows.append(f"| {_code(names)} | {field} | {least} to {most} |")
    return "\n".join([*rows, ""])


def _numbers() -> Iterator[tuple[list[str], tuple[str, int, int]]]:
    for value in dict.fromkeys(operators.NUMBERS.values()):
        yield [name for name, other in operators.NUMBERS.items() if other == value], value


def constants() -> str:
    """Return the table of the inputs that must be initializers."""
    rows = ["| operators of B16 | inputs that are initializers |", "|---|---|"]
    rows += (f"| {_code(names)} | from input {first} |" for names, first in _constant_from())
    return "\n".join([*rows, ""])


def _constant_from() -> Iterator[tuple[list[str], int]]:
    for first in sorted(set(operators.CONSTANT_FROM.values())):
        yield [name for name, other in operators.CONSTANT_FROM.items() if other == first], first


def messages() -> str:
    """Return the table of the allowed fields."""
    rows = [
        "| message of `onnx.proto` | fields that it may have; those with * may repeat |",
        "|---|---|",
    ]
    for name, message in program.MESSAGES.items():
        held = ", ".join(f"{number} {field}" for number, (field, _) in message.allowed.items())
        rows.append(f"| `{name}` | {held} |")
    return "\n".join([*rows, ""])


TABLES: Mapping[str, Callable[[], str]] = {
    "operators": operator_list,
    "attributes": attributes,
    "constants": constants,
    "messages": messages,
}


def java() -> str:
    """Return the text of OnnxTables.java."""
    numbers = (
        f'numbers("{" ".join(names)}", {_FIELDS[field]}, {least}, {most});'
        for names, (field, least, most) in _numbers()
    )
    firsts = (f'constants("{" ".join(names)}", {first});' for names, first in _constant_from())
    tables = (
        f'static final Map<Integer, String> {name} = message("{_fields(program.MESSAGES[key])}");'
        for key, name in _JAVA_NAMES.items()
    )
    return f"""{MADE}package org.sedge.edge.wire;

import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;

/** The permitted parts of ONNX programs (spec/bundle.md, B13 to B16), for {{@link OnnxProgram}}. */
final class OnnxTables {{
    static final int OPSET = {program.OPSET};
    static final int MAX_NODES = {program.MAX_NODES};
    static final int MAX_FIELDS = {program.MAX_FIELDS};
    static final long MAX_CONSTANT_BYTES = {program.MAX_CONSTANT_BYTES};
    static final long MAX_ELEMENTS = {program.MAX_ELEMENTS};
    static final int MAX_RANK = {program.MAX_RANK};
    static final int MAX_STEPS = {scan.MAX_STEPS};
    static final long FLOAT = {operators.FLOAT};
    static final long INT64 = {operators.INT64};
    static final long BOOL = {operators.BOOL};

    static final Set<String> OPERATORS = words({_text(operators.OPERATORS)});
    static final Set<String> OTHER_ATTRIBUTES = words({_text(operators.OTHER_ATTRIBUTES)});
    /** The operators whose outputs are bool. */
    static final Set<String> BOOLEAN = words({_text(operators.BOOLEAN)});
    /** An attribute's field number, and its smallest and largest value. */
    static final Map<String, long[]> NUMBERS = new HashMap<>();
    /** The index of the first input of an operator that must be an initializer. */
    static final Map<String, Integer> CONSTANT_FROM = new HashMap<>();

    // Each field that a message may have: its number, then v for a varint, s for bytes, f for a fixed 32.
    // A field with * may repeat, one with + may repeat or be packed.
{_lines(tables, 4)}
    static {{
{_lines(numbers, 8)}{_lines(firsts, 8)}    }}

    private OnnxTables() {{}}

    private static Set<String> words(String text) {{
        return new HashSet<>(Arrays.asList(text.split(" ")));
    }}

    private static void numbers(String names, long field, long low, long high) {{
        for (String name : names.split(" ")) {{
            NUMBERS.put(name, new long[] {{field, low, high}});
        }}
    }}

    private static void constants(String operators, int from) {{
        for (String operator : operators.split(" ")) {{
            CONSTANT_FROM.put(operator, from);
        }}
    }}

    private static Map<Integer, String> message(String fields) {{
        Map<Integer, String> held = new HashMap<>();
        for (String field : fields.split(" ")) {{
            int digits = field.split("[vsf]")[0].length();
            held.put(Integer.valueOf(field.substring(0, digits)), field.substring(digits));
        }}
        return held;
    }}
}}
"""


def _fields(message: Message) -> str:
    """Format a message's fields for the Java table, such as ``1v 7f+``."""
    return " ".join(
        f"{number}{_WIRES[wires[0]]}{'+' if len(wires) > 1 else '*' if name.endswith('*') else ''}"
        for number, (name, wires) in message.allowed.items()
    )


def _text(names: Iterable[str]) -> str:
    """Format sorted names as one Java string, over as many lines as needed."""
    lines = textwrap.wrap(" ".join(sorted(names)), 100)
    if len(lines) == 1:
        return f'"{lines[0]}"'
    return "".join(
        f'\n            {"+ " if at else ""}"{line}{" " if at + 1 < len(lines) else ""}"'
        for at, line in enumerate(lines)
    )


def _lines(statements: Iterable[str], indent: int) -> str:
    return textwrap.indent("".join(f"{statement}\n" for statement in statements), " " * indent)
