"""Starts processes for computations, through loky.

On Linux, each process is forked from one server process, which has imported torch but has computed
nothing. So the import, which takes 1.5 s of CPU time, happens only once, and all processes share the memory
of torch's code. On other systems each process is a fresh interpreter: forks are not safe on macOS, and
Windows does not support them.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import cache
from multiprocessing import Pipe, forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from threading import Thread
from typing import Any

from loky import ProcessPoolExecutor

from sedge_protocol.errors import LinkError

ENVIRONMENT = {
    # Each process computes on one core; more threads would only wait for each other.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    # By default, loky replaces a process that has grown by 300 MB, including mapped data, and the new
    # process would have to open its trainer again.
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(2**63),
}
# onnxruntime is not preloaded: importing it starts a thread, which would be missing in the forks.
_PRELOADED = ["sedge_emulate.workers.worker", "sedge_emulate.training.choice"]


class Processes:
    """``count`` processes that live until ``close``. Each first calls ``begin(*arguments)``."""

    def __init__(
        self, count: int, begin: Callable[..., object] | None = None, *arguments: object
    ) -> None:
        # Processes watch this pipe, which is closed however this process ends; otherwise loky's processes
        # would survive it.
        ended, self._open = Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            count,
            context=start_server(),
            initializer=_begin,
            initargs=(ended, begin, arguments),
            env=ENVIRONMENT,
        )

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Call a function in one of the processes."""
        future: Future[Any] = self._executor.submit(function, *arguments)
        return future

    def close(self) -> None:
        """End the processes, even during a call."""
        self._executor.shutdown(kill_workers=True)


def in_process(function: Callable[..., Any], *arguments: object) -> Any:
    """Call a function in a separate process. Returns its result or raises its exception.

    Raises ``LinkError`` if the process dies.
    """
    with closing(Processes(1)) as processes:
        try:
            return processes.submit(function, *arguments).result()
        except BrokenProcessPool as exc:
            raise LinkError("a process has died (out of memory?)") from exc


@cache
def start_server() -> BaseContext | None:
    """Start the server that forks processes.

    Returns the server's context, or None if each process must be started from scratch.

    The server keeps the environment and the working directory that it was started with. It cannot start if
    the path of the folder for temporary files is too long for a socket.
    """
    if sys.platform != "linux":
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    try:
        with _environment():
            forkserver.ensure_running()
    except OSError:
        return None
    return context


@contextmanager
def _environment() -> Generator[None]:
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


def _begin(
    ended: Connection, begin: Callable[..., object] | None, arguments: tuple[object, ...]
) -> None:
    """Initialise a process. The process exits when the other end of the pipe ``ended`` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    Thread(target=_follow, args=(ended,), daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _follow(ended: Connection) -> None:
    ended.poll(None)
    os._exit(1)
