"""Worker processes on this host, which live from the first job to the last."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from sedge_emulate.workers import worker
from sedge_emulate.workers.processes import Processes
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Answers, Request


class LocalWorkers:
    """``count`` worker processes on this host. They map the data from disk and share the host's files."""

    def __init__(self, setup: WorkerSetup, count: int) -> None:
        self.count = count
        self._processes = Processes(count, worker.start, setup)

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Call a function from the module ``worker`` in one of the processes."""
        return self._processes.submit(function, *arguments)

    def perform(self, requests: Sequence[Request]) -> Future[Answers]:
        """Run the jobs of a group in one of the processes."""
        return self.submit(worker.perform, requests)

    def close(self) -> None:
        """End the processes, even during a job: nothing refers to an unfinished job's files yet."""
        self._processes.close()
