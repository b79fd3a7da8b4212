"""When to retry after the disk has refused a write: any write, or a job's, whose work is expensive."""

import logging
from collections import Counter

from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note

# A job that cannot store its outcome has wasted hours of battery, so each retry waits twice as long.
MAX_JOB_BACKOFF_S = 1800.0


class DiskWaits:
    """The retry times of the disk and of jobs. ``why`` is the disk's error, until a write succeeds.

    ``disk_at`` and ``job_at`` are the times of the next tries; None: as soon as there is something to do.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self.why = ""
        self.disk_at: float | None = None
        self.job_at: float | None = None
        self._counters = counters
        self._job_backoff_s = 0.0

    def waits(self, now: float) -> bool:
        """Whether to leave the disk alone for now."""
        return self.disk_at is not None and now < self.disk_at

    def refused(self, error: StorageError, now: float) -> Note:
        """The disk refused a write: nothing was lost; try again after ``DISK_RETRY_S``."""
        self.disk_at, self.why = now + DISK_RETRY_S, str(error)
        self._counters["storage_errors"] += 1
        return Note(logging.ERROR, self.why)

    def refused_job(self, error: StorageError, now: float) -> Note:
        """The disk refused a job's outcome or input: the job was wasted, so retry ever more rarely."""
        self._job_backoff_s = min(max(DISK_RETRY_S, 2 * self._job_backoff_s), MAX_JOB_BACKOFF_S)
        self.job_at = now + self._job_backoff_s
        return self.refused(error, now)

    def works(self, has_jobs: bool) -> None:
        """The disk accepts writes again, but perhaps not yet one as large as a waiting job needs."""
        self.disk_at = None
        if not has_jobs:
            self._job_backoff_s = 0.0
        if not self._job_backoff_s:
            self.why = ""

    def job_begins(self) -> None:
        """Retry the job."""
        self.why = ""

    def job_done(self) -> None:
        """The disk accepted a job's outcome, or the job ended otherwise."""
        self.why, self._job_backoff_s = "", 0.0
