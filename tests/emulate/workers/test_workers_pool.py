"""The pool: who does which jobs together, and what becomes of jobs, errors and processes.

What it decides is tested on workers that only take notes; what processes do, on real ones.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loky import process_executor
from tests.emulate.workers.fleet_of_four import OrderMaker, with_backend
from tests.fleet import is_alive
from tools.bench.parts.real_fleet import wait_until

from sedge_edge.jobs.global_model import BrokenSteps
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.workers import worker
from sedge_emulate.workers.local import LocalWorkers
from sedge_emulate.workers.pool import WorkerPool
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Answers, Failed, Finished, Request
from sedge_protocol.errors import CodecError, ConfigError, LinkError, LocalError
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Step

WIDTH = 3


class FakeWorkers:
    """Workers that take notes. ``groups`` are the devices of each, ``answers`` what they wait for."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.groups: list[list[int]] = []
        self.answers: list[Future[Answers]] = []
        self.broken = False
        self.described = 0

    def submit(self, function: Callable[..., object], *arguments: object) -> Future[Any]:
        assert function is worker.describe
        future: Future[Any] = Future()
        self.described += 1
        future.set_result(("noted", WIDTH, ["training on the CPU"]))
        return future

    def perform(self, requests: Sequence[Request]) -> Future[Answers]:
        if self.broken:
            raise BrokenProcessPool("a process has gone")
        self.groups.append([request.device for request in requests])
        self.answers.append(Future())
        return self.answers[-1]

    def close(self) -> None:
        for future in self.answers:
            future.cancel()

    def answer(self, place: int) -> None:
        """A worker has done a group."""
        outcome: Any = Outcome("r", 1, b"", REPORT)
        done = [Finished(outcome, bytes([device])) for device in self.groups[place]]
        self.answers[place].set_result(Answers(list(done), 0.5, 100 + place % 2, 1000))


REPORT: Any = None
NO_JOB: Any = None


def pooled(count: int = 1, hold: bool = True) -> tuple[FakeWorkers, WorkerPool]:
    workers = FakeWorkers(count)
    return workers, WorkerPool(workers, hold=hold)


def submit(pool: WorkerPool, sizes: Sequence[int]) -> list[Future[Finished]]:
    """A job of each size, for the device of that number."""
    home = Path()
    return [pool.submit(Request(size, NO_JOB, home), size) for size in sizes]


def test_jobs_go_in_groups_of_which_the_last_are_the_largest_first() -> None:
    workers, pool = pooled(2)
    assert (pool.trainer, pool.workers) == ("noted", 2)
    assert pool.notes == ["training on the CPU"]
    assert workers.described == 2  # each opens its trainer
    sizes = [1, 5, 2, 9, 9, 7, 3, 8, 4, 6, 10]
    jobs = submit(pool, sizes)
    # As soon as a group is full it goes; one more group than workers lies ready.
    assert workers.groups == [[5, 2, 1], [9, 9, 7], [8, 4, 3]]
    pool.flush()
    workers.answer(1)
    assert workers.groups[3:] == [[10]]  # the last two are one for each worker
    assert [job.done() for job in jobs] == [size in (9, 7) for size in sizes]
    for place in (0, 2, 3, 4):
        workers.answer(place)
    assert [job.result().update[0] for job in jobs] == sizes
    assert pool.train_s == 2.5
    assert pool.peak_rss == 2000  # two processes had two groups each


@pytest.mark.parametrize(
    ("virtual", "order"),
    [
        # The smallest, but for the very large and the last; on a broker always the largest.
        (True, [10, 11, 40, 12, 12, 13, 13, 15, 14]),
        (False, [10, 11, 40, 15, 14, 13, 13, 12, 12]),
    ],
)
def test_which_goes_first(virtual: bool, order: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "WIDTH", 1)
    workers, pool = pooled(hold=virtual)
    # The first two find the worker free; the average of the others is 17.
    submit(pool, [10, 11, 14, 12, 40, 13, 15, 12, 13])
    for place in range(9):
        workers.answer(place)
    assert [device for group in workers.groups for device in group] == order


def test_of_equals_the_first_goes_first() -> None:
    workers, pool = pooled()
    for device in range(5):
        pool.submit(Request(device, NO_JOB, Path()), 7)
    pool.flush()
    assert workers.groups == [[0, 1, 2], [3, 4]]


def test_without_hold_a_job_begins_at_once_where_somebody_is_free() -> None:
    workers, pool = pooled(hold=False)
    submit(pool, [1, 2, 3, 4, 5, 6])
    assert workers.groups == [[1], [2]]
    workers.answer(0)
    assert workers.groups[2:] == [[6, 5, 4]]


