"""Measures what it costs to display a fleet after many rounds.

The store has a run with a given number of closed rounds, of ten devices each, written as if the run had
happened. CPU time is measured for ``device list`` (the whole command), for the first status page (reading
the facts and drawing the page) and for a restart until the first ``/healthz`` (the coordinator loads its
state and the facts are read). registry.py measures an idle fleet.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median

import msgspec
from tools.bench.coordinator import FLEET, RUN, make_bundle
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import WHOLE
from sedge_cloud.config import RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.facts.reader import Reader
from sedge_cloud.outlets.page.html import status_page
from sedge_cloud.recorder import Recorder
from sedge_cloud.rounds.accounts import catch_up
from sedge_cloud.service import on_the_wall
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import ClosedRound, DeviceSummary, Summary
from sedge_cloud.store.rows import DeviceRow, OrderRow, RoundRow, TrafficRow
from sedge_protocol.wire.messages import Hello

SIZE = 100
COHORT = 10
HELLO = msgspec.msgpack.encode(
    Hello(b"!" * 16, "bench", ("onnxruntime",), ("zstd",), num_train=100)
)
REPEATS = 3


def filled(folder: Path, devices: int, rounds: int) -> Path:
    """Return a state folder filled with a run of ``rounds`` closed rounds and one open round."""
    state = folder / "state"
    with closing(open_folder(state, durable=False)) as store:
        enrol(store, devices)
        config = RunConfig(strategy="fedavg", num_rounds=10**6, broadcast=WHOLE)
        start_run(store, RUN, make_bundle(folder / "bundle", SIZE), config)
        (run,) = store.runs()
        for number in range(1, rounds + 2):
            names = [f"device-{(number * COHORT + i) % devices:06}" for i in range(COHORT)]
            row = RoundRow(
                RUN, number, "train", True, b"", b"", None, opened=time.time(), needed=COHORT
            )
            with store.transaction():
                store.open_round(row, [OrderRow(RUN, number, n, b"", b"", b"") for n in names])
                if number <= rounds:
                    store.close_round(closed(number, names, run.state))
                    catch_up(store, RUN)
    return state


def enrol(store: Store, devices: int) -> None:
    """Enrol devices that have all said hello."""
    names = [f"device-{i:06}" for i in range(devices)]
    with store.transaction():
        for name in names:
            store.add_device(name, b"s" * 32)
            store.save_hello(DeviceRow(name, b"s" * 32, False, 0, None), 1, HELLO)


def closed(number: int, names: Sequence[str], state: bytes) -> ClosedRound:
    """Return a closed round to which every device sent an update."""
    devices = tuple(DeviceSummary(name, 100, 0.5, 0.6, 1000) for name in names)
    summary = Summary(
        RUN, number, "train", len(names), 0, devices, 1.0, 0.5, 0.6, 1000 * len(names), {}
    )
    moved = tuple(TrafficRow(RUN, number, name, 1100, 9000, False) for name in names)
    coded = msgspec.msgpack.encode(summary)
    now = time.time()
    return ClosedRound(
        RUN, number, 0, coded, state, "running", now, "every device has answered", "", moved, 1, 1
    )


def device_list(folder: Path, state: Path) -> float:
    """Return the CPU time, in seconds, used by the command ``device list``."""
    config = folder / "cloud.toml"
    config.write_text(
        f'fleet = "{FLEET}"\nstate_dir = "{state}"\n[broker]\nurl = "mqtt://127.0.0.1:1"\n'
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "sedge_cloud", "--config", str(config), "device", "list"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def page(state: Path) -> float:
    """Return the CPU time, in seconds, for producing the first page."""
    with closing(open_folder(state)) as store:
        begun = time.process_time()
        status_page(Reader(FLEET, state, store).read())
        return time.process_time() - begun


def restart(state: Path) -> float:
    """Return the CPU time, in seconds, from startup to the first response from /healthz."""
    begun = time.process_time()
    with closing(open_folder(state, durable=False)) as store:
        core = Coordinator(FLEET, store, 1.0, int(time.time()), wall=on_the_wall)
        recorder = Recorder(core, on_the_wall)
        core.load(time.monotonic())
        recorder.poll(time.monotonic())
        assert Reader(FLEET, state, store).read().coordinator.running
        return time.process_time() - begun


def looked(devices: int, rounds: int) -> dict[str, float]:
    """Measure the CPU seconds of each way to display the fleet after ``rounds`` rounds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        state = filled(folder, devices, rounds)
        restart(state)
        found = {
            "device_list_s": median(device_list(folder, state) for _ in range(REPEATS)),
            "page_s": median(page(state) for _ in range(REPEATS)),
            "restart_s": median(restart(state) for _ in range(REPEATS)),
        }
    return {key: round(value, 4) for key, value in found.items()}


def figures(found: Result) -> list[Figure]:
    """Return, for each number of rounds, the CPU seconds of the list, the page and a restart."""
    return [
        Figure(
            f"processor seconds after {rounds:,} rounds",
            f"device list {row['device_list_s']:.3f}, page {row['page_s']:.3f}, "
            f"restart {row['restart_s']:.3f}",
        )
        for rounds, row in found["rows"].items()
    ]


@bench("Displaying a fleet", figures)
def measure(rounds: Sequence[int] = (500, 4000, 20_000), devices: int = 200) -> Result:
    """Measure a fleet of ``devices`` devices after each of these numbers of rounds."""
    return {"devices": devices, "rows": {number: looked(devices, number) for number in rounds}}
