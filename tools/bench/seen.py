"""Breaks a real fleet in every way that operators meet, and measures how soon each place reports it.

It starts real processes, Mosquitto, ``sedge-cloud serve`` and agents, in three fleets. In the first, things
break during a run; in the second, each bad device starts next to five good ones; in the third, disks fill
up (small file systems in tmpfs, which need root). There are twelve faults, and the death of the coordinator
itself. Of the places in watched_fleet.py, only the command line can report that death; systemd's message is
then in the journal, and Prometheus has its metric ``up``.

The clock starts just before the fault and stops, for each place, when that place shows the problem with its
subject and its reason. For a bad device it starts before the device's agent, so the time includes the
rounds until the fault shows. tests/system/test_seen.py does the same without the clock.
"""

import os
import shutil
import signal
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from tools.bench.harness import Figure, Result, at_most, bench
from tools.bench.parts.real_fleet import wait_until
from tools.bench.watched_fleet import PATIENCE_S, Problem, Sighting, Watched

from sedge_cloud.facts.problems import DEPLOYED
from sedge_export.exporter import export
from sedge_export.models import mlp

TARGET_S = 10.0
# The free space on a "full" disk: enough for journals and the database, too little for a blob.
LEFT_BYTES = 2**20
WRONG_CLOCK = """\
import sys, time
time.time = lambda: 1_600_000_000.0
from sedge_edge.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def enrolled_long_ago(home: Path, device: str) -> None:
    """Backdate a device's enrolment, because it is no problem if a new device has not connected yet."""
    with closing(sqlite3.connect(home / "state" / "sedge.sqlite", timeout=30)) as db, db:
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'change'")
        sql = (
            "UPDATE devices SET enrolled = enrolled - ?, "
            "changed = (SELECT value FROM meta WHERE key = 'change') WHERE device = ?"
        )
        db.execute(sql, (DEPLOYED.total_seconds(), device))


def while_a_run_goes_on(fleet: Watched, bundle: Path) -> None:
    """Let devices die, slow down and be revoked during a run; then let the broker and the coordinator
    die.
    """
    fleet.start_cloud()
    for seed, name in enumerate(("pi-1", "pi-2", "pi-3", "pi-4")):
        fleet.add_device(name, seed)
        fleet.start_agent(name)
    fleet.going(bundle, devices=4, available=3, quorum=1.0, grace=0)

    # A dead device is noticed only while a round waits for it, so kill it in a round that needs it.
    fleet.signalled("pi-2", signal.SIGSTOP)
    fleet.has("device_slow")
    fleet.sees(
        lambda: fleet.kill("pi-2"),
        Problem("device killed", "device_lost", "pi-2", "is offline"),
        Problem("round below quorum", "round_below_quorum", "run", "cannot reach its quorum"),
    )
    fleet.start_agent("pi-2")
    fleet.heals("device_lost")

    fleet.sees(
        lambda: fleet.signalled("pi-3", signal.SIGSTOP),
        Problem("slow device", "device_slow", "pi-3", "is slow: the others trained in"),
    )
    fleet.signalled("pi-3", signal.SIGCONT)
    fleet.heals("device_slow")

    before = fleet.closed()
    fleet.signalled("pi-4", signal.SIGSTOP)
    fleet.has("device_slow")
    fleet.sees(
        lambda: fleet.cloud("device", "revoke", "pi-4"),
        Problem("revoked device", "device_revoked", "pi-4", "revoked"),
    )
    fleet.kill("pi-4")
    wait_until(lambda: fleet.closed() > before, PATIENCE_S, "the round goes on without it")

    fleet.sees(
        lambda: fleet.kill("broker"),
        Problem("broker down", "broker_down", "coordinator", "cannot reach its broker: "),
    )
    fleet.start_broker()
    fleet.heals("broker_down")

    since = time.monotonic()
    fleet.kill("cloud")
    silent = "coordinator: is not running"
    wait_until(
        lambda: silent in fleet.cloud("run", "show", "run"), PATIENCE_S, "run show reports it"
    )
    seconds = {"run show": round(time.monotonic() - since, 2)}
    fleet.sightings.append(Sighting("coordinator killed", "coordinator_silent", seconds))


