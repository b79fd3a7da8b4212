"""The settings of a device that a coordinator may tighten: gates, limits, log level (spec/settings.md).

They are tables of edge.toml. A coordinator sends a JSON object with some of their keys, each prefixed by
its section, such as ``{"limits.megabytes_per_day": 500}``. For each key, the device uses the stricter of
the two values.
"""

import hashlib
import re
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sedge_protocol.errors import BodyError, ConfigError

# The maximum size of the settings in a WELCOME; all keys with long values take 500 bytes.
MAX_SETTINGS_BYTES = 2048
# The size of the hash with which a device says in HELLO which settings it has.
NAME_BYTES = 8
Value: TypeAlias = bool | int | float | str
LogLevel: TypeAlias = Literal["debug", "info", "warning", "error"]
# The log levels, from the most lines to the fewest.
_LEVELS = ("debug", "info", "warning", "error")
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


class GatesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[gates]: when this device may work; by default, always.

    While a gate is closed, nothing is downloaded or trained: training stops, and continues from there
    once all gates are open. Finished updates are still sent. After a minute the agent tells the
    coordinator, which then stops planning rounds with this device and no longer waits for it in an open
    one. These commands say why: `sedge-edge status`, `sedge-cloud device list` and `run show`;
    `sedge-edge doctor` shows each gate and its reading.
    """

    mains: bool = False
    """Work only on mains power; a device without a battery counts as on mains."""
    min_battery_percent: Annotated[float, Meta(gt=0, le=100)] | None = None
    """Minimum charge, in percent, for working on battery."""
    max_temperature_c: Annotated[float, Meta(ge=20, le=150)] | None = None
    """Maximum temperature of the hottest thermal zone, in °C; once exceeded, the device waits until it is
    5 °C cooler than that."""
    max_load: Annotated[float, Meta(gt=0, le=1000)] | None = None
    """Maximum 1-minute load caused by other programs, in busy processors."""
    min_free_memory_mb: Annotated[int, Meta(ge=1, le=2**24)] | None = None
    """Minimum memory, in MB, that other programs must leave free."""
    unmetered: bool = False
    """Work only while NetworkManager reports the link as unmetered; on a metered link, finished updates
    wait too."""
    quiet_hours: str = ""
    """Local hours when the device does not work, such as ``07:30-22:00``; they may span midnight."""


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[limits]: the most that this device does, whatever a coordinator asks of it.

    Work beyond a limit waits or is declined, and the device tells the coordinator which limit it was. A
    limit may be used up all at once; it recovers evenly over the following hour or day, even while the
    agent is not running.
    """

    orders_per_hour: Annotated[int, Meta(ge=1, le=1_000_000)] = 3600
    """Maximum number of orders to accept per hour; never more than 32 at once."""
    megabytes_per_day: Annotated[float, Meta(gt=0, le=1e9)] = 10_000.0
    """Maximum megabytes to download per day; an interrupted download resumes where it stopped."""
    training_hours_per_day: Annotated[float, Meta(gt=0, le=24)] = 16.0
    """Maximum hours of training per day; an interrupted training resumes where it stopped."""
    disk_share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of the free disk space, its own files included, that the state folder may use."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings that a coordinator may tighten."""

    gates: GatesConfig = GatesConfig()
    limits: LimitsConfig = LimitsConfig()
    log_level: LogLevel = "debug"


def name_of(coded: bytes) -> bytes:
    """Return the hash that identifies coded settings, or b"" if there are none."""
    return hashlib.sha256(coded).digest()[:NAME_BYTES] if coded else b""


def read_settings(coded: bytes) -> dict[str, Value]:
    """Decode settings into a dict of keys and values.

    Raises ``BodyError`` if the bytes are not settings.
    """
    try:
        return msgspec.json.decode(coded, type=dict[str, Value]) if coded else {}
    except (ValueError, RecursionError) as exc:
        raise BodyError("settings", coded, str(exc)) from exc


def listed(coded: bytes) -> str:
    """Format coded settings for people. Raises ``BodyError``."""
    return ", ".join(f"{key} = {value}" for key, value in read_settings(coded).items())


def tightened(own: Settings, coded: bytes) -> tuple[Settings, list[str]]:
    """Return the stricter of a device's own settings and a coordinator's, key by key.

    Also returns a line of text for each ignored key, with the reason. Raises ``BodyError`` for bytes that
    are not settings.
    """
    ignored = list[str]()
    for key, value in read_settings(coded).items():
        try:
            own, why = _tightened(own, key, value)
        except (msgspec.ValidationError, ConfigError) as exc:
            why = str(exc)
        if why:
            ignored.append(f"{key} = {value!r} ({why})")
    return own, ignored


def _tightened(own: Settings, key: str, value: Value) -> tuple[Settings, str]:
    """Tighten one key. Returns the settings and, if the key is ignored, the reason."""
    section, _, name = key.rpartition(".")
    if section not in ("", *Settings.__struct_fields__):
        return own, "no such key here"
    table: msgspec.Struct = getattr(own, section) if section else own
    given, mine = getattr(msgspec.convert({name: value}, type(table)), name), getattr(table, name)
    if given == mine:
        return own, ""
    if not _is_stricter(name, given, mine):
        return own, f"{mine!r} is stricter"
    table = msgspec.structs.replace(table, **{name: given})
    if isinstance(table, Settings):
        return table, ""
    return msgspec.structs.replace(own, **{section: table}), ""


def _is_stricter(name: str, given: Value, mine: Value | None) -> bool:
    """Return True if a key's value is more restrictive than ``mine``; None means no restriction.

    Raises ``ConfigError`` for malformed hours.
    """
    if name == "log_level":
        return _LEVELS.index(str(given)) > _LEVELS.index(str(mine))
    if name == "quiet_hours":
        return _quiet(str(mine)) < _quiet(str(given))
    if mine is None:
        return True
    grows = isinstance(given, bool) or name.startswith("min_")
    return float(given) > float(mine) if grows else float(given) < float(mine)


def _quiet(hours: str) -> set[int]:
    """Return the quiet minutes of a day, counted from midnight. Raises ``ConfigError``."""
    begin, end = minutes(hours) or (0, 0)
    return {(begin + after) % (24 * 60) for after in range((end - begin) % (24 * 60))}


def minutes(hours: str) -> tuple[int, int] | None:
    """Parse "HH:MM-HH:MM" into two times, in minutes after midnight. Returns None for an empty text.

    Raises ``ConfigError``.
    """
    if not hours:
        return None
    match = _HOURS.fullmatch(hours)
    if match is None or match[1] + match[2] == match[3] + match[4]:
        raise ConfigError("gates.quiet_hours", hours, "two different times, such as 07:30-22:00")
    begin, end = int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
    return begin, end
