"""Records a device's history for people: its link, its last error, its results, the day's traffic.

It is one small file in the state folder, which the running agent writes and `sedge-edge status` reads.
Nothing depends on it, so disk errors are ignored, and a power cut may cost its last minute.
"""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from sedge_protocol.host.disk import write_and_rename
from sedge_protocol.wire.messages import EVALUATE
from sedge_protocol.wire.update import Report

FILE = "diary"
# The number of results to keep, and the minimum seconds between writes of bytes and contacts alone.
MOST_RESULTS = 20
WRITE_EVERY_S = 60.0
DAY_S = 86400


def result_text(task: str, before: float, after: float) -> str:
    """The run metric's values in a round as text."""
    return f"{after:.4f}" if task == EVALUATE else f"{before:.4f} before, {after:.4f} after"


class Result(msgspec.Struct, frozen=True):
    """The run metric's value in a round, before and after training; ``at`` is in Unix seconds."""

    run: str
    round: int
    task: str
    before: float
    after: float
    num_examples: int
    at: float

    def text(self) -> str:
        """The values of the metric as text."""
        return result_text(self.task, self.before, self.after)


class Page(msgspec.Struct, frozen=True):
    """The diary's content. Times are in Unix seconds of the device's clock, 0 for never.

    ``connected`` has held since ``since``; without a link, ``reason`` says why. ``up`` and ``down`` are the
    bytes of messages on ``day``, in days since 1970 in UTC.
    """

    connected: bool = False
    since: float = 0.0
    url: str = ""
    reason: str = ""
    heard: float = 0.0
    error: str = ""
    error_at: float = 0.0
    results: tuple[Result, ...] = ()
    day: int = 0
    up: int = 0
    down: int = 0


class Diary:
    """Writes the file; without a ``folder`` it writes nothing. ``clock`` gives Unix seconds."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._written = 0.0
        self.page = Page() if folder is None else read_diary(folder)

    def link(self, connected: bool, text: str) -> None:
        """The link is up to a URL, or down for a reason."""
        if connected:
            self._save(connected=True, since=self._clock(), url=text, reason="")
        elif self.page.connected:
            self._save(connected=False, since=self._clock(), reason=text)
        elif text != self.page.reason:
            self._save(reason=text)

    def bytes(self, up: int = 0, down: int = 0) -> None:
        """A message was sent, or received."""
        now = self._clock()
        day = int(now // DAY_S)
        page = (
            self.page if day == self.page.day else msgspec.structs.replace(self.page, up=0, down=0)
        )
        heard = now if down else page.heard
        self.page = msgspec.structs.replace(
            page, day=day, up=page.up + up, down=page.down + down, heard=heard
        )
        if abs(now - self._written) >= WRITE_EVERY_S:  # also after the clock was set
            self._save()

    def error(self, text: str) -> None:
        """Something went wrong that a person should know about."""
        self._save(error=text, error_at=self._clock())

    def done(self, report: Report) -> str:
        """A round's work is done. Returns the line to log about it."""
        values = report.before.metric, report.after.metric
        result = Result(
            report.run, report.round, report.task, *values, report.num_examples, self._clock()
        )
        self._save(results=(*self.page.results, result)[-MOST_RESULTS:])
        return f"run {report.run}, round {report.round} ({report.task}) is done: {result.text()}"

    def close(self) -> None:
        """The agent stops."""
        self.link(False, "stopped")

    def _save(self, **changes: object) -> None:
        self.page = msgspec.structs.replace(self.page, **changes)
        self._written = self._clock()
        if self._folder is None:
            return
        path = self._folder / FILE
        with contextlib.suppress(OSError):
            data = msgspec.json.encode(self.page)
            write_and_rename(path, data, path.with_name(f"{FILE}.tmp"), flush=False)


def read_diary(folder: Path) -> Page:
    """The diary in a state folder; an empty one if it is missing or damaged."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Page)
    return Page()
