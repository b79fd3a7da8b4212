"""Queues the jobs of virtual devices, and groups jobs for the workers.

Jobs wait here until a worker is free. The largest job goes first, so that no worker is left alone with
it at the end. In virtual time (``hold``), that applies only to jobs far larger than the average and to
the last few jobs. Otherwise the smallest goes first: its device finishes first in virtual time, and its
update is processed while the next jobs train. Jobs of the same size are then adjacent, which suits
trainers that work on several devices at once.
"""

import itertools
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Protocol

from sedge_edge.jobs.global_model import BrokenSteps
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.workers import worker
from sedge_emulate.workers.worker import Answers, Failed, Finished, Request
from sedge_protocol.errors import (
    CodecError,
    ConfigError,
    DataError,
    LinkError,
    LocalError,
    SedgeError,
    StorageError,
)
from sedge_protocol.layout import Theta

# In virtual time, a job goes first only if it is this many times as large as the average waiting job.
LARGE = 2.0
_ERRORS: dict[str, type[SedgeError]] = {
    kind.__name__: kind
    for kind in (BrokenSteps, CodecError, ConfigError, DataError, StorageError, TrainingDiverged)
}


class Workers(Protocol):
    """``count`` processes that train, on this host (``local.py``) or on several (``cluster.py``)."""

    count: int

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Call a function from the module ``worker`` in one of the processes."""
        ...

    def perform(self, requests: Sequence[Request]) -> Future[Answers]:
        """Run the jobs of a group in one of the processes."""
        ...

    def close(self) -> None:
        """End the processes."""
        ...


class WorkerPool:
    """Hands groups of waiting jobs to ``workers``; a group is no larger than the trainer's width.

    ``hold`` keeps jobs back until they fill a group, or until ``flush``. Once a worker has died, every
    job raises ``failure``. If the trainer does not use the requested device, ``notes`` say why.

    Raises ``ConfigError`` if the trainer cannot be opened, and ``LinkError`` if a worker cannot start.
    """

    def __init__(self, workers: Workers, hold: bool = False) -> None:
        self.workers = workers.count
        self.train_s = 0.0
        self.failure: LinkError | None = None
        self._processes = workers
        self._closed = False
        self._hold = hold
        self._lock = Lock()
        self._numbers = itertools.count()
        self._waiting: list[_Waiting] = []  # sorted
        self._steps = 0
        self._busy = 0
        self._draining = False
        self._peaks: dict[int, int] = {}
        try:
            # Each worker opens its trainer now rather than in the middle of a round.
            opened = [workers.submit(worker.describe) for _ in range(self.workers)]
            answers = [one.result() for one in opened]
            self.trainer, self._width, self.notes = answers[0]
        except BrokenProcessPool as exc:
            self.close()
            raise self._shown(exc) from exc
        except BaseException:
            self.close()
            raise

    @property
    def peak_rss(self) -> int:
        """The sum of the workers' peak memory, in bytes."""
        return sum(self._peaks.values())

    def submit(self, request: Request, size: int) -> Future[Finished]:
        """Queue a job of ``size`` training steps. The future raises the job's exceptions."""
        future: Future[Finished] = Future()
        with self._lock:
            insort(self._waiting, _Waiting(size, next(self._numbers), request, future))
            self._steps += size
        self._hand_out()
        return future

    def judge(self, theta: Theta) -> float | None:
        """Return a full-width model's metric on the central test set, or None if its loss is not finite."""
        try:
            judged: float | None = self._processes.submit(worker.judge, theta).result()
        except BrokenProcessPool as exc:
            raise self._shown(exc) from exc
        return judged

    def flush(self) -> None:
        """Hand out all waiting jobs, even if they do not fill a group."""
        with self._lock:
            self._draining = True
        self._hand_out()

    def _hand_out(self) -> None:
        """Give waiting jobs to workers as long as there are groups to hand out."""
        while group := self._next_group():
            requests = [waiting.request for waiting in group]
            try:
                done = self._processes.perform(requests)
            except RuntimeError as exc:  # a worker died, or the pool was closed just now
                self._give_up(group, exc)
            else:
                done.add_done_callback(partial(self._take, group))

    def close(self) -> None:
        """End the workers. Running and waiting jobs are cancelled."""
        with self._lock:
            self._closed = True
            group, self._waiting = self._waiting, []
        for waiting in group:
            waiting.future.cancel()
        self._processes.close()

    def _next_group(self) -> list["_Waiting"]:
        """Take the next group of jobs to hand out. Returns [] if there is none.

        One more group than there are workers may be handed out, so that no worker waits for this process.
        """
        with self._lock:
            self._draining = self._draining and bool(self._waiting)
            enough = 1 if self._draining or not self._hold else self._width
            if len(self._waiting) < enough or self._busy > self.workers or self._closed:
                return []
            share = self._share() if enough == 1 else enough
            count = min(self._width, share)
            self._busy += 1
            take = self._largest if self._largest_first() else self._smallest
            return [take() for _ in range(count)]

    def _share(self) -> int:
        """Return how many waiting jobs the next worker gets.

        The idle workers share them equally, or, if none is idle, all workers do.
        """
        idle = self.workers - self._busy
        return math.ceil(len(self._waiting) / (idle if idle > 0 else self.workers))

    def _largest_first(self) -> bool:
        waiting = len(self._waiting)
        last = waiting <= 2 * self.workers * self._width
        return not self._hold or last or self._waiting[-1].size > LARGE * self._steps / waiting

    def _largest(self) -> "_Waiting":
        """Take the largest job; if several are equally large, the one that arrived first."""
        size = self._waiting[-1].size
        return self._taken(bisect_left(self._waiting, size, key=lambda waiting: waiting.size))

    def _smallest(self) -> "_Waiting":
        return self._taken(0)

    def _taken(self, place: int) -> "_Waiting":
        taken = self._waiting.pop(place)
        self._steps -= taken.size
        return taken

    def _take(self, group: list["_Waiting"], done: "Future[Answers]") -> None:
        """Handle a group that a worker has finished. Called in one of the executor's threads."""
        try:
            answers = done.result()
        except BaseException as exc:  # raised when the result is read
            self._give_up(group, exc)
            self.flush()
            return
        with self._lock:
            self._busy -= 1
        self._hand_out()
        self.train_s += answers.train_s
        self._peaks[answers.pid] = answers.peak_rss
        for waiting, answer in zip(group, answers.answers, strict=True):
            if isinstance(answer, Failed):
                waiting.future.set_exception(raised(answer))
            else:
                waiting.future.set_result(answer)

    def _give_up(self, group: list["_Waiting"], error: BaseException) -> None:
        """Fail a group's jobs after an error, and all waiting jobs if the workers are gone."""
        with self._lock:
            self._busy -= 1
            shown = self._shown(error)
            if self.failure is not None:
                group = [*group, *self._waiting]
                self._waiting, self._steps = [], 0
        for waiting in group:
            if self._closed:
                waiting.future.cancel()
            else:
                waiting.future.set_exception(shown)

    def _shown(self, error: BaseException) -> BaseException:
        """Replace an executor's error with one that says what to do. Returns other errors unchanged."""
        if isinstance(error, LinkError):  # its message says what to do
            self.failure = self.failure or error
        elif not isinstance(error, BrokenProcessPool):
            return error
        if self.failure is None:
            self.failure = LinkError(
                "a worker process has died (out of memory?); try fewer workers"
            )
            self.failure.__cause__ = error
        return self.failure


def raised(failed: Failed) -> SedgeError:
    """Rebuild a job's error from its class and text. The fields of a ``ConfigError`` are not restored."""
    kind = _ERRORS.get(failed.kind, LocalError)
    return kind.__new__(kind, failed.text)


@dataclass(frozen=True, order=True)
class _Waiting:
    """A job in the queue. Jobs are ordered by size, and jobs of the same size by arrival."""

    size: int
    number: int
    request: Request = field(compare=False)
    future: "Future[Finished]" = field(compare=False)
