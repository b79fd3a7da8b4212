"""Generates the comments of a TOML file from the struct that reads it.

The comment lines right above a key are its description; those right below a table's header are the struct's
docstring. Comments that a blank line separates from both belong to the file, as do comments after a value.
A key may itself be commented out: ``# key = value``.
"""

import re
import textwrap
from collections.abc import Iterator, Mapping

import msgspec

from sedge_protocol.host.reference import prose, tables
from sedge_protocol.host.struct_fields import StructField, fields

_HEADER = re.compile(r"\[+([\w.]+)\]+")
_KEY = re.compile(r"(?:# )?(\w+) = ")
_WIDTH = 118

Fields = Mapping[str, StructField]


def commented(text: str, struct: type[msgspec.Struct], *, with_tables: bool) -> str:
    """Regenerate a file's comments.

    Each key's comment goes above its first occurrence. Values do not change.

    If ``with_tables`` is false, nothing is written below the headers. Raises ``KeyError`` for a table that
    the struct does not have.
    """
    out: list[str] = []
    keys = _by_name(struct)
    table, done = struct, set[tuple[type[msgspec.Struct], str]]()
    below_header = False
    for line in text.splitlines():
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            table, keys, words = _at(struct, header[1])
            out += [line, *(_wrapped(words) if with_tables else ())]
            below_header = with_tables
            continue
        if below_header and line.startswith("#") and not _names(key, keys):
            continue  # the old description of the table
        if below_header and line:
            out.append("")
        below_header = False
        if key is not None and key[1] in keys and (table, key[1]) not in done:
            done.add((table, key[1]))
            _drop_comment(out, keys)
            out += _wrapped(keys[key[1]].description)
        out.append(line)
    return "\n".join(out) + "\n"


def keys_of(text: str, struct: type[msgspec.Struct]) -> Iterator[tuple[str, str]]:
    """Yield the table and name of every key in a file, including keys that are commented out."""
    where, keys = "", _by_name(struct)
    for line in text.splitlines():
        if header := _HEADER.match(line):
            where = header[1]
            keys = _at(struct, where)[1]
            if not keys:  # a table whose keys are arbitrary
                parent, _, name = where.rpartition(".")
                yield parent, name
        elif (key := _KEY.match(line)) and key[1] in keys:
            yield where, key[1]


def _by_name(struct: type[msgspec.Struct]) -> Fields:
    return {field.name: field for field in fields(struct)}


def _at(root: type[msgspec.Struct], path: str) -> tuple[type[msgspec.Struct], Fields, str]:
    """Return a table's struct, keys and description.

    A table with arbitrary keys has no struct.
    """
    struct = root
    for name in path.split("."):
        field = _by_name(struct)[name]
        inner = next(tables(field.kind), None)
        if inner is None:
            return struct, {}, field.description
        struct = inner
    return struct, _by_name(struct), prose(struct)


def _names(key: re.Match[str] | None, keys: Fields) -> bool:
    return key is not None and key[1] in keys


def _drop_comment(lines: list[str], keys: Fields) -> None:
    """Remove the comment at the end of ``lines``, back to the last commented-out key."""
    while lines and lines[-1].startswith("#") and not _names(_KEY.match(lines[-1]), keys):
        lines.pop()


def _wrapped(words: str) -> list[str]:
    """Format text as comment lines. Paragraphs are filled, and lists are wrapped item by item."""
    items = [item for part in words.split("\n\n") for item in re.split(r"\n(?=- )", part)]
    lines: list[str] = []
    for item in items:
        lines += textwrap.wrap(
            " ".join(item.split()),
            _WIDTH,
            initial_indent="# ",
            subsequent_indent="#   " if item.startswith("- ") else "# ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines
