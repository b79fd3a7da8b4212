"""Decides when to retry after a disk write has failed. Jobs have longer waits than other writes."""

import logging
from collections import Counter

from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note

# A job whose outcome cannot be stored has wasted hours of battery, so each wait is twice as long as the one
# before.
MAX_JOB_BACKOFF_S = 1800.0


class DiskWaits:
    """When to retry writes and jobs. ``why`` is the disk's last error, or "" once writes succeed again.

    ``disk_at`` and ``job_at`` are the times at which a write and a job will be tried again, or None.
    """

    def __init__(self, counters: Counter[str]) -> None:
        self.why = ""
        self.disk_at: float | None = None
        self.job_at: float | None = None
        self._counters = counters
        self._job_backoff_s = 0.0

    def waits(self, now: float) -> bool:
        """Return True while the disk should not be used."""
        return self.disk_at is not None and now < self.disk_at

    def refused(self, error: StorageError, now: float) -> Note:
        """Record that a disk write has failed.

        Nothing is lost; the write is retried after ``DISK_RETRY_S``.
        """
        self.disk_at, self.why = now + DISK_RETRY_S, str(error)
        self._counters["storage_errors"] += 1
        return Note(logging.ERROR, self.why)

    def refused_job(self, error: StorageError, now: float) -> Note:
        """Record that a job's outcome or input could not be written to disk, which wastes the job.

        Each wait is longer than the one before.
        """
        self._job_backoff_s = min(max(DISK_RETRY_S, 2 * self._job_backoff_s), MAX_JOB_BACKOFF_S)
        self.job_at = now + self._job_backoff_s
        return self.refused(error, now)

    def works(self, has_jobs: bool) -> None:
        """Record that a write has succeeded. A waiting job may still need more room than that write did."""
        self.disk_at = None
        if not has_jobs:
            self._job_backoff_s = 0.0
        if not self._job_backoff_s:
            self.why = ""

    def job_begins(self) -> None:
        """Record that a job is being tried again."""
        self.why = ""

    def job_done(self) -> None:
        """Record that the disk accepted a job's outcome, or that the job ended in another way."""
        self.why, self._job_backoff_s = "", 0.0
