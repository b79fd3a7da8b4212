"""Measures how fast several processes train on one GPU, each with its own CUDA context and stream.

pfl-research uses a GPU this way, and so do the emulator's workers. Each process trains its own devices for
the same period, and the rates are added up.
"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import cache, partial
from multiprocessing import get_context

import torch
from tools.bench.gpu.cells import Cell, Figures, Settings
from tools.bench.gpu.loop import DEFAULT, Loop
from tools.bench.gpu.rate import finished
from tools.bench.gpu.sizes import SIZES
from tools.bench.gpu.subjects import examples_of, problem, subject
from tools.bench.gpu.vectorised import Form
from tools.bench.training import example_tasks

LOOP, VECTORISED = "loop", "vectorised"
# Training starts this many seconds after it is requested, so that all processes start at the same time.
_AHEAD_S = 0.2


def cells(settings: Settings) -> list[Cell]:
    """Return two cells for each number of processes, one for the loop and one for the trainer.

    All use the first model.
    """
    size = SIZES[settings.size]
    return [
        Cell(
            {"model": size.models[0], "by": way, "processes": count},
            partial(measured, settings, way, count),
        )
        for count in size.processes
        for way in (LOOP, VECTORISED)
    ]


def measured(settings: Settings, way: str, count: int) -> Figures:
    """Measure how many examples per second all processes train on together."""
    size = SIZES[settings.size]
    with ExitStack() as stack:
        pools = [
            stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"))) for _ in range(count)
        ]
        for ready in [pool.submit(_once, settings, way, count) for pool in pools]:
            ready.result()
        begin = time.monotonic() + _AHEAD_S
        rates = [
            pool.submit(_between, settings, way, count, begin, begin + 4 * size.seconds)
            for pool in pools
        ]
        return {"examples_s": sum(rate.result() for rate in rates)}


# The functions below run in each process, which builds its work only once for given arguments.


def _once(settings: Settings, way: str, count: int) -> None:
    work, _ = _work(settings, way, count)
    work()
    finished(settings.device)


def _between(settings: Settings, way: str, count: int, begin: float, end: float) -> float:
    """Train from ``begin`` until the work that is in progress at ``end`` is done.

    Returns examples per second.
    """
    work, examples = _work(settings, way, count)
    time.sleep(max(0.0, begin - time.monotonic()))
    done = 0
    while not done or time.monotonic() < end:
        work()
        finished(settings.device)
        done += examples
    return done / (time.monotonic() - begin)


@cache
def _work(settings: Settings, way: str, count: int) -> tuple[Callable[[], object], int]:
    """Return a function that does this process's training on its own stream, and its examples per call."""
    size, device = SIZES[settings.size], settings.device
    if device == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    else:
        torch.set_num_threads(1)
    width = size.loop_devices if way == LOOP else max(1, size.widths[0] // count)
    example = subject(size.models[0], size, width)
    if way == LOOP:
        return Loop(example, device, DEFAULT).train, examples_of(example)
    of = problem(example)
    trainer, tasks = Form().open(of, device, width), example_tasks(example, of.network.theta)
    return partial(trainer.train, tasks), examples_of(example)
