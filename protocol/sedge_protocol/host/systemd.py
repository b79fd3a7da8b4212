"""Tells systemd a ``Type=notify`` service's state and its log's priorities, without libsystemd.

Protocols: sd_notify(3), one datagram of ``KEY=value`` lines to the socket named in the environment, and
sd-daemon(3), a priority before each line on standard error. Outside systemd there is no such socket, and
lines have the time in place of a priority.
"""

import contextlib
import logging
import os
import socket

# A full queue means that the manager is not reading; a state that cannot be sent within this time is
# dropped, so that the service does not hang.
SEND_TIMEOUT_S = 1.0


def notify(state: str) -> bool:
    """Send ``state`` ("READY=1", "WATCHDOG=1", "STATUS=…") to the service manager; True if it was sent."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # an abstract socket, spelled with a NUL in the kernel's interface
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(SEND_TIMEOUT_S)
        manager.sendto(state.encode(), address)
        return True
    return False


def watchdog_interval_s() -> float | None:
    """Seconds between two "WATCHDOG=1", half of what systemd allows; None without a watchdog."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID")
    if not limit_us.isdecimal() or int(limit_us) == 0 or pid not in (None, str(os.getpid())):
        return None
    return int(limit_us) / 2e6


def log_to_stderr(level: str, status: bool = False) -> None:
    """Log lines from this level on, formatted for the reader of standard error: a person or the journal.

    With ``status``, ``systemctl status`` also shows the last line.
    """
    handler = logging.StreamHandler()
    if is_journal(2):
        handler.setFormatter(JournalFormatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers = [handler, *([StatusHandler(logging.INFO)] if status else [])]
    logging.basicConfig(level=level.upper(), handlers=handlers)


def is_journal(descriptor: int) -> bool:
    """Whether a file descriptor leads to systemd's journal, going by ``JOURNAL_STREAM``."""
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
    return False


class JournalFormatter(logging.Formatter):
    """Puts a priority in front of each line, which the journal strips; the journal adds the time itself."""

    def format(self, record: logging.LogRecord) -> str:
        """A record's lines, each with the priority, as a traceback has several."""
        levels = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
        priority = next((number for level, number in levels if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class StatusHandler(logging.Handler):
    """Makes each line the service's status."""

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the service manager, in one line."""
        notify(f"STATUS={' '.join(record.getMessage().split())}")
