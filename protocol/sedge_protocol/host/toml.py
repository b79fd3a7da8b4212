"""Loads TOML strictly for every Sedge program: a file that does not match its struct is rejected.

Programs describe their configuration as frozen msgspec structs with ``forbid_unknown_fields=True`` and
``Meta`` limits. A value that does not fit raises one ``ConfigError``, which names the file, the key
(``broker.url``, ``devices[2].id``), what was found and what was expected. This module knows no program's
keys, reads no environment variables and resolves no paths. Fields may be of type ``pathlib.Path``.
"""

import contextlib
import difflib
import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import msgspec
from msgspec import inspect

from sedge_protocol.errors import ConfigError, Words, os_reason

T = TypeVar("T", bound=msgspec.Struct)
Table: TypeAlias = dict[str, object]

_SYNTAX = re.compile(r"^(?P<what>.*) \(at (?P<place>.*)\)$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `([^`]+)`(?:, got `[^`]*`)?(.*)$", re.DOTALL)
_CHOICE = re.compile(r"^Invalid enum value ")
_STEP = re.compile(r"\.([^.\[\]`]+)|\[(\d+|\.\.\.)\]")
_WORDS = {
    "str": "a string",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a table",
    "array": "an array",
}
_KINDS: dict[type[inspect.Type], str] = {
    inspect.StrType: _WORDS["str"],
    inspect.IntType: _WORDS["int"],
    inspect.FloatType: _WORDS["float"],
    inspect.BoolType: _WORDS["bool"],
    inspect.StructType: _WORDS["object"],
    inspect.DictType: _WORDS["object"],
    inspect.ListType: _WORDS["array"],
    inspect.VarTupleType: _WORDS["array"],
    inspect.CustomType: "a path",  # pathlib.Path is the only custom type
}


def default_path(name: str) -> Path:
    """Return the file in the working directory if it exists and is accessible, else the one in /etc/sedge.

    Raises ``ConfigError`` if neither exists.
    """
    here, system = Path(name), Path("/etc/sedge") / name
    with contextlib.suppress(OSError):
        if here.exists():
            return here
    with contextlib.suppress(PermissionError):  # the error is reported when the file is read
        if not system.exists():
            found = Words(f"neither here nor in {system.parent}")
            raise ConfigError(
                name, found, "one of the two, or -c FILE, or SEDGE_CONFIG set to a file"
            )
    return system


def load(path: Path, type: type[T]) -> T:
    """Load the configuration in a file. Raises ``ConfigError`` unless it matches the struct exactly."""
    try:
        text = path.read_bytes().decode()
    except OSError as exc:
        raise ConfigError("file", Words(os_reason(exc)), "a readable TOML file", str(path)) from exc
    except UnicodeDecodeError as exc:
        found = Words(f"a byte that is not UTF-8 at {exc.start}")
        raise ConfigError("file", found, "a TOML file in UTF-8", str(path)) from exc
    return load_text(text, type, str(path))


def load_text(text: str, type: type[T], where: str) -> T:
    """Load the configuration in ``text``, called ``where`` in errors.

    Raises ``ConfigError`` like ``load``.
    """
    try:
        table: Table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        match = _SYNTAX.match(str(exc))
        what, place = (match["what"], match["place"]) if match else (str(exc), "TOML")
        raise ConfigError(place, Words(what), "valid TOML", where) from exc
    return converted(table, type, where)


def converted(table: Table, type: type[T], where: str) -> T:
    """Convert a parsed TOML table that came from ``where``. Raises ``ConfigError`` like ``load``."""
    _refuse_infinities(table, (), where)
    try:
        return msgspec.convert(table, type, dec_hook=_decode)
    except msgspec.ValidationError as exc:
        raise _explained(exc, table, type, where) from exc


def named_text(path: Path | str, key: str) -> str:
    """Read a text file whose path the configuration gives in ``key``. Raises ``ConfigError``."""
    try:
        return Path(path).read_text()
    except OSError as exc:
        raise ConfigError(key, str(path), f"a readable file ({os_reason(exc)})") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(key, str(path), "a text file") from exc


def _decode(type: type[object], value: object) -> object:
    if type is not Path:
        raise NotImplementedError(type)
    if not isinstance(value, str):
        raise ValueError("Expected `str`")
    return Path(value)


def _refuse_infinities(node: object, path: tuple[str | int, ...], where: str) -> None:
    """Reject inf and nan, which TOML allows, because inf would satisfy any lower limit."""
    if isinstance(node, float) and not math.isfinite(node):
        raise ConfigError(_dotted(path), node, "a finite number", where)
    for key, child in _children(node):
        _refuse_infinities(child, (*path, key), where)


