"""Runs stages as child processes.

If one fails, its measured rows are kept, and the other stages still run.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import IO

import msgspec
from tools.bench.gpu.cells import Row, Setting, Settings
from tools.bench.gpu.stages import Stage

ROOT = Path(__file__).parents[3]
UNUSABLE = 2
# A child starts no more cells after this share of its time limit.
_MARGIN = 0.9
# How long a process may take to exit.
_ENDING_S = 10.0
# Use one thread on a CPU, as an emulation's worker does: several threads wait for each other, so their
# figures would depend on the machine's other load.
_ENVIRONMENT = {"cpu": {"OMP_NUM_THREADS": "1"}, "cuda": {}}


@dataclass(frozen=True)
class StageEnd:
    """How a stage ended: how long it took, its exit status, and ``why`` it failed ("" if it did not)."""

    seconds: float
    status: int
    why: str = ""


def run_stage(
    stage: Stage, device: str, size: str, limit_s: float, note: Callable[[Row], None]
) -> StageEnd:
    """Run a stage for at most ``limit_s`` seconds, and pass each row to ``note`` as it arrives.

    Every planned cell gets a row. If a crash or the time limit kept a cell from being measured, its row
    says so.
    """
    start = time.monotonic()
    planned: list[Setting] = []
    count = 0
    with (
        tempfile.TemporaryFile() as errors,
        _started(stage, device, size, limit_s, errors) as child,
    ):
        lines: Queue[bytes | None] = Queue()
        threading.Thread(target=_read, args=(child, lines), daemon=True).start()
        try:
            while line := lines.get(timeout=max(0.0, start + limit_s - time.monotonic())):
                if planned:
                    note(msgspec.json.decode(line, type=Row))
                    count += 1
                else:
                    planned = msgspec.json.decode(line, type=list[Setting])
            status = child.wait(_ENDING_S)
            why = _reason(status, errors)
        except (Empty, subprocess.TimeoutExpired):
            status, why = -signal.SIGKILL, f"not finished after {limit_s:.0f} s"
    for setting in planned[count:]:
        note(Row(setting, why=why or "the stage ended early"))
    return StageEnd(time.monotonic() - start, status, why)


@contextmanager
def _started(
    stage: Stage, device: str, size: str, limit_s: float, errors: IO[bytes]
) -> "Generator[subprocess.Popen[bytes]]":
    """Start the stage's process. When the context ends, kill the process and all its descendants.

    A process that waits for a broken driver may survive even SIGKILL; it is left running.
    """
    end = time.monotonic() + _MARGIN * limit_s
    settings = msgspec.json.encode(Settings(device, size, end)).decode()
    words = [sys.executable, "-m", "tools.bench.gpu.child", stage.cells, settings]
    child = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT, start_new_session=True,
        env=os.environ | _ENVIRONMENT[device],
    )  # fmt: skip
    try:
        yield child
    finally:
        _kill(child)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_ENDING_S)


def _read(child: "subprocess.Popen[bytes]", lines: "Queue[bytes | None]") -> None:
    """Put each line that a child writes into ``lines``, then None when its output ends."""
    assert child.stdout is not None
    with child.stdout as out:
        for line in out:
            lines.put(line)
    lines.put(None)


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """Kill a child and the descendants in its process group."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _reason(status: int, errors: IO[bytes]) -> str:
    """Return why a child failed (its signal, or its last line of output), or ""."""
    if not status:
        return ""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    errors.seek(0)
    lines = errors.read().decode(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last if status == UNUSABLE else f"exit status {status}: {last}"
