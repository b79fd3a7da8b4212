"""Notifications to systemd from a service of ``Type=notify``, without libsystemd.

Protocol: sd_notify(3), one datagram of ``KEY=value`` lines to the socket named in the environment.
Outside systemd there is no such socket and nothing happens.
"""

import contextlib
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