def _children(node: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(node, dict):
        yield from cast(Table, node).items()
    elif isinstance(node, list):
        yield from enumerate(cast(list[object], node))


def _explained(
    error: msgspec.ValidationError, table: Table, type: type[msgspec.Struct], where: str
) -> ConfigError:
    """Rewrite msgspec's one-line message in terms of the file."""
    message, _, location = str(error).partition(" - at `$")
    steps = [m.group(1) or m.group(2) for m in _STEP.finditer(location)]
    path, found = _locate(table, steps, type, str(error))
    if unknown := _UNKNOWN.match(message):
        known = _known_keys(inspect.type_info(type), path)
        key = _dotted((*path, unknown[1]))
        return ConfigError(key, Words("unknown key"), _suggestion(unknown[1], known), where)
    if missing := _MISSING.match(message):
        path = (*path, missing[1])
        expected = _described(_node_at(inspect.type_info(type), path))
        return ConfigError(_dotted(path), None, expected, where)
    return ConfigError(_dotted(path), found, _expectation(message, type, path), where)


def _locate(
    node: object, steps: list[str], type: type[msgspec.Struct], message: str
) -> tuple[tuple[str | int, ...], object]:
    """Return the path and the value at the location in msgspec's message.

    ``[...]`` in that location stands for any key of a table.
    """
    root = node
    path: tuple[str | int, ...] = ()
    for step in steps:
        children = dict(_children(node))
        key: str | int = int(step) if step.isdigit() and isinstance(node, list) else step
        if step == "...":
            culprits = (k for k in children if _fails_alone(root, (*path, k), type, message))
            key = next(culprits, step)
        if key not in children:
            break
        path, node = (*path, key), children[key]
    return path, node


def _fails_alone(
    root: object, path: tuple[str | int, ...], type: type[msgspec.Struct], message: str
) -> bool:
    """Return True if the same error occurs with the last key of ``path`` alone in its table."""
    try:
        msgspec.convert(_thinned(root, path), type, dec_hook=_decode)
    except msgspec.ValidationError as exc:
        return str(exc) == message
    return False


def _thinned(node: object, path: tuple[str | int, ...]) -> object:
    if not path:
        return node
    children = dict(_children(node))
    child = _thinned(children[path[0]], path[1:])
    if len(path) == 1:
        return {path[0]: child}
    changed = {**children, path[0]: child}
    return list(changed.values()) if isinstance(node, list) else changed


def _expectation(message: str, type: type[msgspec.Struct], path: tuple[str | int, ...]) -> str:
    """Describe the type that msgspec expected."""
    if match := _EXPECTED.match(message):
        names = [name for name in match[1].split(" | ") if name != "null"]
        return " or ".join(_WORDS.get(name, name) for name in names) + match[2]
    if _CHOICE.match(message):
        return _described(_node_at(inspect.type_info(type), path))
    return message


def _described(node: inspect.Type) -> str:
    """Describe a type in words."""
    words: list[str] = []
    for option in _alternatives(node):
        if isinstance(option, inspect.LiteralType):
            words.append("one of " + ", ".join(repr(value) for value in option.values))
        elif isinstance(option, inspect.EnumType):
            words.append("one of " + ", ".join(repr(member.value) for member in option.cls))
        elif not isinstance(option, inspect.NoneType):
            words.append(_KINDS.get(type(option), "a value"))
    return " or ".join(words)


def _alternatives(node: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(node, inspect.Metadata):
        yield from _alternatives(node.type)
    elif isinstance(node, inspect.UnionType):
        for member in node.types:
            yield from _alternatives(member)
    else:
        yield node


def _node_at(node: inspect.Type, path: tuple[str | int, ...]) -> inspect.Type:
    """Return the type of the value at ``path``, or the last known type on the way there."""
    for step in path:
        for option in _alternatives(node):
            if isinstance(option, inspect.StructType):
                node = next((f.type for f in option.fields if f.encode_name == step), node)
            elif isinstance(option, inspect.ListType | inspect.VarTupleType):
                node = option.item_type
            elif isinstance(option, inspect.DictType):
                node = option.value_type
    return node


def _known_keys(root: inspect.Type, path: tuple[str | int, ...]) -> list[str]:
    options = _alternatives(_node_at(root, path))
    structs = [option for option in options if isinstance(option, inspect.StructType)]
    return [field.encode_name for struct in structs for field in struct.fields]


def _suggestion(key: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1)
    return f"{nearest[0]!r}?" if nearest else "one of " + ", ".join(sorted(known))


def _dotted(path: tuple[str | int, ...]) -> str:
    """Format a path as ``broker.url`` or ``devices[2].id``; the empty path is "file"."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".") or "file"
