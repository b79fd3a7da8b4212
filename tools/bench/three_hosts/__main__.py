"""Tests that three coordinators lose nothing under any fault, and measures how soon they continue.

    python -m tools.bench three_hosts [--fault NAME] [--seed K | --seeds N] [--devices 60] [--hosts 3]

Each host is a network namespace with its own name, address and processes. Up to three hosts run
``sedge-cloud serve``; Mosquitto, PostgreSQL, an S3 server (SeaweedFS) and the devices each run on another
host. The devices take part in a FedAvg and a FedOBP run at the same time. A fault occurs in the middle of a
round, and both runs must continue for two rounds. A seed determines the moment and the victim. Afterwards,
a row of the table has:

lost    updates that did not count although their devices have a receipt
twice   updates that counted twice
bytes   whether every round of both runs has the same bytes as in one undisturbed process on SQLite
s       seconds until the next update of an affected device is accepted, counted from the fault or,
        if a shared server was down, from its return

A second table shows how often each fault was injected, how often a check failed, and the seconds. A failure
is reported with its seed, and its files and logs stay in the folder given by ``--keep``; the other tests
continue. Eight faults with three hosts and sixty devices take about twelve minutes per seed.

It needs root, PostgreSQL, Mosquitto, the Python packages of the extra "scale" and those of the tests. It
leaves no process behind. The last line is JSON. The exit status is 1 if a check failed or a target was
missed.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tools.bench.three_hosts import checks
from tools.bench.three_hosts.faults import FAULTS
from tools.bench.three_hosts.fleet import (
    AGENTS,
    BROKER,
    HOSTS,
    RUNS,
    Fleet,
    make_bundle,
    open_servers,
)
from tools.bench.three_hosts.network import Network, isolated, missing
from tools.bench.three_hosts.scene import Scene
from tools.bench.three_hosts.watch import wait_for

from sedge_cloud.store.opening import open_store

TARGET_S = 15.0
ALL = "all"  # the label of the line about all faults
UNDISTURBED_ROUNDS = 64
# An undisturbed fleet counts as stuck after this many seconds without another round.
STUCK_S = 60.0


@dataclass(frozen=True)
class Row:
    """The result of one fault. ``wrong`` describes what went wrong, or is ""."""

    fault: str
    seed: int
    receipts: int
    lost: int
    twice: int
    same_bytes: bool
    seconds: float | None
    rounds: int
    wrong: str = ""

    @property
    def good(self) -> bool:
        """True if no check failed and the runs continued within ``TARGET_S`` seconds."""
        in_time = self.seconds is not None and self.seconds <= TARGET_S
        return not (self.lost or self.twice or self.wrong) and self.same_bytes and in_time

    def line(self) -> str:
        """Format the row as a line of the table."""
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        same = "same" if self.same_bytes else "DIFFER"
        return (
            f"{self.fault:<20} {self.seed:>4} {self.receipts:>8} {self.lost:>5} {self.twice:>5} "
            f"{same:>7} {seconds:>6} {self.rounds:>6}  {self.wrong}"
        )


HEAD = f"{'fault':<20} {'seed':>4} {'receipts':>8} {'lost':>5} {'twice':>5} {'bytes':>7} {'s':>6} rounds"


def by_fault(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table with one line for each fault and one for all of them."""
    yield f"{'fault':<20} played failed {'lost':>5} {'twice':>5} median s  most s"
    for fault in (*dict.fromkeys(row.fault for row in rows), ALL):
        some = [row for row in rows if fault in (row.fault, ALL)]
        seconds = [row.seconds for row in some if row.seconds is not None]
        times = f"{median(seconds):>8.1f} {max(seconds):>7.1f}" if seconds else f"{'-':>8} {'-':>7}"
        failed, lost = sum(not row.good for row in some), sum(row.lost for row in some)
        twice = sum(row.twice for row in some)
        yield f"{fault:<20} {len(some):>6} {failed:>6} {lost:>5} {twice:>5} {times}"


def undisturbed(
    network: Network, folder: Path, devices: int, rounds: int, bundle: Path
) -> dict[str, checks.Course]:
    """Run a single process with SQLite and a folder, and return the results of its runs."""
    folder.mkdir()
    with closing(Fleet(network, folder, HOSTS[:1], None, devices)) as fleet:
        fleet.start_all()
        fleet.begin(bundle)

        with closing(open_store(fleet.config)) as store:
            for number in range(1, rounds + 1):
                wait_for(
                    lambda number=number: all(store.round(run, number) for run in RUNS),  # type: ignore[misc]
                    STUCK_S,
                    f"undisturbed round {number}",
                )
        return checks.courses(fleet.config)


