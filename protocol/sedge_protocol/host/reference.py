"""Generates Markdown that documents every key of a configuration file, from the structs that read it.

A key's type, range and default come from the struct itself, its description from the sentence below the
field, and its table's description from the struct's docstring.
"""

import inspect as source
import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from msgspec import inspect

from sedge_protocol.host.struct_fields import StructField, fields

_TABLE: Final = re.compile(r"\A\[+[\w.]+\]+: ")  # how a table's docstring begins
_HEAD: Final = ("| key | type | default | description |", "| --- | --- | --- | --- |")
_ARRAYS: Final = (inspect.ListType, inspect.VarTupleType)


def reference(title: str, struct: type[msgspec.Struct]) -> str:
    """Return the documentation of a configuration file as Markdown: its keys, then its tables.

    The tables follow the order of their keys. The text ends with one newline.
    """
    return "\n".join([f"## {title}", "", *_table(struct, (), {})])


def prose(struct: type[msgspec.Struct]) -> str:
    """Return the struct's docstring, or its base struct's docstring if it adds no keys of its own."""
    base = struct.__base__
    if not struct.__annotations__ and base is not None and issubclass(base, msgspec.Struct):
        return prose(base)
    text = _TABLE.sub("", source.cleandoc(struct.__doc__ or ""))
    return f"{text[:1].upper()}{text[1:]}".replace("``", "`")


def tables(kind: inspect.Type) -> Iterator[type[msgspec.Struct]]:
    """Yield the structs that make up a key's value: one for a table or an array of tables, else none."""
    match kind:
        case inspect.StructType(cls=cls):
            yield cls
        case inspect.UnionType(types=types):
            for part in types:
                yield from tables(part)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from tables(item)
        case inspect.Metadata(type=inner):
            yield from tables(inner)
        case _:
            return


def _table(
    struct: type[msgspec.Struct], path: tuple[str, ...], shown: dict[type[msgspec.Struct], str]
) -> Iterator[str]:
    """Yield the docstring and keys of a struct, then its tables.

    ``path`` is its place in the file. ``shown`` collects the headers of the tables documented so far.
    """
    yield from (prose(struct), "")
    own = fields(struct)
    keys = [field for field in own if not any(tables(field.kind))]
    if keys:
        yield from (*_HEAD, *map(_row, keys), "")
    for field in own:
        for inner in tables(field.kind):
            header = _header(field, path)
            yield from (f"### `{header}`", "")
            if inner in shown:
                yield from (f"The keys of `{shown[inner]}`.", "")
            else:
                shown[inner] = header
                yield from _table(inner, (*path, field.name), shown)


def _header(field: StructField, path: Sequence[str]) -> str:
    name = ".".join((*path, field.name))
    return f"[[{name}]]" if isinstance(field.kind, _ARRAYS) else f"[{name}]"


def _row(field: StructField) -> str:
    default = field.default if field.default in ("", "required") else f"`{field.default}`"
    cells = (f"`{field.name}`", field.type, default, field.description)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
