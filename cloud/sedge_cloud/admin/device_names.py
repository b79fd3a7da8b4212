"""Which devices one `device add` enrols: one, so many of one name, or those of a CSV file."""

import csv
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from sedge_cloud.admin.enrolment import NOT_ENROLLED
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.topics import check_id

# A first line that names the column.
_HEADERS = ("device", "name", "id")


@dataclass(frozen=True)
class DeviceNames:
    """The ids, in order; ``several`` even if it is one, when it was counted or read."""

    names: tuple[str, ...]
    several: bool

    def folders(self, out: Path | None) -> dict[str, Path]:
        """The folder for each device's files: ``out`` itself, or the one of its name in there."""
        if self.several or out is None:
            return {name: (out or Path()) / name for name in self.names}
        return dict.fromkeys(self.names, out)


def device_names(
    device: str | None, count: int | None, file: Path | None, taken: Collection[str]
) -> DeviceNames:
    """The ids to enrol. All are checked before the first is used.

    Raises ``ConfigError`` for an id that is malformed, ``taken`` or there twice, and ``StorageError`` for a
    file that cannot be read.
    """
    if (device is None) == (file is None):
        raise ConfigError("device", device, "an id, or --names FILE without one")
    if file is not None:
        names = _read(file)
    else:
        assert device is not None
        names = (device,) if count is None else tuple(f"{device}-{i}" for i in range(1, count + 1))
    where = "" if file is None else str(file)
    seen = set[str]()
    for name in names:
        check_id(name, "device")
        if name in seen:
            raise ConfigError("device", name, "every id once", where)
        seen.add(name)
        if name in taken:
            raise ConfigError("device", name, NOT_ENROLLED, where)
    return DeviceNames(names, count is not None or file is not None)


def _read(file: Path) -> tuple[str, ...]:
    with as_caller(), translated("read", file):
        try:
            rows = list(csv.reader(file.read_text("utf-8").splitlines()))
        except (UnicodeDecodeError, csv.Error) as exc:
            raise ConfigError("--names", str(file), f"a CSV file ({exc})") from exc
    names = [row[0].strip() for row in rows if row and row[0].strip()]
    if names and names[0].lower() in _HEADERS:
        del names[0]
    if not names:
        raise ConfigError("--names", str(file), "at least one id")
    return tuple(names)
