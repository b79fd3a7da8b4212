"""Reports a ``Type=notify`` service's state and log priorities to systemd, without libsystemd.

It uses two protocols: sd_notify(3), a datagram of ``KEY=value`` lines to the socket named in the
environment, and sd-daemon(3), a priority before each line on standard error. Outside systemd there is no
such socket, and log lines begin with the time instead of a priority.
"""

import contextlib
import logging
import os
import socket

# The queue is full if the service manager does not read it. A state that cannot be sent within this time is
# dropped, so that the service does not hang.
SEND_TIMEOUT_S = 1.0


def notify(state: str) -> bool:
    """Send ``state`` ("READY=1", "WATCHDOG=1", "STATUS=…") to the service manager.

    Returns True if it was sent.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    # An abstract socket, whose name begins with NUL in the kernel's interface.
    if address.startswith("@"):
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(SEND_TIMEOUT_S)
        manager.sendto(state.encode(), address)
        return True
    return False


def watchdog_interval_s() -> float | None:
    """Return half of systemd's watchdog timeout in seconds, or None without a watchdog."""
    limit_us = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID")
    if not limit_us.isdecimal() or int(limit_us) == 0 or pid not in (None, str(os.getpid())):
        return None
    return int(limit_us) / 2e6


def log_to_stderr(level: str, status: bool = False) -> None:
    """Log to standard error, for a person to read or, under systemd, for the journal.

    ``level`` is the lowest level to log. With ``status``, ``systemctl status`` also shows the last line.
    """
    handler = logging.StreamHandler()
    if is_journal(2):
        handler.setFormatter(JournalFormatter("%(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handlers = [handler, *([StatusHandler(logging.INFO)] if status else [])]
    logging.basicConfig(level=level.upper(), handlers=handlers)


def is_journal(descriptor: int) -> bool:
    """Return True if ``JOURNAL_STREAM`` says that a file descriptor leads to systemd's journal."""
    with contextlib.suppress(OSError):
        found = os.fstat(descriptor)
        return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"
    return False


class JournalFormatter(logging.Formatter):
    """Prefixes each line with a priority, which the journal removes. The journal adds the time."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. Every line gets the priority, because a traceback has several."""
        levels = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
        priority = next((number for level, number in levels if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).splitlines())


class StatusHandler(logging.Handler):
    """Shows each log line as the service's status."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record to the service manager, in one line."""
        notify(f"STATUS={' '.join(record.getMessage().split())}")
