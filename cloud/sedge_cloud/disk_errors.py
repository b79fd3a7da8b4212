"""Counts and logs disk errors; failed operations are retried."""

import logging
from collections import Counter

from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note

# After a disk or storage server fails, the operation is retried this many seconds later.
DISK_RETRY_S = 10.0


def disk_error(counters: Counter[str], error: StorageError, run: str = "") -> Note:
    """Count a disk error, for ``run`` as well if it concerns a run. Returns the note to log."""
    counters["storage_errors"] += 1
    text = str(error)
    if run and not text.startswith((f"run {run}:", f"run {run},")):
        text = f"run {run}: {text}"
    return Note(logging.ERROR, text)
