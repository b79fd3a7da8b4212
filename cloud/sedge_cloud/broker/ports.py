"""Finds a free port on this machine, and waits until a server accepts connections on a port."""

import socket
import time
from collections.abc import Callable
from contextlib import suppress

from sedge_protocol.errors import LinkError

LOOPBACK = "127.0.0.1"
_POLL_S = 0.01
_PORT_TRIES = 5


def on_free_port(start: Callable[[int], None], wanted: int | None = None) -> int:
    """Call ``start`` with a free port, and retry with another if that port was taken in the meantime.

    Returns the port, which is ``wanted`` if ``start`` succeeds with it. Raises the last ``LinkError`` if
    several tries fail.
    """
    if wanted is not None and is_free(wanted):
        with suppress(LinkError):
            start(wanted)
            return wanted
    for tries_left in reversed(range(_PORT_TRIES)):
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port: int = probe.getsockname()[1]
        try:
            start(port)
        except LinkError:
            if not tries_left:
                raise
        else:
            return port
    raise AssertionError("unreachable: the last try returns or raises")


def wait_until_accepting(
    host: str, port: int, timeout_s: float, is_alive: Callable[[], bool]
) -> None:
    """Return once the port accepts a connection.

    Raises ``LinkError`` if it does not within ``timeout_s``, or when ``is_alive`` returns False.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        accepts = _accepts(host, port)
        # The check comes after the connection attempt: if another program took the port, our broker has
        # exited, and that program must not be mistaken for it.
        if not is_alive():
            raise LinkError(f"broker on {host}:{port}: exited while starting")
        if accepts:
            return
        time.sleep(_POLL_S)
    raise LinkError(
        f"broker on {host}:{port}: still accepts no connections after {timeout_s:.0f} s"
    )


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Brokers set this option too: without it, recently closed connections would keep them from
        # listening again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            # If nobody listens, TCP may connect an ephemeral port to itself, which must
            # not count as a server.
            connected: bool = connection.getsockname() != connection.getpeername()
            return connected
    except OSError:
        return False
