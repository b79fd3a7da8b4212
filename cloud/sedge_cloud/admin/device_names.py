"""Determines which devices `device add` enrols: one, several with numbers, or those listed in a CSV file.

device,secret,site    the id, the secret in 64 hex digits, and a column for each tag
pi-1,,lab             no secret: the device gets a new one, and a folder with its files
"""

import csv
import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sedge_cloud.admin.enrolment import NOT_ENROLLED
from sedge_cloud.store.tags import MAX_TAGS, check_tag
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.keys import SECRET_BYTES
from sedge_protocol.wire.topics import check_id

# The names allowed for the first column, and the name of the column that holds secrets.
_HEADERS, _SECRET = ("device", "name", "id"), "secret"


@dataclass(frozen=True)
class DeviceNames:
    """The ids to enrol, in order, with the ``secrets`` and ``tags`` that a file gave for them.

    ``several`` is True if the ids were numbered or read from a file, even if there is only one.
    """

    names: tuple[str, ...]
    several: bool
    secrets: dict[str, bytes] = field(default_factory=dict[str, bytes])
    tags: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])

    def folders(self, out: Path | None) -> dict[str, Path]:
        """Return each device's folder: ``out`` itself for a single device, otherwise ``out``/DEVICE.

        Devices that came with a secret need no files and have no folder.
        """
        if self.several or out is None:
            return {n: (out or Path()) / n for n in self.names if n not in self.secrets}
        return dict.fromkeys(self.names, out)


def device_names(
    device: str | None,
    count: int | None,
    file: Path | None,
    taken: Callable[[Collection[str]], Collection[str]],
) -> DeviceNames:
    """Return the ids to enrol, after checking all of them.

    ``taken`` is called with ids and returns the ones that are already enrolled.

    Raises ``ConfigError``, which names the line in the file, for an id that is malformed, taken or
    repeated, and for an invalid secret or tag. Raises ``StorageError`` for a file that cannot be read.
    """
    if (device is None) == (file is None):
        raise ConfigError("device", device, "either an id or --names FILE")
    if file is not None:
        return _read(file, taken)
    assert device is not None
    names = (device,) if count is None else tuple(f"{device}-{i}" for i in range(1, count + 1))
    for name in names:
        check_id(name, "device")
    for name in sorted(taken(names)):
        raise ConfigError("device", name, NOT_ENROLLED)
    return DeviceNames(names, count is not None)


def _read(file: Path, taken: Callable[[Collection[str]], Collection[str]]) -> DeviceNames:
    lines: dict[str, int] = {}
    found = DeviceNames((), True)
    columns: list[str] | None = None
    for number, cells in _lines(file):
        where = f"{file}, line {number}"
        if columns is None:
            columns = _columns(cells, where)
            if columns[0] in _HEADERS:
                continue
        if len(cells) > len(columns):
            expected = f"at most {len(columns)}, as in the first line ({', '.join(columns)})"
            raise ConfigError("columns", len(cells), expected, where)
        name, *values = cells
        _check_id(name, where)
        if lines.setdefault(name, number) != number:
            raise ConfigError(
                "device", name, f"each id only once (line {lines[name]} has it too)", where
            )
        _take(found, name, dict(zip(columns[1:], values, strict=False)), where)
    if not lines:
        raise ConfigError("--names", str(file), "at least one id")
    for name in sorted(taken(lines), key=lambda name: lines[name]):
        raise ConfigError("device", name, NOT_ENROLLED, f"{file}, line {lines[name]}")
    return DeviceNames(tuple(lines), True, found.secrets, found.tags)


def _columns(cells: list[str], where: str) -> list[str]:
    """Return the column names, if the file's first line is a header. A file without one lists only ids."""
    columns = [cell.lower() for cell in cells]
    if columns[0] not in _HEADERS:
        if len(cells) > 1:
            expected = "column names in the first line: device, then secret or tags"
            raise ConfigError("columns", ",".join(cells), expected, where)
        return ["ids"]
    if len(columns) > MAX_TAGS + 2:
        raise ConfigError("columns", len(columns), f"at most {MAX_TAGS} tags", where)
    for key in columns[1:]:
        if key != _SECRET:
            check_tag(key, "", where)
        if columns.count(key) > 1:
            raise ConfigError("columns", key, "each column only once", where)
    return columns


def _check_id(name: str, where: str) -> None:
    try:
        check_id(name, "device")
    except ConfigError as exc:
        raise ConfigError(exc.key, exc.found, exc.expected, where) from exc


def _take(found: DeviceNames, name: str, values: dict[str, str], where: str) -> None:
    """Record a device's secret and tags; an empty cell means none."""
    given = {key: value for key, value in values.items() if value}
    secret = given.pop(_SECRET, None)
    if secret is not None:
        try:
            found.secrets[name] = bytes.fromhex(secret)
        except ValueError:
            found.secrets[name] = b""
        if len(found.secrets[name]) != SECRET_BYTES or len(secret) != 2 * SECRET_BYTES:
            expected = f"{2 * SECRET_BYTES} hex digits in this column"
            raise ConfigError(_SECRET, f"{len(secret)} characters", expected, where)
    for key, value in given.items():
        check_tag(key, value, where)
    if given:
        found.tags[name] = given


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the non-empty lines of a CSV file with their line numbers."""
    with as_caller(), translated("read", file):
        try:
            text = file.read_text("utf-8-sig")
        except UnicodeDecodeError as exc:
            raise ConfigError("--names", str(file), f"a CSV file in UTF-8 ({exc})") from exc
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        for row in reader:
            cells = [cell.strip(" \t") for cell in row]  # other white space is rejected later
            if any(cells):
                yield reader.line_num, cells
    except csv.Error as exc:
        where = f"{file}, line {reader.line_num}"
        raise ConfigError("--names", str(exc), "a valid line of CSV", where) from exc
