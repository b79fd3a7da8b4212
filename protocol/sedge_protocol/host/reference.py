"""Every key of a configuration file, as Markdown made from the structs that read it.

A key's type, range and default come from the struct itself. What it does is said by the docstring below the
field, where there is one, and by the docstring of its table.
"""

import ast
import enum
import inspect as source
import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import inspect

_WORDS: Final[dict[type[inspect.Type], str]] = {
    inspect.BoolType: "true or false",
    inspect.NoneType: "",
    inspect.CustomType: "path",
}
_RANGES: Final = (
    ("gt", "above {}"),
    ("ge", "at least {}"),
    ("lt", "below {}"),
    ("le", "at most {}"),
)
_TABLE: Final = re.compile(r"\A\[+[\w.]+\]+: ")  # how the docstring of a table begins
_HEAD: Final = ("| key | type | default | |", "| --- | --- | --- | --- |")


def reference(title: str, struct: type[msgspec.Struct]) -> str:
    """A file's keys, then each of its tables in the order of their keys; ends with one line feed."""
    return "\n".join([f"## {title}", "", *_table(struct, ())])


def _table(struct: type[msgspec.Struct], path: tuple[str, ...]) -> Iterator[str]:
    """The docstring and the keys of a struct, then its tables. ``path`` is where it stands in the file."""
    yield from _prose(struct)
    fields = msgspec.structs.fields(struct)
    notes = dict(_notes(struct))
    tables: list[tuple[str, type[msgspec.Struct]]] = []
    rows: list[str] = []
    for field in fields:
        kind = inspect.type_info(field.type)
        inner = list(_structs(kind))
        if inner:
            tables += [(_header(field.encode_name, kind, path), cls) for cls in inner]
        else:
            cells = (
                f"`{field.encode_name}`",
                _type(kind),
                _default(field),
                notes.get(field.name, ""),
            )
            rows.append(f"| {' | '.join(map(_cell, cells))} |")
    if rows:
        yield from (*_HEAD, *rows, "")
    for header, cls in tables:
        yield from (f"### `{header}`", "")
        yield from _table(cls, (*path, header.strip("[]").split(".")[-1]))


def _header(key: str, kind: inspect.Type, path: Sequence[str]) -> str:
    name = ".".join((*path, key))
    return f"[[{name}]]" if isinstance(kind, _ARRAYS) else f"[{name}]"


_ARRAYS: Final = (inspect.ListType, inspect.VarTupleType)


def _structs(kind: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    """The structs that a key's value consists of: one for a table, or for an array of tables."""
    match kind:
        case inspect.StructType(cls=cls):
            yield cls
        case inspect.UnionType(types=types):
            for part in types:
                yield from _structs(part)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _structs(item)
        case inspect.Metadata(type=inner):
            yield from _structs(inner)
        case _:
            return


def _prose(struct: type[msgspec.Struct]) -> Iterator[str]:
    """The docstring, or that of the struct that it extends if it adds no key of its own."""
    base = struct.__base__
    if not struct.__annotations__ and base is not None and issubclass(base, msgspec.Struct):
        yield from _prose(base)
        return
    text = _TABLE.sub("", source.cleandoc(struct.__doc__ or ""))
    yield from (f"{text[:1].upper()}{text[1:]}".replace("``", "`"), "")


def _notes(struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """Each field's own docstring, the string that stands below it, in the class or the one it extends."""
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
    """What a value may be, in the words of TOML."""
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
        case inspect.DictType():
            return "table"
        case inspect.UnionType(types=types):
            return " or ".join(filter(None, dict.fromkeys(map(_type, types))))
        case _:
            return _WORDS[type(kind)]


def _limits(kind: inspect.IntType | inspect.FloatType) -> Iterator[str]:
    for name, words in _RANGES:
        limit = getattr(kind, name)
        if limit is not None:
            yield words.format(f"{limit:,}" if isinstance(limit, int) else f"{limit:g}")


def _default(field: msgspec.structs.FieldInfo) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return "" if value is None else f"`{_toml(value)}`"


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


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
