"""Measures how soon a fleet is back after its broker or coordinator fails, and what an outage costs.

The first part simulates fleets in virtual time, with the waits of a real link: all devices lose their
broker at once, and each is back with its first attempt after the outage. For each size 20 fleets are
simulated (3 of the largest), and the slowest counts. The second part uses real processes, Mosquitto,
``sedge-cloud serve`` and agents, during a run: first the broker is killed and restarted, then the
coordinator. The time is measured from when the broker accepts connections, or the coordinator is connected,
until the last device is welcomed, and until the open round has closed, which needs an update from every
device.

The bytes are those of a device's attempts in the second hour of an outage: 100 bytes each if the network
refuses the connection, 240 if nobody answers, and 5,000 if a broker refuses the device after a TLS
handshake.
"""

import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tools.bench.harness import Figure, Result, at_most, bench
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_export.exporter import export
from sedge_export.models import mlp
from sedge_protocol.wire.reconnect import Ended, Reconnect

SEEDS = 20
# How many devices lose their broker, for how many seconds, and the limit in seconds until all are back.
FLEETS = ((8, 60, 10.0), (8, 180, 10.0), (300, 120, 45.0), (3000, 120, 45.0), (8, 3600, 45.0))
# The maximum number of devices that come back within one second.
MOST_A_SECOND = 300
TRY_BYTES = {Ended.REFUSED: 100, Ended.UNANSWERED: 240, Ended.TURNED_AWAY: 5000}
WELCOMED = "welcomed by coordinator"
PATIENCE_S = 400.0
RUN = """\
strategy = "fedavg"
num_rounds = 1000000
min_available_devices = {devices}
quorum = 1.0
"""


@dataclass(frozen=True)
class Row:
    """A measurement and its limit. ``unit`` is s, devices (within one second) or kB (in an hour)."""

    what: str
    measured: float
    unit: str
    most: float


def next_try(link: Reconnect, ended: Ended, outage_s: float) -> float:
    """Return when a link that lost its broker at time 0 first tries again after the outage."""
    at = link.wait_s(Ended.HEARD, 0.0)
    while at < outage_s:
        at += link.wait_s(ended, at)
    return at


def fleet_is_back(devices: int, outage_s: float, most_s: float) -> list[Row]:
    """Simulate fleets in virtual time while the broker's machine refuses connections."""
    last_s, crowd = 0.0, 0
    for seed in range(SEEDS if devices < 1000 else 3):
        rng = np.random.default_rng(seed)
        links = [Reconnect(rng, devices=devices) for _ in range(devices)]
        back = np.sort([next_try(link, Ended.REFUSED, outage_s) for link in links]) - outage_s
        last_s = max(last_s, float(back[-1]))
        crowd = max(crowd, int((np.searchsorted(back, back + 1) - np.arange(devices)).max()))
    what = f"{devices:,} devices, broker down for {outage_s:g} s"
    return [
        Row(f"{what}: the last one is back after", round(last_s, 1), "s", most_s),
        Row(f"{what}: most that return in one second", crowd, "devices", MOST_A_SECOND),
    ]


def alone() -> Row:
    """Simulate a single device whose attempts nobody answered for six minutes."""
    links = [Reconnect(np.random.default_rng(seed), devices=8) for seed in range(SEEDS)]
    last_s = max(next_try(link, Ended.UNANSWERED, 360.0) for link in links) - 360.0
    return Row("one device cut off for 360 s: back after", round(last_s, 1), "s", 10.0)


def cost(ended: Ended) -> Row:
    """Count the bytes that an hour of an outage costs a device in a small fleet."""
    link = Reconnect(np.random.default_rng(1), devices=8)
    at, tries = next_try(link, ended, 3600.0), 0
    while at < 7200:
        at += link.wait_s(ended, at)
        tries += 1
    kb = tries * TRY_BYTES[ended] / 1000
    what = f"an hour of outage for a device whose attempts end {ended.name.lower()}"
    return Row(what, round(kb, 1), "kB", 150.0)


class Timed(RealFleet):
    """A real fleet that measures how soon all its devices are back."""

    def back(self, devices: list[str], returned: Callable[[], None]) -> tuple[float, float]:
        """Call ``returned``, which restarts a process.

        Returns the seconds until all devices are welcomed, and until a round has closed.
        """
        welcomes = {name: self.log(name).count(WELCOMED) for name in devices}
        closed = len(self.rounds())
        returned()
        since = time.monotonic()
        wait_until(
            lambda: all(self.log(n).count(WELCOMED) > count for n, count in welcomes.items()),
            PATIENCE_S,
            "every device is welcomed",
        )
        welcomed_s = time.monotonic() - since
        wait_until(lambda: len(self.rounds()) > closed, PATIENCE_S, "a round closes")
        return welcomed_s, time.monotonic() - since

    def coordinator_returns(self) -> None:
        """Start the coordinator, and wait until it is connected."""
        links = self.log("cloud").count("connected to")
        self.start_cloud()
        wait_until(lambda: self.log("cloud").count("connected to") > links, 60, "it is connected")


def real(folder: Path, devices: int, seconds: float) -> list[Row]:
    """Measure how real processes recover after the broker was down, then after the coordinator was."""
    model, sample = mlp(64, 32, 10), torch.randn(16, 1, 8, 8)
    export(model, sample, batch_size=16, name="digits", num_classes=10, folder=folder / "bundle")
    names = [f"pi-{i}" for i in range(devices)]
    rows: list[Row] = []
    (folder / "fleet").mkdir()
    with closing(Timed(folder / "fleet")) as fleet:
        fleet.start_cloud()
        for seed, name in enumerate(names):
            fleet.add_device(name, seed)
            fleet.start_agent(name)
        fleet.start_run(folder / "bundle", RUN.format(devices=devices))
        wait_until(lambda: bool(fleet.rounds()), PATIENCE_S, "a round closes")
        returns = {"broker": lambda: fleet.start_broker(fleet.port)}
        returns["coordinator"] = fleet.coordinator_returns
        for name, process in (("broker", "broker"), ("coordinator", "cloud")):
            fleet.kill(process)
            time.sleep(seconds)
            welcomed_s, closed_s = fleet.back(names, returns[name])
            what = f"{devices} real devices, {name} down for {seconds:g} s"
            rows.append(
                Row(f"{what}: the last one is welcomed after", round(welcomed_s, 1), "s", 10.0)
            )
            rows.append(Row(f"{what}: the round closes after", round(closed_s, 1), "s", 15.0))
    return rows


def figures(found: Result) -> list[Figure]:
    """Return figures for the time until a fleet is back after an outage, and for the cost of the outage."""
    return [
        Figure(
            row["what"], f"{row['measured']:g} {row['unit']}", (at_most(row["most"], row["measured"]),)
        )
        for row in found["rows"]
    ]  # fmt: skip


@bench("After an outage", figures)
def measure(seconds: float = 180.0, devices: int = 8) -> Result:
    """Measure simulated fleets, then ``devices`` real ones in outages of ``seconds`` seconds."""
    rows = [row for fleet in FLEETS for row in fleet_is_back(*fleet)]
    rows += [alone(), *(cost(ended) for ended in TRY_BYTES)]
    with tempfile.TemporaryDirectory() as name:
        rows += real(Path(name), devices, seconds)
    return {"rows": [asdict(row) for row in rows]}
