"""Writes the structs as Java classes: final fields, and a schema that rejects whatever the struct rejects.

``Struct`` and ``Schema`` of org.sedge.edge.wire are written by hand, and so are the classes in ``BY_HAND``,
which check more than their fields.
"""

import enum
import inspect as source
import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
from msgspec import inspect
from tools.spec import java_state
from tools.spec.structs import STRUCTS, defaults, optional

from sedge_protocol.host.struct_fields import fields
from sedge_protocol.wire import topics
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES, Manifest

BY_HAND = (Manifest, Metric)
WIDTH = 120
MADE = "// Written by `make spec` from the Python code: changes here are lost.\n"
# The limits for which Type.java has a name.
_INTEGERS: Mapping[tuple[int | None, int | None], str] = {
    (0, 2**40): "Type.COUNT",
    (1, 2**31): "Type.ROUND",
}
_BYTES: Mapping[tuple[int | None, int | None], str] = {
    (32, 32): "Type.HASH",
    (16, 16): "Type.NONCE",
}


class JavaType(NamedTuple):
    """A type in Java: its nullable form, the form of a field, and the expression that reads a value."""

    boxed: str
    plain: str
    reader: str


def messages() -> str:
    """Return the text of Messages.java."""
    structs = [struct for struct in STRUCTS if struct not in BY_HAND]
    return f"""{MADE}package org.sedge.edge.wire;

import org.sedge.edge.wire.Schema.Field;

import java.util.Collections;
import java.util.List;
import java.util.Map;

/** The bodies of control frames, the head of an update, and what they hold (WIRE.md, section 5). */
public final class Messages {{
    static final int MAX_INLINE_BYTES = {MAX_INLINE_BYTES};

    private Messages() {{}}

{_indented(class_of(struct, "static ") for struct in structs)}}}
"""


def kept() -> str:
    """Return the text of Kept.java."""
    return f"""{MADE}package org.sedge.edge.jobs;

import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Type;

{class_of(java_state.Kept)}"""


def state() -> str:
    """Return the text of State.java."""
    within = "\n".join(class_of(struct, "static ") for struct in java_state.WITHIN)
    return f"""{MADE}package org.sedge.edge.rounds;

import org.sedge.edge.jobs.Kept;
import org.sedge.edge.wire.Messages.Order;
import org.sedge.edge.wire.Metric;
import org.sedge.edge.wire.Schema;
import org.sedge.edge.wire.Schema.Field;
import org.sedge.edge.wire.Struct;
import org.sedge.edge.wire.Type;

import java.util.Collections;
import java.util.List;
import java.util.Map;

{class_of(java_state.State, inner=within)}"""


def class_of(struct: type[msgspec.Struct], static: str = "", inner: str = "") -> str:
    """Return the Java class of a struct. ``inner`` are the classes nested in it."""
    name, rows = struct.__name__, list(_rows(struct))
    omits = str(struct.__struct_config__.omit_defaults).lower()
    constants = (_statement(row.constant) for row in rows)
    members = (f"{_javadoc(row.description)}public final {row.plain} {row.name};" for row in rows)
    assigned = (f"    {row.name} = {row.key}.in(given);" for row in rows)
    return f"""{_javadoc(_summary(struct))}public {static}final class {name} extends Struct<{name}> {{
{_indented([inner])}    public static final Schema<{name}> SCHEMA = new Schema<{name}>({omits}) {{
        @Override
        protected {name} make(Object[] given) {{
            return new {name}(given);
        }}
    }};
{_indented(constants)}
{_indented(members)}
    private {name}(Object[] given) {{
        super(SCHEMA, given);
{_indented(assigned)}    }}
}}
"""


def _indented(parts: Iterable[str]) -> str:
    return textwrap.indent("".join(f"{part}\n" for part in parts if part), "    ")


class _Row(NamedTuple):
    key: str
    name: str
    plain: str
    constant: str
    description: str


def _rows(struct: type[msgspec.Struct]) -> Iterator[_Row]:
    for field, default in zip(fields(struct), defaults(struct), strict=True):
        key = field.name.upper()
        try:
            made = java_type(field.kind)
            rest = "" if default is msgspec.NODEFAULT else f", {literal(default)}"
        except TypeError as exc:
            raise TypeError(f"{struct.__name__}.{field.name}: {exc}") from exc
        method = "optional" if rest else "required"
        constant = (
            f"public static final Field<{struct.__name__}, {made.boxed}> {key} = "
            f'SCHEMA.{method}("{field.name}", {made.reader}{rest});'
        )
        yield _Row(key, camel(field.name), made.plain, constant, field.description)


def camel(key: str) -> str:
    """Convert a name such as ``num_train`` to Java's ``numTrain``."""
    first, *others = key.split("_")
    return first + "".join(word.capitalize() for word in others)


