"""Measures the emulator's start-up: CPU time until the first round, with and without its cache.

A fleet of ten devices with the 4-layer CNN is started several times with and without it.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from statistics import median

from tools.bench.emulator import FLEET
from tools.bench.harness import Figure, Result, bench


def start_s(fleet: Path, folder: Path, *words: str) -> float:
    """Return the CPU seconds that all processes use until a run reports that its first strategy begins."""
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)  # left by the last start, which was killed
    command = [sys.executable, "-m", "sedge_emulate", "run", str(fleet), "--out", str(out), *words]
    environment = os.environ | {"XDG_CACHE_HOME": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if line.startswith("fedobp: "))
        seconds = processor_s(process.pid)
        process.terminate()
        process.communicate()
    return seconds


def processor_s(root: int) -> float:
    """Return the CPU seconds that a process and all its descendants have used so far."""
    ticks, children = dict[int, int](), dict[int, list[int]]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended since the folder was listed
            fields = path.read_text().rpartition(")")[2].split()
            pid = int(path.parent.name)
            # utime and stime of the process, and of its terminated children
            ticks[pid] = sum(map(int, fields[11:15]))
            children.setdefault(int(fields[1]), []).append(pid)
    family = [root]
    for pid in family:
        family.extend(children.get(pid, ()))
    return sum(ticks[pid] for pid in family) / os.sysconf("SC_CLK_TCK")


def figures(found: Result) -> list[Figure]:
    """Return figures for the start-up cost with and without the cache."""
    ways = {"cold_s": "an empty cache", "cached_s": "its model in the cache"}
    return [
        Figure(f"processor seconds until the first round, {words}", f"{found['start'][key]:.1f}")
        for key, words in ways.items()
    ]


@bench("The emulator's start", figures)
def measure(times: int = 3) -> Result:
    """Measure a small fleet's median start-up time, with an empty cache and with the model in the cache."""
    cold: list[float] = []
    cached: list[float] = []
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        fleet = Path(name) / "fleet.toml"
        fleet.write_text(FLEET.format(devices=10, rounds=1, fraction=1))
        for _ in range(times):
            cold.append(start_s(fleet, Path(name), "--fresh"))
            cached.append(start_s(fleet, Path(name)))
    return {"start": {"cold_s": median(cold), "cached_s": median(cached)}}