def test_jobs_are_held_back_until_they_fill_a_group_or_are_asked_for() -> None:
    workers, pool = pooled()
    submit(pool, [1, 2])
    assert workers.groups == []
    pool.flush()
    assert workers.groups == [[2, 1]]
    submit(pool, [3, 4])
    workers.answer(0)
    assert workers.groups == [[2, 1]]  # two may yet become three
    submit(pool, [5])
    assert workers.groups == [[2, 1], [5, 4, 3]]


def test_waiting_jobs_are_divided_over_idle_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 devices, 4 workers, and a trainer that likes 64 at once."""
    monkeypatch.setitem(globals(), "WIDTH", 64)
    workers, pool = pooled(4)
    submit(pool, [7] * 60)
    pool.flush()
    assert [len(group) for group in workers.groups] == [15, 15, 15, 15]
    submit(pool, [7] * 10)
    pool.flush()  # nobody is idle: one more group lies ready, and the others find something left
    assert [len(group) for group in workers.groups[4:]] == [3]
    for place in range(5):
        workers.answer(place)
    assert [len(group) for group in workers.groups[5:]] == [2, 2, 1, 1, 1]


def test_what_is_asked_for_while_all_are_busy_goes_when_somebody_is_free() -> None:
    workers, pool = pooled()
    submit(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    pool.flush()
    assert workers.groups == [[3, 2, 1], [6, 5, 4]]
    workers.answer(0)
    assert workers.groups == [[3, 2, 1], [6, 5, 4], [8, 7]]


@pytest.mark.parametrize("when", ["at work", "between"])
def test_a_broken_pool_fails_every_job_and_none_waits_for_ever(when: str) -> None:
    workers, pool = pooled()
    workers.broken = when == "between"
    jobs = submit(pool, list(range(1, 20)))
    pool.flush()
    workers.broken = True
    for answers in workers.answers:
        answers.set_exception(BrokenProcessPool("a process has gone"))
    later = submit(pool, [1, 2])
    pool.flush()
    for job in [*jobs, *later]:
        with pytest.raises(LinkError, match="a worker process has died"):
            job.result(timeout=0)
    assert isinstance(pool.failure, LinkError)


@pytest.mark.parametrize("when", ["at work", "between"])
def test_a_broken_pool_fails_jobs_however_many_wait(when: str) -> None:
    """One after the other, and not each within the one before: Python's stack holds a thousand calls."""
    workers, pool = pooled()
    jobs = submit(pool, [1] * 5000)
    workers.broken = True
    if when == "at work":
        workers.answers[0].set_exception(BrokenProcessPool("a process has gone"))
    else:  # this process sees it first, as it hands out what waits
        workers.answer(0)
    assert all(isinstance(job.exception(timeout=0), LinkError) for job in jobs[2 * WIDTH :])


def test_an_unknown_error_is_the_jobs() -> None:
    workers, pool = pooled(hold=False)
    (job,) = submit(pool, [1])
    workers.answers[0].set_exception(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError, match="a bug"):
        job.result()
    assert pool.failure is None
    submit(pool, [2])
    assert workers.groups == [[1], [2]]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BrokenSteps", BrokenSteps),
        ("CodecError", CodecError),
        ("ConfigError", ConfigError),
        ("TrainingDiverged", TrainingDiverged),
        ("ExportError", LocalError),  # not something that a job may raise
    ],
)
def test_errors_keep_their_class(kind: str, expected: type[Exception]) -> None:
    workers, pool = pooled(hold=False)
    (job,) = submit(pool, [1])
    workers.answers[0].set_result(Answers([Failed(kind, "why")], 0.1, 1, 1))
    with pytest.raises(expected, match="why") as caught:
        job.result()
    assert type(caught.value) is expected


def test_closing_gives_up_what_is_begun_and_what_waits() -> None:
    workers, pool = pooled()
    jobs = submit(pool, list(range(1, 20)))
    pool.flush()
    pool.close()
    for job in jobs:
        with pytest.raises(CancelledError):
            job.result(timeout=0)
    pool.flush()
    assert len(workers.groups) == 2


# Real processes.

ALLOWED = 2**20
grown: list[bytearray] = []


@pytest.fixture(scope="module")
def workers(setup: WorkerSetup) -> LocalWorkers:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOKY_MAX_MEMORY_LEAK_SIZE", str(ALLOWED))
        return LocalWorkers(setup, 1)


@pytest.fixture(scope="module")
def pool(workers: LocalWorkers) -> Generator[WorkerPool]:
    with closing(WorkerPool(workers)) as pool:
        yield pool


def request_of(maker: OrderMaker, device: int, **changes: Any) -> Request:
    return Request(device, Job(maker.order(**changes)), maker.home, bytes([device]) * 32, 1.0)


