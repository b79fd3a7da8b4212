"""What a command owes to whoever reads its output."""

import os
import select
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def reader_may_leave() -> Generator[None]:
    """End as SIGPIPE ends other commands, without a traceback, when nobody reads on (``| head``)."""
    try:
        yield
        print(end="", flush=True)
    except BrokenPipeError:
        if not _reader_has_left():
            raise  # some other pipe
        # The interpreter flushes once more at its end, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(128 + signal.SIGPIPE) from None


def _reader_has_left() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
