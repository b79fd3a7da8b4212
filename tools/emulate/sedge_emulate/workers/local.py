"""The worker processes of this host, by loky: all of them from the first job to the last."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing import Pipe
from typing import Any

from loky import ProcessPoolExecutor

from sedge_emulate.workers import worker
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Answers, Request

ENVIRONMENT = {
    # Each worker computes on one core; more threads would only wait for each other.
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    # loky replaces a process that grows by 300 MB, mapped data included; ours would open its trainer again.
    "LOKY_MAX_MEMORY_LEAK_SIZE": str(2**63),
}


class LocalWorkers:
    """``count`` processes with this setup; they map the data from disk and share the host's files."""

    def __init__(self, setup: WorkerSetup, count: int) -> None:
        self.count = count
        # Its other end is closed when this process ends, however that happens: loky's workers would stay.
        ended, self._open = Pipe(duplex=False)
        self._executor = ProcessPoolExecutor(
            count, initializer=worker.start, initargs=(setup, ended), env=ENVIRONMENT
        )

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Call a function of ``worker`` in one of the processes."""
        future: Future[Any] = self._executor.submit(function, *arguments)
        return future

    def perform(self, requests: Sequence[Request]) -> Future[Answers]:
        """Do the jobs of a group in one of the processes."""
        return self.submit(worker.perform, requests)

    def close(self) -> None:
        """End the processes, also in the midst of a job: what it has written so far nobody names."""
        self._executor.shutdown(kill_workers=True)
