"""Identifies this process, so that others on this host notice at once when it has ended."""

import os
import platform
from contextlib import suppress
from pathlib import Path

from sedge_cloud.store.leases import ProcessRow

_PROC = Path("/proc")
# Fields in /proc/PID/stat, counted after the name in parentheses: the state, and the start time in ticks
# since boot.
_STATE, _STARTED = 0, 19


def this_process() -> ProcessRow:
    """Return this process's row, without a token."""
    pid = os.getpid()
    return ProcessRow(0, platform.node(), _boot(), pid, _started(pid) or 0)


def has_ended(process: ProcessRow, mine: ProcessRow) -> bool:
    """Return True if a process is known to have ended, which requires the same host and boot.

    ``mine`` is this process's row.
    """
    if (process.host, process.boot) != (mine.host, mine.boot):
        return False
    started = _started(process.pid)
    if started is not None:
        return started != process.started
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # the process exists but runs as another user
        return False
    return bool(process.started)  # /proc used to show when it started, so now it is a zombie


def _boot() -> str:
    """Identify the host's current boot and the PID namespace, since each container numbers its own PIDs."""
    parts = list[str]()
    with suppress(OSError):
        parts.append((_PROC / "sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink(_PROC / "self/ns/pid"))
    return " ".join(parts)


def _started(pid: int) -> int | None:
    """Return when a process started, in ticks since boot.

    Returns None if it is not running, or if this host has no /proc.
    """
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[_STATE] in "ZX" else int(fields[_STARTED])
