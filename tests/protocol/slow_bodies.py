"""A second reader of section 5: the bodies of control frames, by the tables of the pages."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec

import sedge_protocol

PAGES = Path(sedge_protocol.__file__).parents[1]
NIL = msgspec.Raw(b"\xc0")
# What a cell of "type and limit" means, in words that ``value`` reads.
CELLS = [
    (r"(.*?),? or nil", r"nil \1"),
    (r"at most (\d+) ([^ ,]+?)s\b(.*)", r"list \1 \2\3"),
    (r"1 to (\d+) (integer)s, (.*)", r"some \1 \2 \3"),
    (r"hash", "bytes 32 32"),
    (r"(\d+) bytes", r"bytes \1 \1"),
    (r"bytes, (\d+)", r"bytes 0 \1"),
    (r"number", "number -inf inf"),
    (r"number, from 0", "number 0 inf"),
    (r"number, above (\d+), at most (\d+)", r"above \1 \2"),
    (r"number, above (\d+), below (\d+)", r"inside \1 \2"),
    (r"number, (\d+) to below (\d+)", r"below \1 \2"),
    (r"`.*`", r"one \g<0>"),
    (r"([A-Z]\w+)", r"map \1"),
]


def meaning(cell: str) -> str:
    """A type with its limits, such as "list 16 text 64" for "at most 16 texts of 64"."""
    for pattern, words in CELLS:
        if re.fullmatch(pattern, cell):
            first, _, rest = re.sub(f"^{pattern}$", words, cell).partition(" ")
            if first == "nil":
                return f"nil {meaning(rest)}"
            if first in ("list", "some"):
                size, _, item = rest.partition(" ")
                return f"{first} {size} {meaning(item)}"
            return re.sub("`,? ?(or )?", " ", f"{first} {rest}")
    cell = re.sub(r"2\^(\d+)( - 1)?", lambda m: str(2 ** int(m[1]) - bool(m[2])), cell)
    return re.sub(r", | to | of ", " ", cell).replace("  ", " ")


def tables(page: str) -> dict[str, dict[str, str]]:
    """Every table of a page: its keys, with ? where they have a default, and what they hold."""
    text = (PAGES / page).read_text()
    found: dict[str, dict[str, str]] = {}
    for name, rows in re.findall(r"<!-- make spec: ([A-Z]\w+) -->(.*?)<!-- end -->", text, re.S):
        cells = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\| ", rows, re.M)
        found[name] = {key + "?" * bool(default): meaning(cell) for key, cell, default in cells}
    return found


TABLES = {**tables("WIRE.md"), **tables("spec/extensions.md")}
KINDS = {
    int(number): TABLES[name]
    for number, name in re.findall(
        r"^\| [A-Z]+ \| (\d+) \|.*\| ([A-Z]\w+) \|$", (PAGES / "WIRE.md").read_text(), re.M
    )
}


class Broken(Exception):
    """A value is not what its table says."""


def must(rule: bool, name: str) -> None:
    """Raise ``Broken`` unless the rule is kept."""
    if not rule:
        raise Broken(name)


def body(kind: int, data: bytes) -> dict[str, Any]:
    """5.1: the map of a body; msgspec refuses what is behind it, and text that is read and not UTF-8."""
    return table(data, KINDS[kind])


def table(raw: bytes | msgspec.Raw, keys: dict[str, str]) -> dict[str, Any]:
    """A map whose known keys have the types of a table; the others are ignored."""
    found = msgspec.msgpack.decode(raw, type=dict[str, msgspec.Raw])
    known: dict[str, Any] = {}
    for key, kind in keys.items():
        name = key.rstrip("?")
        if name in found:
            known[name] = value(found[name], kind.split())
        else:
            must(key.endswith("?"), f"{name} is missing")
    if keys is TABLES["Manifest"]:
        size, chunk = known["size"], known["chunk_bytes"]
        must(chunk & (chunk - 1) == 0, "a power of two")
        must(len(known["digests"]) == 16 * -(-size // chunk), "digests")
    return known


def value(raw: msgspec.Raw, kind: list[str]) -> Any:
    """One value of a table."""
    name, *rest = kind
    if name == "nil":
        return None if raw == NIL else value(raw, rest)
    if name == "map":
        return table(raw, TABLES[rest[0]])
    if name in ("list", "some"):
        items = msgspec.msgpack.decode(raw, type=list[msgspec.Raw])
        must(len(items) <= int(rest[0]), "list")
        must(name == "list" or len(items) > 0, "some")
        return [value(item, rest[1:]) for item in items]
    found = msgspec.msgpack.decode(raw)
    plain(found, name, rest)
    return found


def plain(found: Any, name: str, rest: list[str]) -> None:
    """A value that holds no others."""
    if name == "bytes":
        must(isinstance(found, bytes) and int(rest[0]) <= len(found) <= int(rest[1]), "bytes")
    elif name == "text":
        must(isinstance(found, str) and len(found) <= int(rest[0]), "text")
    elif name == "id":
        must(isinstance(found, str), "id")
        must(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,47}", found) is not None, "id")
    elif name == "one":
        must(found in rest, "enumeration")
    elif name == "bool":
        must(isinstance(found, bool), "bool")
    elif name in ("integer", "count", "round"):
        low, high = {"count": (0, 2**40), "round": (1, 2**31)}.get(name) or map(int, rest)
        must(isinstance(found, int) and not isinstance(found, bool), "integer")
        must(low <= found <= high, "integer")
    else:
        number(found, name, float(rest[0]), float(rest[1]))


def number(found: Any, name: str, low: float, high: float) -> None:
    """A number within limits, one of which may be excluded."""
    must(isinstance(found, int | float) and not isinstance(found, bool), "number")
    must(math.isfinite(found), "finite")
    must(low < found if name in ("above", "inside") else low <= found, "number")
    must(found < high if name in ("below", "inside") else found <= high, "number")
