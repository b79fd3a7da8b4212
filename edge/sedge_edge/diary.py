"""Records a device's history for people: its link, last error, results, and the day's traffic.

The diary is one small file in the state folder. The running agent writes it, and `sedge-edge status` reads
it. Nothing depends on it, so disk errors are ignored, and a power cut may lose its last minute.
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
# How many results to keep, and how many seconds to wait before writing again if nothing but the traffic has
# changed.
MOST_RESULTS = 20
WRITE_EVERY_S = 60.0
DAY_S = 86400


def result_text(task: str, before: float, after: float) -> str:
    """Format the values of a run's metric in a round."""
    return f"{after:.4f}" if task == EVALUATE else f"{before:.4f} before, {after:.4f} after"


class DiaryEntry(msgspec.Struct, frozen=True):
    """The values of a run's metric before and after the training of a round. ``at`` is in Unix seconds."""

    run: str
    round: int
    task: str
    before: float
    after: float
    num_examples: int
    at: float

    def text(self) -> str:
        """Format the values of the metric."""
        return result_text(self.task, self.before, self.after)


class Page(msgspec.Struct, frozen=True):
    """The diary's content. Times are in Unix seconds of the device's clock, or 0 for never.

    ``since`` is when ``connected`` last changed. Without a link, ``reason`` says why. ``up`` and ``down``
    are the numbers of bytes sent and received in messages on ``day``, which counts the days since 1970 in
    UTC.
    """

    connected: bool = False
    since: float = 0.0
    url: str = ""
    reason: str = ""
    heard: float = 0.0
    error: str = ""
    error_at: float = 0.0
    results: tuple[DiaryEntry, ...] = ()
    day: int = 0
    up: int = 0
    down: int = 0


class Diary:
    """Writes the diary's file, or nothing if there is no ``folder``. ``clock`` returns Unix seconds."""

    def __init__(self, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock
        self._written = 0.0
        self.page = Page() if folder is None else read_diary(folder)

    def link(self, connected: bool, text: str) -> None:
        """Record that the link to the URL ``text`` is up, or that it is down for the reason ``text``."""
        if connected:
            self._save(connected=True, since=self._clock(), url=text, reason="")
        elif self.page.connected:
            self._save(connected=False, since=self._clock(), reason=text)
        elif text != self.page.reason:
            self._save(reason=text)

    def bytes(self, up: int = 0, down: int = 0) -> None:
        """Record the sizes of a message that was sent or received."""
        now = self._clock()
        day = int(now // DAY_S)
        page = (
            self.page if day == self.page.day else msgspec.structs.replace(self.page, up=0, down=0)
        )
        heard = now if down else page.heard
        self.page = msgspec.structs.replace(
            page, day=day, up=page.up + up, down=page.down + down, heard=heard
        )
        # The difference is negative if the clock was set back.
        if abs(now - self._written) >= WRITE_EVERY_S:
            self._save()

    def error(self, text: str) -> None:
        """Record an error that the user should know about."""
        self._save(error=text, error_at=self._clock())

    def done(self, report: Report) -> str:
        """Record that the work for a round is done. Returns the line to log."""
        values = report.before.metric, report.after.metric
        result = DiaryEntry(
            report.run, report.round, report.task, *values, report.num_examples, self._clock()
        )
        self._save(results=(*self.page.results, result)[-MOST_RESULTS:])
        return f"run {report.run}, round {report.round} ({report.task}) is done: {result.text()}"

    def close(self) -> None:
        """Record that the agent is stopping."""
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
    """Return the diary in a state folder, or an empty one if it is missing or damaged."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((folder / FILE).read_bytes(), type=Page)
    return Page()