def judged(
    fleet: Fleet, fault: str, seed: int, seconds: float | None, wrong: str,
    expected: dict[str, checks.Course],
) -> Row:  # fmt: skip
    """Check a fleet's store and logs after its runs have stopped, and return the fault's row."""
    received, found = checks.receipts(fleet.log(AGENTS)), checks.courses(fleet.config)
    lost = [one for run, course in found.items() for one in checks.lost(received, run, course)]
    twice = [one for course in found.values() for one in checks.twice(course)]
    differ = [
        f"{run}: {text}" for run in RUNS if (text := checks.differs(found[run], expected[run]))
    ]
    refused = checks.refusals(fleet.log(AGENTS))[:1]
    words = [wrong, *map(str, lost[:1]), *twice[:1], *differ, *refused]
    rounds = min(len(found[run].closed) for run in RUNS)
    return Row(
        fault, seed, sum(received.values()), len(lost), len(twice), not differ, seconds, rounds,
        "; ".join(word for word in words if word),
    )  # fmt: skip


def played(scene: Scene, fault: str, seed: int, expected: dict[str, checks.Course]) -> Row:
    """Inject one fault into a fleet in the middle of a round, and return its row."""
    seconds, wrong = None, ""
    try:
        scene.reach_the_middle()
        victims = FAULTS[fault](scene)
        scene.go_on()
        seconds = scene.watch.after(victims.since, victims.devices)
    except TimeoutError as exc:
        wrong = str(exc)
    scene.fleet.stop()
    return judged(scene.fleet, fault, seed, seconds, wrong, expected)


def attempted(
    network: Network, place: Path, options: argparse.Namespace, bundle: Path, fault: str, seed: int,
    expected: dict[str, checks.Course],
) -> Row:  # fmt: skip
    """Test one fault on newly started servers, and return its row, which describes any exception."""
    try:
        hosts = HOSTS[: options.hosts]
        with (
            closing(open_servers(network)) as servers,
            closing(Scene(network, servers, place, hosts, options.devices, seed)) as scene,
        ):
            scene.begin(bundle)
            return played(scene, fault, seed, expected)
    except Exception as exc:  # so that the other seeds continue
        (place / "error.log").write_text(traceback.format_exc())
        wrong = " ".join(f"{type(exc).__name__}: {exc}".split())
        return Row(fault, seed, 0, 0, 0, False, None, 0, wrong)


def play(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Test all faults with all seeds. Yields the rows."""
    network = Network()
    for host in (*HOSTS, BROKER, AGENTS):
        network.add(host)
    bundle = make_bundle(folder)
    began = time.monotonic()
    expected = undisturbed(network, folder / "undisturbed", options.devices, options.rounds, bundle)
    print(f"{options.rounds} undisturbed rounds in {time.monotonic() - began:.0f} s", flush=True)
    print(HEAD, flush=True)
    seeds = range(options.seeds) if options.seeds else [options.seed]
    for seed in seeds:
        for fault in options.fault or FAULTS:
            place = folder / f"{fault}-{seed}"
            place.mkdir()
            row = attempted(network, place, options, bundle, fault, seed, expected)
            print(row.line(), flush=True)
            if not row.good:
                kept = options.keep / place.name
                shutil.copytree(place, kept, dirs_exist_ok=True)
                print(f"failed: --fault {fault} --seed {seed}; its logs are in {kept}", flush=True)
            shutil.rmtree(place, ignore_errors=True)
            yield row


def main() -> int:
    """Test everything, and print tables and a line of JSON. Returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--fault", action="append", choices=FAULTS, help="test only this fault; repeatable"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, default=0)
    which.add_argument("--seeds", type=int, default=0, help="number of seeds, starting at 0")
    parser.add_argument("--devices", type=int, default=60)
    parser.add_argument("--hosts", type=int, choices=range(1, len(HOSTS) + 1), default=3)
    parser.add_argument(
        "--rounds", type=int, default=UNDISTURBED_ROUNDS, help="number of undisturbed rounds"
    )
    kept = Path(tempfile.gettempdir()) / "sedge-three-hosts-failed"
    help_text = f"folder for the files and logs of failures (default: {kept})"
    parser.add_argument("--keep", type=Path, default=kept, help=help_text)
    options = parser.parse_args()
    if (why := missing()) is not None:
        print(f"three_hosts: {why}", file=sys.stderr)
        return 2
    status = isolated("tools.bench.three_hosts", sys.argv[1:])
    if status is not None:
        return status
    with tempfile.TemporaryDirectory(prefix="sedge-hosts-") as name:
        rows = list(play(options, Path(name)))
    print("", *by_fault(rows), sep="\n")
    work = {"devices": options.devices, "hosts": options.hosts, "runs": RUNS, "target_s": TARGET_S}
    print(json.dumps({"bench": "three_hosts", **work, "rows": [asdict(row) for row in rows]}))
    return int(not all(row.good for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