def java_type(kind: inspect.Type) -> JavaType:
    """Return how Java stores and reads a type.

    Raises ``TypeError`` for a type or a limit that ``Type.java`` cannot check.
    """
    inner = optional(kind)
    if inner is not None:
        boxed, _, reader = java_type(inner)
        return JavaType(boxed, boxed, f"Type.orNil({reader})")
    match kind:
        case inspect.BoolType():
            return JavaType("Boolean", "boolean", "Type.BOOL")
        case inspect.IntType(gt=None, ge=least, lt=None, le=most, multiple_of=None):
            limits = f"{_integer(least, 'MIN')}, {_integer(most, 'MAX')}"
            return JavaType(
                "Long", "long", _INTEGERS.get((least, most)) or f"Type.integer({limits})"
            )
        case inspect.FloatType(multiple_of=None):
            return JavaType("Double", "double", _number(kind))
        case inspect.StrType(pattern=topics.ID_PATTERN, min_length=None, max_length=None):
            return _same("String", "Type.ID")
        case inspect.StrType(pattern=None, min_length=least, max_length=most):
            return _same("String", f"Type.text({_lengths(least, most)})")
        case inspect.BytesType(min_length=least, max_length=most):
            named = _BYTES.get((least, most)) or f"Type.bytes({_lengths(least, most)})"
            return _same("byte[]", named)
        case inspect.LiteralType(values=values):
            return _words(values)
        case inspect.EnumType(cls=cls):
            return _words(member.value for member in cls)
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            boxed, _, reader = java_type(item)
            return _same(f"List<{boxed}>", f"Type.list({reader}, {_lengths(least, most)})")
        case inspect.DictType(
            key_type=inspect.StrType(pattern=None, min_length=None, max_length=None),
            value_type=value,
            min_length=None,
            max_length=int(most),
        ):
            boxed, _, reader = java_type(value)
            return _same(f"Map<String, {boxed}>", f"Type.map({reader}, {most})")
        case inspect.UnionType(types=types):
            readers = ", ".join(java_type(one).reader for one in types)
            return _same("Object", f"Type.either({readers})")
        case inspect.StructType(cls=cls):
            return _same(cls.__name__, f"{cls.__name__}.SCHEMA")
        case _:
            raise TypeError(f"{kind}: Type.java cannot read this type")


def _same(name: str, reader: str) -> JavaType:
    return JavaType(name, name, reader)


def _words(values: Iterable[object]) -> JavaType:
    values = list(values)
    if not all(isinstance(value, str) for value in values):
        raise TypeError(f"one of {values}: Type.java can read only choices of strings")
    return _same("String", f"Type.oneOf({', '.join(map(literal, values))})")


def _integer(limit: int | None, end: str) -> str:
    if limit is None:
        return f"Long.{end}_VALUE"
    if limit == 2**63 - 1:
        return "Long.MAX_VALUE"
    return f"{limit}" if -(2**31) <= limit < 2**31 else f"{limit}L"


def _number(kind: inspect.FloatType) -> str:
    least = kind.ge if kind.gt is None else kind.gt
    if least is None:
        if kind.lt is not None or kind.le is not None:
            raise TypeError(f"{kind}: Type.java cannot read a number with only an upper limit")
        return "Type.FINITE"
    most = "Double.MAX_VALUE" if kind.le is None else literal(float(kind.le))
    if kind.lt is not None:
        most = f"Math.nextDown({literal(float(kind.lt))})"
    return f"Type.number({least:.17g}, {literal(kind.gt is not None)}, {most})"


def _lengths(least: int | None, most: int | None) -> str:
    return f"{least or 0}, {'Integer.MAX_VALUE' if most is None else most}"


def literal(value: object) -> str:
    """Format a value as a Java literal. Raises ``TypeError`` for types that have not been needed yet."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int():
            return f"{value}L"
        case float() if math.isfinite(value):
            return repr(value)
        case enum.Enum():
            return literal(value.value)
        case str():
            return json.dumps(value)
        case b"":
            return "new byte[0]"
        case ():
            return "Collections.emptyList()"
        case (one,):
            return f"Collections.singletonList({literal(one)})"
        case dict() if not value:
            return "Collections.emptyMap()"
        case msgspec.Struct() if value == type(value)():
            return f"{type(value).__name__}.SCHEMA.empty()"
        case _:
            raise TypeError(f"{value!r}: Java has no such value")


def _summary(struct: type[msgspec.Struct]) -> str:
    """Return the first paragraph of a struct's docstring."""
    return " ".join(source.cleandoc(struct.__doc__ or "").partition("\n\n")[0].split())


def _statement(text: str) -> str:
    """Format a declaration, with a line break after the ``=`` if it is too long."""
    if len(text) + 8 <= WIDTH:
        return text
    declared, _, value = text.partition(" = ")
    lines = textwrap.wrap(value, WIDTH - 16, break_long_words=False)
    return "\n        ".join([f"{declared} =", *lines])


def _javadoc(text: str) -> str:
    """Format a Javadoc comment. Code between backticks becomes ``{@code ...}``."""
    if not text:
        return ""
    text = re.sub(r"`+([^`]+)`+", r"{@code \1}", text).replace("<", "&lt;").replace(">", "&gt;")
    if len(text) + 15 <= WIDTH:
        return f"/** {text} */\n"
    lines = textwrap.wrap(text, WIDTH - 11, break_long_words=False, break_on_hyphens=False)
    return "/**\n" + "".join(f" * {line}\n" for line in lines) + " */\n"
