"""What the running coordinator alone knows, kept beside its store for whoever looks.

    live.msgpack   who is online and since when, last errors, the broker; replaced when that changes,
                   at most once a second. Its modification time is the sign of life.
    history.jsonl  a line for each round that opens or closes, run that ends, measurement of the disk

Neither is state. Both may be lost or torn, so nothing is flushed, and a disk that refuses them is no error:
the facts are then older. Reading them needs no running service and never disturbs one.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import Event, RoundClosed, RoundOpened, RunEnded
from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import opened, translated, write_and_rename

LIVE, HISTORY = "live.msgpack", "history.jsonl"
# The file is replaced at most this often, and at least this often, for when each device was last heard.
MIN_S, MAX_S = 1.0, 60.0
# The sign of life, and after how long without one the service counts as silent.
SIGN_S, SILENT_S = 2.0, 6.0
DISK_S = 3600.0
# A longer history loses its older half when the service starts.
MAX_HISTORY_BYTES = 16 * 2**20


class LiveDevice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device: whether it is online, since when, when it was last heard, and its last error."""

    online: bool
    since: float = 0.0
    heard: float = 0.0
    error: str = ""
    error_at: float = 0.0


class Live(msgspec.Struct, frozen=True, omit_defaults=True):
    """The coordinator, now; all times by its wall clock, 0 for unknown.

    ``max_packet`` is the largest message that comes through the broker, in bytes; 0: not measured yet.
    """

    started: float = 0.0
    running: bool = False
    link: bool = False
    link_since: float = 0.0
    link_error: str = ""
    max_packet: int = 0
    error: str = ""
    error_at: float = 0.0
    devices: dict[str, LiveDevice] = {}
    counters: dict[str, int] = {}


class Recorder:
    """Writes both files for a coordinator, from its loop; ``wall`` is the clock on the wall."""

    def __init__(
        self, core: Coordinator, folder: Path, wall: Callable[[], float] = time.time
    ) -> None:
        self._core = core
        self._wall = wall
        self._folder = folder
        self._live = Live(started=self._wall(), running=True, link_since=self._wall())
        self._known = read_live(folder)[0].devices
        self._key: object = None
        self._due = self._stale_at = self._sign_at = self._disk_at = 0.0
        self._shorten()

    def link(self, connected: bool, error: str = "", max_packet: int = 0) -> None:
        """The link to the broker came or went; a failed attempt is no change."""
        since = self._live.link_since if connected == self._live.link else self._wall()
        self._live = msgspec.structs.replace(
            self._live,
            link=connected,
            link_since=since,
            link_error=error,
            max_packet=max_packet or self._live.max_packet,
        )

    def error(self, text: str) -> None:
        """The coordinator has logged an error."""
        self._live = msgspec.structs.replace(self._live, error=text, error_at=self._wall())

    def observe(self, event: Event) -> None:
        """Note an event in the history."""
        match event:
            case RoundOpened():
                self._append(event="opened", run=event.run, round=event.round)
            case RoundClosed(summary=summary):
                self._append(event="closed", run=summary.run, round=summary.round)
            case RunEnded():
                self._append(event="ended", run=event.run, why=event.why)
            case _:
                pass

    def poll(self, now: float) -> None:
        """Write what has changed; ``now`` is the loop's clock."""
        if now < self._due:
            return
        self._due = now + MIN_S
        if now >= self._disk_at:
            self._disk_at = now + DISK_S
            self._measure()
        fleet, counters = self._core.devices, self._core.counters
        key = (fleet.changes, fleet.present, fleet.errors, self._live, sum(counters.values()))
        if key != self._key or now >= self._stale_at:
            self._key, self._stale_at = key, now + MAX_S
            self._write(now)
        elif now >= self._sign_at:
            with suppress(OSError):
                os.utime(self._folder / LIVE)
        else:
            return
        self._sign_at = now + SIGN_S

    def close(self) -> None:
        """Note that the service has ended in order, and that nobody is online any more."""
        self._live = msgspec.structs.replace(self._live, running=False)
        self._core.devices.disconnected()
        self._write(time.monotonic())

    def _write(self, now: float) -> None:
        wall = self._wall()
        offset, known = wall - now, self._known
        found: dict[str, LiveDevice] = {}
        for name, device in self._core.devices.items():
            old = known.get(name, LiveDevice(False))
            # To a tenth: the two clocks' distance varies a little, and that is no news.
            heard = round(device.heard + offset, 1) if device.heard else old.heard
            # Unknown so far, but heard: it came and went between two looks.
            turned = device.online != old.online or (device.heard and not old.since)
            since = wall if turned else old.since
            at, error = device.error or (0.0, "")
            if error:
                at = round(at + offset, 1)
                found[name] = LiveDevice(device.online, since, heard, error, at)
            else:
                found[name] = LiveDevice(device.online, since, heard, old.error, old.error_at)
        self._known = found
        live = msgspec.structs.replace(
            self._live, devices=found, counters=dict(self._core.counters)
        )
        path = self._folder / LIVE
        with suppress(OSError, StorageError):
            temporary = path.with_suffix(".tmp")
            write_and_rename(path, msgspec.msgpack.encode(live), temporary, False)

    def _measure(self) -> None:
        with suppress(OSError):
            used = folder_bytes(self._folder)
            self._append(event="disk", used=used, free=shutil.disk_usage(self._folder).free)

    def _append(self, **fields: str | int) -> None:
        line = json.dumps({"at": round(self._wall(), 3), **fields}) + "\n"
        path = self._folder / HISTORY
        with (
            suppress(OSError),
            opened(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) as descriptor,
        ):
            os.write(descriptor, line.encode())

    def _shorten(self) -> None:
        path = self._folder / HISTORY
        with suppress(OSError, StorageError):
            size = path.stat().st_size
            if size > MAX_HISTORY_BYTES:
                kept = path.read_bytes()[size // 2 :].partition(b"\n")[2]
                write_and_rename(path, kept, path.with_suffix(".tmp"), False)


def read_live(folder: Path) -> tuple[Live, float]:
    """What the service last wrote, and when it last gave a sign of life; empty and 0 if never."""
    path = folder / LIVE
    try:
        with translated("read", path):
            sign = path.stat().st_mtime
            return msgspec.msgpack.decode(path.read_bytes(), type=Live), sign
    except (StorageError, ValueError):  # the latter: msgspec's errors
        return Live(), 0.0


def read_history(folder: Path, offset: int) -> tuple[list[dict[str, object]], int]:
    """The whole lines of the history from a byte offset on, and the offset after them."""
    path = folder / HISTORY
    try:
        with path.open("rb") as file:
            if offset > os.fstat(file.fileno()).st_size:  # it was shortened
                offset = 0
            file.seek(offset)
            data = file.read()
    except OSError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return list(_lines(whole)), offset + len(whole)


def _lines(data: bytes) -> Iterator[dict[str, object]]:
    for line in data.splitlines():
        with suppress(ValueError):  # torn by a power cut
            fields = json.loads(line)
            if isinstance(fields, dict):
                yield cast(dict[str, object], fields)


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder; what goes meanwhile or is not ours (lost+found) counts not."""
    total = 0
    for entry in os.scandir(folder):
        with suppress(FileNotFoundError, PermissionError):
            if entry.is_dir(follow_symlinks=False):
                total += folder_bytes(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_size
    return total
