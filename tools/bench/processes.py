"""Coordinators' processor time by their number, the bytes that leave them, and a number that changes.

    python -m tools.bench processes [--devices 60] [--rounds 8]

One ``sedge-cloud serve`` on SQLite and a folder, then 1, 2 and 4 on PostgreSQL and an object store, each on
a host of its own (network namespaces; root). The devices take part in a FedAvg run whose updates have two
chunks, and whose broadcasts are whole. After the first round:

update_ms   processor milliseconds of all coordinators for an update, planning and closing included, without
            what they take when idle: an update's part of that depends on the pace of rounds
updates_s   updates a second: here devices, servers and coordinators share the processors
kb_round    kB that leave the coordinators for the broker in a round, broadcasts and orders
row_bytes   the growth of the database by an update
idle        the share of a processor that one coordinator takes when no run is going on

Then two coordinators become three and two again, in an orderly stop, while the run goes on: the longest
time in which a device had neither an order nor a receipt, beside the longest before. The last line is JSON.
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

RUN = "fedavg"
COUNTS = (1, 2, 4)
PATIENCE_S = 300.0
IDLE_S = 20.0
# A coordinator that stops in order hands its shards over first.
STOP_S = 30.0
# Times one process's.
MOST_CPU, MOST_BYTES = 1.25, 1.05


@dataclass(frozen=True)
class Row:
    """So many processes on these engines."""

    engine: str
    processes: int
    update_ms: float
    updates_s: float
    kb_round: float
    row_bytes: float
    idle: float


class Measured:
    """A fleet in a run, and what its coordinators have used so far."""

    def __init__(self, fleet: Fleet, bundle: Path) -> None:
        self.fleet = fleet
        self._store = open_store(fleet.config)
        fleet.start_all()
        fleet.begin(bundle, (RUN,))
        self.reach(2)

    def reach(self, number: int) -> None:
        """Wait until this round is open."""
        wait_for(lambda: self._store.round(RUN, number) is not None, PATIENCE_S, f"round {number}")

    @property
    def now(self) -> int:
        """The open round's number."""
        row = self._store.current_round(RUN)
        assert row is not None
        return row.round

    def cpu_s(self) -> float:
        """Processor seconds of all coordinators that run."""
        return sum(self.fleet.processes[host].used_s() for host in self.fleet.hosts)

    def sent(self) -> int:
        """The bytes that the coordinators have sent to the broker."""
        return sum(self.fleet.network.sent_to(host, BROKER) for host in self.fleet.hosts)

    def rows(self) -> int:
        """The bytes of the database."""
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
    """One number of processes."""
    with closing(Measured(fleet, bundle)) as it:
        first, began = it.now, time.monotonic()
        cpu_s, sent, rows = it.cpu_s(), it.sent(), it.rows()
        it.reach(first + rounds)
        wall_s, updates = time.monotonic() - began, rounds * fleet.count
        cpu_s, sent, rows = it.cpu_s() - cpu_s, it.sent() - sent, it.rows() - rows
        fleet.cloud("run", "stop", RUN)
        time.sleep(3.0)
        idle_s = it.cpu_s()
        time.sleep(IDLE_S)
        idle = (it.cpu_s() - idle_s) / IDLE_S / len(fleet.hosts)
    return Row(
        engine="SQLite" if fleet.servers is None else "PostgreSQL",
        processes=len(fleet.hosts),
        update_ms=round(1000 * (cpu_s - idle * len(fleet.hosts) * wall_s) / updates, 2),
        updates_s=round(updates / wall_s, 1),
        kb_round=round(sent / rounds / 1000, 1),
        row_bytes=round(rows / updates),
        idle=round(idle, 4),
    )


def rebalanced(fleet: Fleet, bundle: Path, rounds: int) -> dict[str, float]:
    """The longest silence of a device, in seconds: in calm, when a process comes, when one goes."""
    with closing(Measured(fleet, bundle)) as it:

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
    """Everything."""
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
    """Measure, and print a line for each number and a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=8)
    help_text = "numbers of processes, the first of which is what others are compared with"
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
