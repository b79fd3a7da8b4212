"""Measures emulations on the GPU: examples/thousand.toml, also on the CPU's cores, and 10,000 devices.

``sedge-emulate`` runs as users run it, with coordinator, coding and evaluation. Wall seconds are those in
its result, counted from when its workers have started; ``command_s`` is how long the user waits. On a GPU
several workers share the card.
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
    """Return the example on the GPU with each number of workers, and on the CPU with one per core."""
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
    """Return two runs of two rounds of a large fleet: with a tenth of it in each round, then with all."""
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
    """Return a fleet file's text with other numbers of devices and rounds, and other data."""
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
    """Return a fleet file's text that trains on this device with this many workers (0: one per core)."""
    return f'workers = {workers}\n{text}[trainer]\ndevice = "{on}"\n'


def measured(settings: Settings, text: str, on: str, workers: int) -> Figures:
    """Measure the cost of an emulation. Raises ``Missing`` if it fails or takes too long."""
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
    assert engine is not None  # an emulation always reports these
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
    what, _, _ = str(why).partition(", see ")  # because its log is not kept
    return f"{what}: {lines[-1]}" if lines else what


def _setting(size: Size, fleet: Fleet, **rest: str | int) -> Setting:
    return {
        "devices": fleet.devices,
        "a round": round(fleet.devices * fleet.fraction),
        "rounds": fleet.rounds,
        "data": size.dataset,
        **rest,
    }
