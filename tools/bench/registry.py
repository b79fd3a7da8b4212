"""Measures what it costs to have many devices enrolled.

    python -m tools.bench registry [--devices 10000,100000,1000000] [--postgres]

The product's command enrols the devices from a CSV file with secrets and two tags. A tenth of them, at most
100,000, say hello and are online. Separate processes then measure a coordinator's start until the facts
have been read, and its idle load; drawing a cohort of 1,000 from the devices that a condition selects; and
the first page of ``device list``. Seconds are CPU time, not counting a database server. With
``--postgres``, which starts a server for the rows, the import and the cohort are measured in wall time. The
last line is JSON.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from sedge_cloud.config import RunConfig, load_cloud
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.facts.reader import Reader
from sedge_cloud.recorder import Recorder
from sedge_cloud.rounds.cohort import draw_cohort
from sedge_cloud.runs.run import Run
from sedge_cloud.service import on_the_wall
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_store
from sedge_cloud.store.rows import SessionRow
from sedge_cloud.store.selector import parse
from sedge_protocol.wire.messages import TRAIN, Hello

FLEET = "registry"
MAX_ONLINE = 100_000
COHORT = 1000
SITES, FLOORS = 10, 1000
IDLE_S = 20.0
REPEATS = 5
SELECTS = ("site=s1 and memory_mb>=512", "memory_mb>=512")
NAME = "device-{:07}"


@dataclass(frozen=True)
class Row:
    """The costs of having ``devices`` devices enrolled.

    ``cohort`` maps a condition to the number of matching devices and the milliseconds to draw from them.
    """

    devices: int
    import_per_s: float
    start_s: float
    start_mb: float
    idle_share: float
    cohort: dict[str, tuple[int, float]]
    cohort_mb: float
    list_s: float
    state_mb: float


def filled(folder: Path, devices: int, url: str | None) -> tuple[Path, float]:
    """Enrol devices. Returns the path of cloud.toml, and how many devices were enrolled per second."""
    config, listed = folder / "cloud.toml", folder / "devices.csv"
    store = "" if url is None else f'[store]\nurl = "{url}"\n'
    config.write_text(f'fleet = "{FLEET}"\n{store}[broker]\nurl = "mqtt://127.0.0.1:1"\n')
    with listed.open("w") as file:
        file.write("device,secret,site,floor\n")
        for i in range(devices):
            secret = os.urandom(32).hex()
            file.write(f"{NAME.format(i)},{secret},s{i % SITES},{i // SITES % FLOORS}\n")
    begun = time.monotonic()
    took = run(config, "device", "add", "--names", str(listed))
    return config, devices / (took if url is None else time.monotonic() - begun)


def run(config: Path, *words: str) -> float:
    """Run a ``sedge-cloud`` command. Returns the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "sedge_cloud", "--config", str(config), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def come_online(store: Store, devices: int) -> None:
    """Let every tenth device say hello, but at most ``MAX_ONLINE`` devices in total."""
    step = max(10, devices // MAX_ONLINE)
    names = [NAME.format(i + i // step % SITES) for i in range(0, devices, step)]
    rows = store.devices_named(names)
    with store.transaction(flush=False):
        for i, name in enumerate(names):
            backends, memory_mb = ("onnxruntime",), 256 << i % 4
            hello = Hello(b"!" * 16, "bench", backends, num_train=100, memory_mb=memory_mb)
            store.save_hello(rows[name], 1, msgspec.msgpack.encode(hello))
        store.save_sessions([SessionRow(name, True, time.time()) for name in names])


def cohorts(store: Store, clock: Callable[[], float]) -> dict[str, tuple[int, float]]:
    """Return how many devices match each condition, and the milliseconds of drawing a cohort from them."""
    config = RunConfig(
        strategy="fedavg", min_train_devices=COHORT, min_available_devices=COHORT,
        fraction_train=1e-6,
    )  # fmt: skip
    run = cast(Run, SimpleNamespace(config=config))
    found: dict[str, tuple[int, float]] = {}
    for select in SELECTS:
        times: list[float] = []
        drawn: set[tuple[str, ...]] = set()
        ready: list[str] = []
        for _ in range(REPEATS):
            begun = clock()
            ready = sorted(store.online_matching(parse(select)))
            drawn.add(tuple(draw_cohort(run, 1, TRAIN, ready)))
            times.append(1000 * (clock() - begun))
        assert len(drawn) == 1 and len(drawn.pop()) == min(COHORT, len(ready))
        found[select] = len(ready), median(times)
    return found


def peak_mb() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start(config: Path) -> None:
    """Start a coordinator as the service does, let it idle, and print the costs of both steps as JSON."""
    cloud = load_cloud(config)
    with closing(open_store(cloud)) as store, closing(open_store(cloud)) as beside:
        core = Coordinator(cloud.fleet, store, 1.0, int(time.time()), wall=on_the_wall)
        recorder = Recorder(core, on_the_wall)
        reader = Reader(cloud.fleet, Path(cloud.state_dir), beside)
        core.load(time.monotonic())
        recorder.poll(time.monotonic())
        assert reader.read().coordinator.running
        took, mb = time.process_time(), peak_mb()
        begun, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - begun < IDLE_S:
            for _ in range(2):
                core.load(time.monotonic())
                core.poll(time.monotonic(), 64)
                recorder.poll(time.monotonic())
                time.sleep(0.5)
            reader.read()
        share = (time.process_time() - cpu) / (time.monotonic() - begun)
        print(json.dumps([took, mb, share]))


def select(config: Path) -> None:
    """Draw cohorts, and print their cost and the memory that they took as JSON."""
    cloud = load_cloud(config)
    clock = time.process_time if cloud.store.url is None else time.monotonic
    with closing(open_store(cloud)) as store:
        before = peak_mb()
        print(json.dumps([cohorts(store, clock), peak_mb() - before]))


def alone(what: str, config: Path) -> Any:
    """Run ``start`` or ``select`` in a separate process, and return its output."""
    command = [
        sys.executable,
        "-m",
        "tools.bench.registry",
        "--only",
        what,
        "--config",
        str(config),
    ]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def measured(devices: int, url: str | None) -> Row:
    """Enrol this many devices, and measure what they cost."""
    with tempfile.TemporaryDirectory() as name:
        config, rate = filled(Path(name), devices, url)
        with closing(open_store(load_cloud(config))) as store:
            come_online(store, devices)
            if url is not None:
                store._db.execute("VACUUM ANALYZE")  # PostgreSQL does this by itself after a while
            size = store.used_bytes() / 1e6
        cohort, cohort_mb = alone("select", config)
        took, mb, share = alone("start", config)
        listed = run(config, "device", "list", "--limit", "60")
    return Row(devices, rate, took, mb, share, cohort, cohort_mb, listed, size)


@contextmanager
def servers(wanted: bool, sizes: Sequence[int]) -> Generator[list[str | None]]:
    """Yield the URL of a database for each size, or None for each if the rows are in a file."""
    if not wanted:
        yield [None] * len(sizes)
        return
    from tools.bench.parts.servers import PostgresServer

    with closing(PostgresServer()) as server:
        for size in sizes:
            server.execute(f"CREATE DATABASE fleet_{size}")
        yield [server.url(f"fleet_{size}") for size in sizes]


def line(row: Row) -> str:
    """Format a row as a line of text."""
    cohort = "; ".join(f"{ms:.0f} ms for {n:,} by {by}" for by, (n, ms) in row.cohort.items())
    return (
        f"{row.devices:>9,} devices: {row.import_per_s:,.0f} enrolled per second, {row.state_mb:.0f} MB; "
        f"start {row.start_s:.2f} s, {row.start_mb:.0f} MB; idle {row.idle_share:.2%}; "
        f"a cohort {cohort}, +{row.cohort_mb:.0f} MB; device list {row.list_s:.2f} s"
    )


def main() -> None:
    """Measure every size. Prints a line for each, then a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", default="10000,100000,1000000")
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--only", choices=("start", "select"), help=argparse.SUPPRESS)
    parser.add_argument("--config", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only is not None:
        {"start": start, "select": select}[arguments.only](arguments.config)
        return
    sizes = [int(size) for size in arguments.devices.split(",")]
    rows: list[Row] = []
    with servers(arguments.postgres, sizes) as urls:
        for size, url in zip(sizes, urls, strict=True):
            rows.append(measured(size, url))
            print(line(rows[-1]), flush=True)
    rows_as = "postgres" if arguments.postgres else "sqlite"
    print(
        json.dumps({"bench": "registry", "rows": rows_as, "sizes": [asdict(row) for row in rows]})
    )


if __name__ == "__main__":
    main()