def beside_good_devices(fleet: Watched, bundle: Path) -> None:
    """Add devices that are faulty when they start to a fleet of good ones."""
    fleet.start_cloud()
    good = [f"pi-{i}" for i in range(1, 6)]
    for seed, name in enumerate([*good, "nan", "evil", "raises", "clock"]):
        fleet.add_device(name, seed)
    for name in (*good, "clock"):
        fleet.start_agent(name)
    fleet.going(bundle, devices=6, available=5, quorum=0.5, grace=2)
    home = fleet.folder

    fleet.kill("clock")
    shutil.rmtree(home / "clock" / "state")
    fleet.sees(
        lambda: fleet.start_agent("clock", script=WRONG_CLOCK),
        Problem("wrong clock", "device_unheard", "clock", "its start at 2020-09-13 12:26:40 UTC"),
    )

    def elsewhere() -> None:
        fleet.add_device("elsewhere", 9)
        enrolled_long_ago(home, "elsewhere")
        config = home / "elsewhere" / "edge.toml"
        config.write_text(config.read_text().replace('fleet = "test"', 'fleet = "home"'))
        fleet.start_agent("elsewhere")

    fleet.sees(
        elsewhere,
        Problem("wrong fleet name", "device_never", "elsewhere", "with the right fleet name"),
    )

    with np.load(home / "nan" / "train.npz") as data:
        np.savez(home / "nan" / "train.npz", x=data["x"] * np.float32(np.nan), y=data["y"])
    fleet.sees(
        lambda: fleet.start_agent("nan"), Problem("NaN data", "device_declined", "nan", "NaN")
    )

    fleet.function("raises", 'raise RuntimeError("the sensor is unplugged")')
    fleet.sees(
        lambda: fleet.start_agent("raises"),
        Problem("declining device", "device_declined", "raises", "the sensor is unplugged"),
    )

    body = "return [(p - 5).astype('float32') for p in parameters], len(examples.targets), {}"
    fleet.function("evil", body)
    fleet.sees(
        lambda: fleet.start_agent("evil"),
        Problem("hostile updates", "device_distrusted", "evil", "unlike the others"),
    )


def on_full_disks(fleet: Watched, bundle: Path) -> None:
    """Fill up a device's disk, then the coordinator's."""
    fleet.own_disk(fleet.folder / "state")
    fleet.start_cloud()
    for seed, name in enumerate(("pi-1", "pi-2", "full")):
        fleet.add_device(name, seed)
    fleet.own_disk(fleet.folder / "full" / "state")
    for name in ("pi-1", "pi-2"):
        fleet.start_agent(name)
    fleet.going(bundle, devices=2, available=2, quorum=0.5, grace=0)

    fill(fleet.folder / "full" / "state")
    fleet.sees(
        lambda: fleet.start_agent("full"),
        Problem("device without disk", "device_waits", "full", "waits: disk full"),
    )
    fleet.kill("full")

    filler = fleet.folder / "state" / "filler"
    fleet.sees(
        lambda: fill(fleet.folder / "state"),
        Problem("coordinator's disk full", "disk_full", "disk", "updates are refused"),
        Problem("… in its own words", "coordinator_error", "coordinator", "disk full"),
    )
    before = fleet.closed()
    filler.unlink()
    wait_until(lambda: fleet.closed() > before, 2 * PATIENCE_S, "the run goes on")
    fleet.heals("disk_full")


def fill(folder: Path) -> None:
    """Leave ``LEFT_BYTES`` free on the small file system of a folder."""
    disk = os.statvfs(folder)
    with (folder / "filler").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - LEFT_BYTES)


STAGES: tuple[Callable[[Watched, Path], None], ...] = (
    while_a_run_goes_on,
    beside_good_devices,
    on_full_disks,
)


def play(stage: Callable[[Watched, Path], None], folder: Path, bundle: Path) -> list[Sighting]:
    """Run one stage with its own fleet in a folder. Returns when each place reported each fault."""
    with closing(Watched(folder)) as fleet:
        stage(fleet, bundle)
        return fleet.sightings


def figures(found: Result) -> list[Figure]:
    """Return how many seconds each place took to report each fault with its reason."""
    return [
        Figure(
            f"{row['fault']} (`{row['code']}`)",
            ", ".join(f"{place} {seconds:.1f} s" for place, seconds in row["seconds"].items()),
            (at_most(found["target_s"], max(row["seconds"].values()), "s each"),),
        )
        for row in found["rows"]
    ]


@bench("How soon each fault is reported with its reason", figures)
def measure() -> Result:
    """Run all stages."""
    sightings: list[Sighting] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model, rows = mlp(64, 32, 10), torch.randn(16, 1, 8, 8)
        export(model, rows, batch_size=16, name="digits", num_classes=10, folder=folder / "bundle")
        for stage in STAGES:
            (folder / stage.__name__).mkdir()
            sightings += play(stage, folder / stage.__name__, folder / "bundle")
            print(f"{stage.__name__}: done", flush=True)
    return {"target_s": TARGET_S, "rows": [asdict(it) for it in sightings]}
