"""Stages of ``tools.bench.gpu`` that go wrong, each in its own way, and two that do not. Loads no torch."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tools.bench.gpu.cells import Cell, Figures, Missing, Settings, Unusable
from tools.bench.gpu.stages import Stage

HERE = __name__


def stage(function: str, seconds: float = 60.0) -> Stage:
    """A stage of this module."""
    return Stage(function, function, seconds, f"{HERE}:{function}")


def card(settings: Settings) -> list[Cell]:
    """A CPU's limits."""
    if settings.device != "cpu":
        raise Unusable("--device cuda: expected a GPU")
    limits = {"flops_s": 1e9}
    return [
        _cell(what="card", name="a card"),
        Cell({"what": "matrix product", "precision": "fp32"}, lambda: limits),
        Cell({"what": "copy"}, lambda: {"bytes_s": 4e9}),
    ]


def loop(settings: Settings) -> list[Cell]:
    """Goes well."""
    figures = {"examples_s": 100.0, "flops_s": 5e8, "bytes_s": 1e9}
    return [Cell({"model": "avgcnn", "precision": "fp32"}, lambda: figures)]


def raises(settings: Settings) -> list[Cell]:
    """One cell of three raises, one has half of its figures."""
    return [
        Cell({"cell": 1}, partial(_raise, MemoryError("CUDA out of memory\nlong story"))),
        Cell({"cell": 2}, partial(_raise, Missing("half", {"round_s": 2.0}))),
        _cell(cell=3),
    ]


def crashes(settings: Settings) -> list[Cell]:
    """The second cell of three ends the process."""
    kill = partial(os.kill, os.getpid(), signal.SIGSEGV)
    return [_cell(cell=1), Cell({"cell": 2}, partial(_figures, kill)), _cell(cell=3)]


def exits(settings: Settings) -> list[Cell]:
    """Ends before it has planned anything."""
    print("the driver says no", file=sys.stderr)
    sys.exit(3)


def hangs(settings: Settings) -> list[Cell]:
    """The second cell starts a process and waits for it; its id is in the test's folder."""

    def wait() -> None:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        (Path(os.environ["SEDGE_TEST_FOLDER"]) / "pid").write_text(str(child.pid))
        child.wait()

    return [_cell(cell=1), Cell({"cell": 2}, partial(_figures, wait)), _cell(cell=3)]


def slow(settings: Settings) -> list[Cell]:
    """The first cell takes the time of the others."""
    rest = partial(time.sleep, settings.left())
    return [Cell({"cell": 1}, partial(_figures, rest)), _cell(cell=2)]


def interrupts(settings: Settings) -> list[Cell]:
    """The second cell sends Ctrl-C to the command, once that has kept the first one's row, and waits."""

    def interrupt() -> None:
        (journal,) = Path(os.environ["SEDGE_TEST_FOLDER"]).glob("*.jsonl")
        while '"cell":1' not in journal.read_text():
            time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)

    return [_cell(cell=1), Cell({"cell": 2}, partial(_figures, interrupt))]


def _cell(**setting: str | int) -> Cell:
    return Cell(setting, lambda: {"round_s": 1.0})


def _figures(work: Callable[[], None]) -> Figures:
    work()
    return {"round_s": 1.0}


def _raise(exc: Exception) -> Figures:
    print("noise on standard output")
    raise exc
