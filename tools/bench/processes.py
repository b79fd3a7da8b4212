"""Measures CPU time and traffic of 1, 2 and 4 coordinators, and the effect of changing their number.

    python -m tools.bench processes [--devices 24] [--rounds 8]

First one ``sedge-cloud serve`` runs on SQLite and a folder, then 1, 2 and 4 run on PostgreSQL and an object
store, each on its own host (a network namespace, which needs root). The devices take part in FedAvg runs
whose updates have two chunks and whose broadcasts contain the whole model: first a quarter of the devices
in each round, then all of them. The first round of each run is not measured. The coordinators' idle load is
subtracted, because the faster the rounds, the smaller its share:

update_ms   the coordinators' CPU milliseconds per update, planning and closing included, in rounds of
            all devices
fixed_ms    their CPU milliseconds per round that do not depend on how many devices take part
more_ms     the CPU milliseconds that each device's update adds to a round
round_s     how long a round of all devices takes; a device trains for 0.2 to 1.2 s of it
kb_round    kB per round from the coordinators to the broker, broadcasts and orders included
row_bytes   how much the database grows per update
idle        the share of a processor that one coordinator takes when no run is going on

Then, during a run, a third coordinator joins two others and is later shut down. The result is the longest
time in which a device received neither an order nor a receipt, compared with the longest such time before
the change. The last line is JSON.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg
from tools.bench.parts.servers import Servers
from tools.bench.three_hosts import checks
from tools.bench.three_hosts.fleet import AGENTS, BROKER, HOSTS, Fleet, make_bundle, open_servers
from tools.bench.three_hosts.network import Network, isolated, missing
from tools.bench.three_hosts.watch import wait_for

from sedge_cloud.store.opening import open_store

COUNTS = (1, 2, 4)
PATIENCE_S = 300.0
# After a run has been stopped, the devices and coordinators need this long to become idle.
REST_S, IDLE_S = 3.0, 15.0
# A coordinator hands over its shards before it shuts down, which may take this long.
STOP_S = 30.0
# The targets, as multiples of what a single process uses.
MOST_CPU, MOST_BYTES = 1.25, 1.05


@dataclass(frozen=True)
class Row:
    """The results for ``processes`` coordinators whose store is on ``engine``."""

    engine: str
    processes: int
    update_ms: float
    fixed_ms: float
    more_ms: float
    round_s: float
    kb_round: float
    row_bytes: float
    idle: float


@dataclass(frozen=True)
class Used:
    """What some rounds used: CPU and wall-clock seconds, bytes to the broker, bytes in the database."""

    cpu_s: float
    wall_s: float
    sent: int
    rows: int


class Measured:
    """Measures what a fleet's coordinators use during runs."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.run = fleet, ""
        self._store = open_store(fleet.config)
        fleet.start_all()

    def begin(self, bundle: Path, asked: int) -> None:
        """Start a run with ``asked`` devices in each round, and wait until its first round closes."""
        self.run = f"of-{asked}"
        self.fleet.begin_run(bundle, self.run, "fedavg", asked)
        self.reach(2)

    def used(self, bundle: Path, asked: int, rounds: int) -> Used:
        """Start a run with ``asked`` devices per round, and measure what ``rounds`` of its rounds use."""
        self.begin(bundle, asked)
        first, began = self.now, time.monotonic()
        cpu_s, sent, rows = self.cpu_s(), self.sent(), self.rows()
        self.reach(first + rounds)
        wall_s, cpu_s = time.monotonic() - began, self.cpu_s() - cpu_s
        used = Used(cpu_s, wall_s, self.sent() - sent, self.rows() - rows)
        self.fleet.cloud("run", "stop", self.run)
        time.sleep(REST_S)
        return used

    def reach(self, number: int) -> None:
        """Wait until the round with this number is open."""
        wait_for(
            lambda: self._store.round(self.run, number) is not None, PATIENCE_S, f"round {number}"
        )

    @property
    def now(self) -> int:
        """The number of the open round."""
        row = self._store.current_round(self.run)
        assert row is not None
        return row.round

    def cpu_s(self) -> float:
        """Return the CPU seconds that all running coordinators have used."""
        return sum(self.fleet.processes[host].used_s() for host in self.fleet.hosts)

    def sent(self) -> int:
        """Return how many bytes the coordinators have sent to the broker."""
        return sum(self.fleet.network.sent_to(host, BROKER) for host in self.fleet.hosts)

    def rows(self) -> int:
        """Return the size of the database in bytes."""
        config = self.fleet.config
        if config.store.url is None:
            return sum(p.stat().st_size for p in Path(config.state_dir).glob("sedge.sqlite*"))
        with psycopg.connect(config.store.url) as db:
            (size,) = db.execute("SELECT pg_database_size(current_database())").fetchone() or (0,)
            return int(size)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def measure(fleet: Fleet, bundle: Path, rounds: int) -> Row:
    """Measure a fleet that has one coordinator on each of its hosts."""
    few, hosts = max(1, fleet.count // 4), len(fleet.hosts)
    with closing(Measured(fleet)) as it:
        some, whole = (it.used(bundle, asked, rounds) for asked in (few, fleet.count))
        idle_s = it.cpu_s()
        time.sleep(IDLE_S)
        idle = (it.cpu_s() - idle_s) / IDLE_S / hosts

    def round_ms(used: Used) -> float:
        return 1000 * (used.cpu_s - idle * hosts * used.wall_s) / rounds

    more_ms = (round_ms(whole) - round_ms(some)) / (fleet.count - few)
    return Row(
        engine="SQLite" if fleet.servers is None else "PostgreSQL",
        processes=hosts,
        update_ms=round(round_ms(whole) / fleet.count, 2),
        fixed_ms=round(round_ms(some) - few * more_ms, 1),
        more_ms=round(more_ms, 2),
        round_s=round(whole.wall_s / rounds, 2),
        kb_round=round(whole.sent / rounds / 1000, 1),
        row_bytes=round(whole.rows / rounds / fleet.count),
        idle=round(idle, 4),
    )


def rebalanced(fleet: Fleet, bundle: Path, rounds: int) -> dict[str, float]:
    """Return a device's longest silence in seconds: undisturbed, when a process joins, when it leaves."""
    with closing(Measured(fleet)) as it:
        it.begin(bundle, fleet.count)

        def silence(change: Callable[[], object]) -> float:
            since = time.time()
            change()
            it.reach(it.now + rounds)
            return round(checks.longest_silence(fleet.log(AGENTS), since, time.time()), 2)

        third = HOSTS[len(fleet.hosts)]
        return {
            "calm_s": silence(lambda: None),
            "added_s": silence(lambda: fleet.add(third)),
            "removed_s": silence(lambda: fleet.retire(third, STOP_S)),
        }


def play(options: argparse.Namespace, folder: Path) -> tuple[list[Row], dict[str, float]]:
    """Measure each number of processes, then what changing it does. Returns the rows and the silences."""
    network = Network()
    for host in (*HOSTS, BROKER, AGENTS):
        network.add(host)
    bundle, rows = make_bundle(folder), list[Row]()

    def fleet(name: str, count: int, servers: Servers | None) -> Fleet:
        (folder / name).mkdir()
        return Fleet(network, folder / name, HOSTS[:count], servers, options.devices)

    with closing(open_servers(network)) as servers:
        settings = [
            ("sqlite", 1, None),
            *((f"postgres-{n}", n, servers) for n in options.processes),
        ]
        for name, count, store in settings:
            with closing(fleet(name, count, store)) as made:
                rows.append(measure(made, bundle, options.rounds))
                print(*(f"{k} {v}" for k, v in asdict(rows[-1]).items()), sep=", ", flush=True)
        with closing(fleet("rebalanced", 2, servers)) as made:
            silences = rebalanced(made, bundle, options.rounds)
            print(*(f"{k} {v}" for k, v in silences.items()), sep=", ", flush=True)
    return rows, silences


def main() -> int:
    """Measure, and print a line for each number of processes and a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=8)
    help_text = "numbers of processes; the others are compared with the first"
    parser.add_argument("--processes", type=int, nargs="+", default=COUNTS, help=help_text)
    options = parser.parse_args()
    if (why := missing()) is not None:
        print(f"processes: {why}", file=sys.stderr)
        return 2
    status = isolated("tools.bench.processes", sys.argv[1:])
    if status is not None:
        return status
    with tempfile.TemporaryDirectory(prefix="sedge-processes-") as name:
        rows, silences = play(options, Path(name))
    one, most = rows[1], rows[-1]
    cpu, sent = most.update_ms / one.update_ms, most.kb_round / one.kb_round
    print(
        json.dumps(
            {
                "bench": "processes",
                "devices": options.devices,
                "processes": most.processes,
                "update_ms": most.update_ms,
                "idle": most.idle,
                "update_row_bytes": most.row_bytes,
                "times_cpu": round(cpu, 3),
                "times_bytes": round(sent, 3),
                "target": {"times_cpu": MOST_CPU, "times_bytes": MOST_BYTES},
                "silence": silences,
                "rows": [asdict(row) for row in rows],
            }
        )
    )
    return int(cpu > MOST_CPU or sent > MOST_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
