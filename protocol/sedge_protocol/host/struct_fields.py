"""Describes a struct's fields: the allowed values, the default, and the documentation of each field.

The documentation is the string below the field in the class, which editors show as its docstring. It is
read from the source file, so it costs a running program nothing.
"""

import ast
import enum
import functools
import inspect as source
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import inspect

_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "",
    inspect.CustomType: "path",
    inspect.BytesType: "bytes",
}
_RANGES: Final = (
    ("gt", "above {}"),
    ("ge", "at least {}"),
    ("lt", "below {}"),
    ("le", "at most {}"),
)


class StructField(NamedTuple):
    """One field: its encoded name and type, followed by texts for its type, default and description.

    ``default`` is in TOML, "" for None, or "required". ``description`` is "" if there is none.
    """

    name: str
    kind: inspect.Type
    type: str
    default: str
    description: str


@functools.cache  # cached, because reading a class's source takes milliseconds
def fields(struct: type[msgspec.Struct]) -> tuple[StructField, ...]:
    """Return the fields of a struct in order, including inherited ones."""
    sentences = dict(_sentences(struct))
    return tuple(
        StructField(
            field.encode_name,
            kind := inspect.type_info(field.type),
            _type(kind),
            _default(field),
            sentences.get(field.name, ""),
        )
        for field in msgspec.structs.fields(struct)
    )


def _sentences(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """Yield each field's name and the string below it, from the class and the classes that it extends."""
    own = (cls for cls in struct.__mro__ if not cls.__module__.startswith(("msgspec", "builtins")))
    for cls in reversed(list(own)):
        tree = ast.parse(textwrap.dedent(source.getsource(cls))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str() as text)),
                ):
                    yield name, " ".join(source.cleandoc(text).split()).replace("``", "`")
                case _:
                    pass


def _type(kind: inspect.Type) -> str:
    """Describe the allowed values in TOML's terms."""
    match kind:
        case inspect.Metadata(type=inner):
            return _type(inner)
        case inspect.IntType() | inspect.FloatType():
            word = "whole number" if isinstance(kind, inspect.IntType) else "number"
            return ", ".join([word, *_limits(kind)])
        case inspect.StrType():
            return "string"
        case inspect.LiteralType(values=values):
            return ", ".join(f"`{_toml(value)}`" for value in values)
        case inspect.EnumType(cls=cls):
            return ", ".join(f"`{_toml(member)}`" for member in cls)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return f"array of: {_type(item)}"
        case inspect.DictType() | inspect.StructType():
            return "table"
        case inspect.UnionType(types=types):
            return " or ".join(filter(None, dict.fromkeys(map(_type, types))))
        case _:
            return _WORDS[type(kind)]


def _limits(kind: inspect.IntType | inspect.FloatType) -> Iterator[str]:
    for name, words in _RANGES:
        limit = getattr(kind, name)
        if limit is not None:
            # Decide by the limit's value, not its type, because typing treats Meta(le=1e6) and
            # Meta(le=1_000_000) as equal.
            is_whole = limit == round(limit) and abs(limit) < 2**63
            yield words.format(f"{round(limit):,}" if is_whole else f"{limit:g}")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return "" if value is None else _toml(value)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case enum.Enum():
            return _toml(value.value if isinstance(value.value, str) else value.name.lower())
        case str() | Path():
            return f'"{value}"'
        case tuple() | list():
            return f"[{', '.join(map(_toml, value))}]"
        case dict():
            return "{}"
        case _:
            return str(value)
