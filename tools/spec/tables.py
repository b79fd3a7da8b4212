"""Writes the tables of the specification: key, type and limits, default and meaning of a struct's fields.

A page has a table between the marks ``<!-- make spec: Hello -->`` and ``<!-- end -->``. The text around it
is written by hand.
"""

import enum
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import msgspec
from msgspec import inspect
from tools.spec import onnx
from tools.spec.structs import STRUCTS, defaults, optional

from sedge_protocol.host.struct_fields import fields
from sedge_protocol.wire.messages import OrderName
from sedge_protocol.wire.reasons import REASONS
from sedge_protocol.wire.topics import ID_PATTERN

HEAD = ("| key | type and limit | default | meaning |", "|---|---|---|---|")
_TABLE = re.compile(r"(<!-- make spec: (\w+) -->\n).*?(<!-- end -->)", re.S)
# Rule 5.2 defines these type names.
_INTEGERS: Mapping[tuple[int | None, int | None], str] = {(0, 2**40): "count", (1, 2**31): "round"}
# These structs have no table, because their keys are in the table of Order.
_UNTOLD = (OrderName,)


def pages(texts: Iterable[str]) -> list[str]:
    """Fill in the tables of all pages.

    Raises ``ValueError`` unless every table's mark occurs exactly once.
    """
    made = [page(text) for text in texts]
    found = Counter(mark[2] for text in made for mark in _TABLE.finditer(text))
    for name in _tables():
        if found[name] != 1:
            raise ValueError(
                f"<!-- make spec: {name} --> … <!-- end --> occurs {found[name]} times, expected once"
            )
    return made


def page(text: str) -> str:
    """Fill in the tables that a page's marks name.

    Raises ``KeyError`` if a mark names neither a struct nor another table.
    """
    made = _tables()
    return _TABLE.sub(lambda mark: f"{mark[1]}{made[mark[2]]()}{mark[3]}", text)


def _tables() -> dict[str, Callable[[], str]]:
    """Return the functions that make the tables, by the tables' names."""
    structs = {
        struct.__name__: partial(table, struct) for struct in STRUCTS if struct not in _UNTOLD
    }
    return {**structs, **onnx.TABLES, "reasons": reasons}


def table(struct: type[msgspec.Struct]) -> str:
    """Return the table of a struct."""
    rows = (
        _row(f"`{field.name}`", words(field.kind), default_words(default), field.description)
        for field, default in zip(fields(struct), defaults(struct), strict=True)
    )
    return "\n".join([*HEAD, *rows, ""])


def _row(*cells: str) -> str:
    return "|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|"


def reasons() -> str:
    """Return the table of the reason codes."""
    rows = [
        _row(kind, f"`{code}`", meaning)
        for kind, codes in REASONS.items()
        for code, meaning in codes.items()
    ]
    return "\n".join(["| kind | reason | meaning |", "|---|---|---|", *rows, ""])


def words(kind: inspect.Type) -> str:
    """Describe a type and its limits, such as ``at most 32 Steps``."""
    inner = optional(kind)
    if inner is not None:
        text = words(inner)
        return f"{text}, or nil" if " " in text else f"{text} or nil"
    match kind:
        case inspect.BoolType():
            return "bool"
        case inspect.IntType(ge=least, le=most):
            return _INTEGERS.get((least, most)) or f"integer, {_whole(least)} to {_whole(most)}"
        case inspect.FloatType():
            return ", ".join(["number", *_range(kind)])
        case inspect.StrType(pattern=pattern, max_length=most) if pattern in (None, ID_PATTERN):
            return "id" if pattern else f"text, {most}"
        case inspect.BytesType(min_length=least, max_length=most):
            exactly = {32: "hash", 104: "statement"}.get(most or 0, f"{most} bytes")
            return exactly if least == most else f"bytes, {f'{least} to ' if least else ''}{most}"
        case inspect.LiteralType(values=values):
            return _one_of(values)
        case inspect.EnumType(cls=cls):
            return _one_of(member.value for member in cls)
        case inspect.VarTupleType(item_type=item, min_length=least, max_length=most):
            return f"{f'{least} to' if least else 'at most'} {most} {_plural(words(item))}"
        case inspect.DictType(value_type=value, max_length=most):
            return f"at most {most} by name, each {words(value)}"
        case inspect.UnionType(types=types):
            return " or ".join(map(words, types))
        case inspect.StructType(cls=cls):
            return cls.__name__
        case _:
            raise TypeError(f"{kind}: no words for this type")


def _range(kind: inspect.FloatType) -> list[str]:
    """Describe the limits of a number: ``above 0, at most 1``, ``0 to below 1``, ``from 0``."""
    below = kind.lt is not None
    most = kind.lt if below else kind.le
    if kind.gt is not None:
        return [f"above {_whole(kind.gt)}", f"{'below' if below else 'at most'} {_whole(most)}"]
    if kind.ge is not None and most is not None:
        return [f"{_whole(kind.ge)} to {'below ' if below else ''}{_whole(most)}"]
    return [] if kind.ge is None else [f"from {_whole(kind.ge)}"]


def _whole(number: float | None) -> str:
    """Format a limit, which must be an integer. A large limit is written as a power of two."""
    if number is None or number != int(number):
        raise ValueError(f"a limit of {number}, expected a whole number")
    value = int(number)
    for power, rest in ((value, ""), (value + 1, " - 1")):
        if value > 2**20 and power & (power - 1) == 0:
            return f"2^{power.bit_length() - 1}{rest}"
    return str(value)


def _one_of(values: Iterable[object]) -> str:
    *others, last = (f"`{value}`" for value in values)
    return f"{', '.join(others)} or {last}"


def _plural(text: str) -> str:
    """Form the plural, such as ``strings of 64`` from ``text, 64``, or ``integers`` from ``integer``."""
    if text.startswith("`"):
        return f"of {text}"
    noun, _, limits = text.partition(", ")
    if noun == "text":
        return f"strings{' of ' if limits else ''}{limits}"
    return f"{noun}{'es' if noun.endswith('h') else 's'}{', ' if limits else ''}{limits}"


def default_words(value: object) -> str:
    """Format a default for a table."""
    match value:
        case msgspec.NODEFAULT | ():
            return "" if value is msgspec.NODEFAULT else "none"
        case dict() if not value:
            return "none"
        case None:
            return "nil"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case enum.Enum():
            return f"`{value.value}`"
        case bytes() | "":
            return "empty"
        case str():
            return f"`{value}`"
        case tuple():
            return f"[{', '.join(map(str, value))}]"
        case msgspec.Struct():
            return "its defaults"
        case _:
            return str(value)
