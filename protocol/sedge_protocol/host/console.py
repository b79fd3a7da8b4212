"""Ending a command quietly when the reader of its output has left."""

import os
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def reader_may_leave() -> Generator[None]:
    """When the reader leaves (``| head``), end as SIGPIPE ends other commands: without a traceback."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        if not _reader_has_left():
            raise  # some other pipe
        # The interpreter flushes stdout once more at its end, and would report the error then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def _reader_has_left() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
