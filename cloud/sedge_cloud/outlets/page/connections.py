"""Limits the status page's connections, so that strangers cannot exhaust the coordinator's file handles.

The page runs in the coordinator's process, whose database, blobs and link need file handles too. The page
may use a fixed share of them. When that is exceeded, the connection that has been idle longest is closed. A
connection is idle until its first request is complete, and again after each answer.
"""

import asyncio
import logging
import resource
import socket
import time
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# The page may use one in SHARE of the process's file handles, but at most MAX_CONNECTIONS.
SHARE, MAX_CONNECTIONS = 4, 256
# asyncio accepts up to ACCEPTED connections before it serves the first of them; these come on top of the
# page's share. WAITING more may queue to be accepted, which costs no file handles.
ACCEPTED, WAITING = 32, 2048
# How long a connection may stay idle, and how long its client may take to receive an answer, in seconds.
IDLE_S, ANSWER_S = 5.0, 60.0
STREAM = "/events"  # the path whose response never ends
# A condition that persists is logged at most this often, in seconds.
QUIET_S = 60.0
_log = logging.getLogger("sedge.http")


def max_connections() -> int:
    """Return how many connections the page may keep open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft < 0 else min(MAX_CONNECTIONS, soft // SHARE)


class Listener(socket.socket):
    """A listening socket with a long queue. asyncio would limit the queue to what it accepts at once."""

    def listen(self, backlog: int = WAITING, /) -> None:
        """Listen, with room in the queue for all waiting connections."""
        super().listen(WAITING)


class Connection(H11Protocol):
    """A uvicorn connection that closes when idle for too long, or when newer ones need its place."""

    _idle = True
    _since = 0.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept the connection; if there are too many, close the one that has been idle longest."""
        others = cast("set[Connection]", self.connections)
        if others and len(others) >= max_connections():
            oldest = min(others, key=lambda it: (not it._idle, it._since))
            others.discard(oldest)
            oldest.transport.abort()
        super().connection_made(transport)
        self._begin(True, IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the set of open ones."""
        self._cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Process the received bytes. Only a complete request ends the idle time; single bytes do not."""
        super().handle_events()
        if self._idle and self.conn.our_state is h11.SEND_RESPONSE:
            is_stream = self.scope["path"] == STREAM
            self._begin(False, None if is_stream else ANSWER_S)

    def on_response_complete(self) -> None:
        """Treat the connection as idle until the next request."""
        self._begin(True, IDLE_S)
        super().on_response_complete()

    def _begin(self, idle: bool, most_s: float | None) -> None:
        """Enter the idle or busy state. The connection is closed after ``most_s`` seconds in this state."""
        self._cancel()
        self._idle, self._since = idle, self.loop.time()
        if most_s is not None:
            # close() lets a slow client still read its last answer; abort() does not.
            end = self.transport.close if idle else self.transport.abort
            self._timer = self.loop.call_later(most_s, end)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class LoopErrors:
    """Handles the loop's exceptions.

    By default, asyncio logs a traceback for each connection it cannot accept.
    """

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log an exception. If connections cannot be accepted, log only one line now and then."""
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
        elif time.monotonic() >= self._quiet_until:
            self._quiet_until = time.monotonic() + QUIET_S
            _log.error("the status page cannot serve a connection: %s", error)
