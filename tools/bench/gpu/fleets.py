"""Measures emulations on the GPU: examples/thousand.toml (also on the CPU's cores) and 10,000 devices.

``sedge-emulate`` runs as users run it, including the coordinator, the coding of updates and evaluation.
``wall_s`` is taken from its result and excludes the start of its workers; ``command_s`` is how long the
user waits. On a GPU several workers share the card.
"""

import re
import tempfile
import time
from functools import partial
from pathlib import Path

from tools.bench.emulator import EXAMPLE, FLEET
from tools.bench.frameworks import emulated
from tools.bench.gpu.cells import Cell, Figures, Missing, Setting, Settings
from tools.bench.gpu.sizes import SIZES, Fleet, Size
from tools.bench.parts.environments import Unavailable

CPU, CUDA = "cpu", "cuda"


def thousand(settings: Settings) -> list[Cell]:
    """Return a cell on the GPU for each number of workers, and one on the CPU with a worker per core."""
    size = SIZES[settings.size]
    text = dressed(EXAMPLE.read_text(), size.thousand, size.dataset)
    on_cpu = Cell(_setting(size, size.thousand, on=CPU), partial(measured, settings, text, CPU, 0))
    if settings.device == CPU:
        return [on_cpu]
    first, *others = [
        Cell(
            _setting(size, size.thousand, on=CUDA, workers=count),
            partial(measured, settings, text, CUDA, count),
        )
        for count in size.workers
    ]
    return [first, on_cpu, *others]


def large(settings: Settings) -> list[Cell]:
    """Return a cell for each large fleet.

    At full size, each cell runs two rounds of 10,000 devices: a tenth of them per round, then all.
    """
    size, workers = SIZES[settings.size], SIZES[settings.size].workers[0]
    found: list[Cell] = []
    for fleet in size.fleets:
        text = FLEET.format(devices=fleet.devices, rounds=fleet.rounds, fraction=fleet.fraction)
        text = dressed(text, fleet, size.dataset)
        found.append(
            Cell(
                _setting(size, fleet, on=settings.device, workers=workers),
                partial(measured, settings, text, settings.device, workers),
            )
        )
    return found


def dressed(text: str, fleet: Fleet, dataset: str) -> str:
    """Return a fleet file's text with its devices, rounds, training share and data set replaced."""
    for key, value in (
        ("devices", fleet.devices),
        ("num_rounds", fleet.rounds),
        ("fraction_train", fleet.fraction),
        ("dataset", f'"{dataset}"'),
    ):
        text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
        assert count == 1, key
    return text


def text_of(text: str, on: str, workers: int) -> str:
    """Return a fleet file's text for training on ``on`` with ``workers`` workers (0: one per core)."""
    return f'workers = {workers}\n{text}[trainer]\ndevice = "{on}"\n'


def measured(settings: Settings, text: str, on: str, workers: int) -> Figures:
    """Run an emulation, and return its times, rates and memory.

    Raises ``Missing`` if it fails or takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        folder = Path(name)
        log = folder / "log"
        start = time.monotonic()
        try:
            found = emulated(text_of(text, on, workers), folder, log, settings.left())
        except Unavailable as exc:
            raise Missing(reason(exc, log)) from exc
        took = time.monotonic() - start
    engine = found.engine
    assert engine is not None  # always set for an emulation
    return {
        "wall_s": engine.wall_s,
        "command_s": took,
        "device_rounds": engine.device_rounds,
        "device_rounds_s": engine.device_rounds / engine.wall_s,
        "workers": engine.workers,
        "train_s": engine.train_s,
        "peak_rss_bytes": engine.peak_rss_bytes,
    }


def reason(why: Unavailable, log: Path) -> str:
    """Return why a program was not measured, with its last line of output."""
    lines = log.read_text().strip().splitlines() if log.exists() else []
    what, _, _ = str(why).partition(", see ")  # the log named there will be deleted
    return f"{what}: {lines[-1]}" if lines else what


def _setting(size: Size, fleet: Fleet, **rest: str | int) -> Setting:
    return {
        "devices": fleet.devices,
        "a round": round(fleet.devices * fleet.fraction),
        "rounds": fleet.rounds,
        "data": size.dataset,
        **rest,
    }