def test_a_process_does_what_this_one_would_and_ctrl_c_is_nothing_to_it(
    pool: WorkerPool, setup: WorkerSetup, maker: OrderMaker
) -> None:
    request = request_of(maker, 1)
    found = pool.submit(request, 1).result()
    assert worker.Worker(setup).perform([request]).answers == [found]
    (pid,) = pool._peaks
    os.kill(pid, signal.SIGINT)
    assert pool.submit(request, 1).result() == found
    assert list(pool._peaks) == [pid]
    assert pool.peak_rss > 2**20 and pool.train_s > 0


def grow() -> int:
    """Touch much more than loky is told to allow, and let it look now instead of in a second."""
    process_executor._MEMORY_LEAK_CHECK_DELAY = 0
    grown.append(bytearray(b"x") * (10 * ALLOWED))
    return os.getpid()


@pytest.mark.usefixtures("pool")
def test_a_process_that_grows_stays(workers: LocalWorkers) -> None:
    assert len({workers.submit(grow).result() for _ in range(3)}) == 1


def test_errors_cross_the_process_boundary(pool: WorkerPool, maker: OrderMaker) -> None:
    step = Step(maker.order().model_hash, maker.put(b"no delta"))
    known = request_of(maker, 0)
    pool.submit(known, 1).result()  # leaves the version that the step builds on
    for error, changes in (
        (CodecError, {"patch": b"patch", "patch_hash": bytes(32)}),
        (BrokenSteps, {"model_hash": bytes(32), "steps": (step,)}),
    ):
        with pytest.raises(error) as caught:
            pool.submit(request_of(maker, 1, **changes), 1).result()
        assert type(caught.value) is error
        assert "run run, round 1" in str(caught.value)


def test_a_bug_in_a_process_is_shown_here(pool: WorkerPool, maker: OrderMaker) -> None:
    nobody: Any = "no number"
    request = replace(request_of(maker, 0), device=nobody)
    with pytest.raises(Exception, match="str") as caught:
        pool.submit(request, 1).result()
    assert not isinstance(caught.value, LinkError)
    assert "worker.py" in str(caught.value.__cause__)
    assert pool.submit(request_of(maker, 0), 1).result().update


def test_a_trainer_that_there_is_not(setup: WorkerSetup) -> None:
    with pytest.raises(ConfigError, match="one of auto") as caught:
        WorkerPool(LocalWorkers(with_backend(setup, "nonsense"), 1))
    assert (caught.value.key, caught.value.found) == ("trainer", "nonsense")


def test_a_worker_that_dies_is_a_clear_error(setup: WorkerSetup, maker: OrderMaker) -> None:
    with closing(WorkerPool(LocalWorkers(setup, 1))) as pool:
        request = request_of(maker, 1)
        pool.submit(request, 1).result()
        endless = request_of(maker, 2, training=Training(local_epochs=1000, learning_rate=0.01))
        jobs = [pool.submit(replace(endless, key=bytes([i]) * 32), i) for i in range(20)]
        (pid,) = pool._peaks
        os.kill(pid, signal.SIGKILL)
        for job in jobs:
            with pytest.raises(LinkError, match=r"died \(out of memory\?\); try fewer workers"):
                job.result()
        with pytest.raises(LinkError):
            pool.submit(request, 1).result()


def test_closing_ends_processes_that_are_at_work(setup: WorkerSetup, maker: OrderMaker) -> None:
    workers = LocalWorkers(setup, 2)
    pool = WorkerPool(workers)
    endless = request_of(maker, 2, training=Training(local_epochs=1000, learning_rate=0.01))
    jobs = [pool.submit(replace(endless, key=bytes([i]) * 32), i) for i in range(9)]
    pool.submit(request_of(maker, 0), 100)
    pids = list(workers._processes._executor._processes)
    assert len(pids) == 2
    pool.close()
    assert not any(map(is_alive, pids))
    assert all(job.done() for job in jobs)
    assert jobs[-1].cancelled()


PARENT = """
import os, pickle, sys, time
from sedge_emulate.workers.local import LocalWorkers

if __name__ == "__main__":
    workers = LocalWorkers(pickle.load(open(sys.argv[1], "rb")), 1)
    print(workers.submit(os.getpid).result(), flush=True)
    time.sleep(600)
"""


def test_workers_end_with_the_process_that_started_them(setup: WorkerSetup, tmp_path: Path) -> None:
    script, pickled = tmp_path / "parent.py", tmp_path / "setup"
    script.write_text(PARENT)
    pickled.write_bytes(pickle.dumps(setup))
    command = [sys.executable, str(script), str(pickled)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.kill()
    wait_until(lambda: not is_alive(pid), 30, "the worker ends")
