"""Migrates data that an earlier version stored: its files next to the database, and old columns.

live.msgpack   schema 3: which devices were online, since when, and when each was last heard from
history.jsonl  schema 3: a line for each measurement, round that opened or closed, and run that ended
"""

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from sedge_cloud.store.selector import AbilityRow
from sedge_protocol.wire.messages import Hello

_log = logging.getLogger("sedge.cloud")

SCHEMA = 3
# The first schema with a table of the capabilities in hellos.
ABILITIES = 5
LIVE, HISTORY = "live.msgpack", "history.jsonl"
FILES = (LIVE, HISTORY)
# Executes a statement with values in the migration's transaction. Returns a cursor.
Execute: TypeAlias = Callable[..., Any]


class _EarlierDevice(msgspec.Struct):
    online: bool
    since: float = 0.0
    heard: float = 0.0
    error: str = ""
    error_at: float = 0.0


class _Live(msgspec.Struct):
    devices: dict[str, _EarlierDevice] = {}


class _Failure(msgspec.Struct):
    failure: str = ""


def adopt(execute: Execute, folder: Path) -> None:
    """Copy into rows whatever schema 3's files still contain; missing files and torn lines are skipped."""
    _adopt_devices(execute, folder / LIVE)
    for line in _lines(folder / HISTORY):
        _adopt_line(execute, line)
    rows = execute("SELECT run FROM runs WHERE status = 'failed' AND why = ''").fetchall()
    for (run,) in rows:
        sql = "SELECT summary FROM rounds WHERE run = ? AND summary IS NOT NULL ORDER BY round DESC"
        (coded,) = execute(sql, (run,)).fetchone() or (None,)
        if coded is not None:
            why = msgspec.msgpack.decode(coded, type=_Failure).failure
            execute("UPDATE runs SET why = ? WHERE run = ?", (why, run))


def adopt_hellos(rows: Iterable[Sequence[Any]]) -> Iterator[AbilityRow]:
    """Yield rows of the capabilities in devices' hellos, for schema 5, from (device, hello) ``rows``."""
    for device, coded in rows:
        with suppress(ValueError):  # skip hellos of other versions
            yield AbilityRow.of(device, msgspec.msgpack.decode(coded, type=Hello))


def adopt_options(execute: Execute) -> None:
    """Keep existing runs working as before, although schema 5 changes defaults and names of options.

    FedOBP's ``quantile`` used to default to the paper's value. SubFLOT's ``lam`` became ``pull``: 0 stays
    off, and any other strength becomes the default.
    """
    for run, coded in execute("SELECT run, config FROM runs").fetchall():
        with suppress(ValueError):  # skip other versions
            config = msgspec.msgpack.decode(coded, type=dict[str, Any])
            options: dict[str, Any] = config.get("options", {})
            match config.get("strategy"):
                case "fedobp" if "quantile" not in options:
                    options["quantile"] = "paper"
                case "subflot" if "lam" in options:
                    _rename_lam(run, options)
                case _:
                    continue
            coded = msgspec.msgpack.encode({**config, "options": options})
            execute("UPDATE runs SET config = ? WHERE run = ?", (coded, run))


def _rename_lam(run: str, options: dict[str, Any]) -> None:
    lam = options.pop("lam")
    if not lam:
        options["pull"] = 0.0
    instead = "its default" if lam else "0"
    _log.warning("run %s: SubFLOT no longer has lam; lam = %g becomes pull = %s", run, lam, instead)


def _adopt_devices(execute: Execute, path: Path) -> None:
    try:
        devices = msgspec.msgpack.decode(path.read_bytes(), type=_Live).devices
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        return
    for name, seen in devices.items():
        execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, '', 0, '', 0, '', 0, 0, 0, 0)",
            (name, *msgspec.structs.astuple(seen)),
        )


def _lines(path: Path) -> Iterator[Mapping[str, object]]:
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        with suppress(ValueError):  # skip a line torn by a power cut
            yield json.loads(line)


def _adopt_line(execute: Execute, line: Mapping[str, object]) -> None:
    """Store the contents of a line of the history, unless it is about an earlier run of the same name."""
    recent = "(SELECT created FROM runs r WHERE r.run = rounds.run) <= ?"
    match line:
        case {
            "event": "opened" | "closed" as what,
            "run": str(run),
            "round": int(number),
            "at": float(at),
        }:
            sql = f"UPDATE rounds SET {what} = ? WHERE run = ? AND round = ? AND {recent}"
            execute(sql, (at, run, number, at))
        case {"event": "ended", "run": str(run), "why": str(why), "at": float(at)}:
            sql = "UPDATE runs SET ended = ?, why = ? WHERE run = ? AND status != 'running'"
            execute(f"{sql} AND created <= ?", (at, why, run, at))
        case {"event": "disk", "used": int(used), "at": float(at)}:
            execute("INSERT INTO disk VALUES (?, ?) ON CONFLICT DO NOTHING", (at, used))
        case _:
            pass
