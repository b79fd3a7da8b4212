"""Processes that compute, by loky.

On Linux each of them is a fork of one server, which has imported torch and has computed nothing. So
importing torch costs its second and a half of processor time only once, however many processes there are,
and they share the memory of its code. Forks are not safe on macOS, and Windows has none: there each process
is a fresh interpreter.
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
    # loky replaces a process that grows by 300 MB, mapped data included; ours would have to open its
    # trainer again.
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(2**63),
}
# onnxruntime is not among them: importing it starts a thread, which a fork would lack.
_PRELOADED = ["sedge_emulate.workers.worker", "sedge_emulate.training.choice"]


class Processes:
    """``count`` processes, from the first call to the last. Each begins with ``begin(*arguments)``."""

    def __init__(
        self, count: int, begin: Callable[..., object] | None = None, *arguments: object
    ) -> None:
        # Its other end is closed when this process ends, in whatever way; loky's processes would stay.
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
    """The context whose server forks processes, with the server started; None if there is none.

    The server keeps the environment and the folder in which it was started. There is also none if the path
    of the folder for temporary files is too long for a socket.
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
    """Begin a process that ends when the other end of the pipe ``ended`` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    Thread(target=_follow, args=(ended,), daemon=True).start()
    if begin is not None:
        begin(*arguments)


def _follow(ended: Connection) -> None:
    ended.poll(None)
    os._exit(1)
