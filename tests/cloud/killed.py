"""kill -9 at each step of a command: a child process that ends itself at its n-th call to the system."""

import os
import signal
import warnings
from collections.abc import Callable, Iterator

CALLS = ("replace", "fsync", "unlink", "mkdir", "rmdir")


def kills(command: Callable[[], object], most: int = 200) -> Iterator[int]:
    """Run a command again and again in a child, killed one call later each time, until it comes to its end.

    Yields the number of calls after every kill, and at last 0.
    """
    for number in range(1, most):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads
            child = os.fork()
        if child == 0:
            _die_at(number)
            try:
                command()
            except BaseException:
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL), f"the command failed: {status}"
        if status == 0:
            yield 0
            return
        yield number
    raise AssertionError(f"not at its end after {most} calls")


def _die_at(number: int) -> None:
    left = number

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def counting(*args: object, **names: object) -> object:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **names)

        return counting

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))
