"""Measures the coordinator's memory over many rounds, on a machine that appears to have 1 GB.

A real coordinator with a real store runs rounds of FedOBP with a model of 51 kB. The devices are in the
same process and keep nothing between rounds. RSS is this process's resident memory after the first 100,
500, 1,000 and 2,000 rounds.
"""

import gc
import os
import tempfile
from pathlib import Path

from tools.bench.coordinator import Online, synthetic_delta
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.config import RunConfig
from sedge_cloud.store.cache import SHARE, Memory
from sedge_cloud.store.opening import open_folder
from sedge_protocol.codec import ValueCoding, encode, top_k

ROUNDS = (100, 500, 1000, 2000)
PAGE = os.sysconf("SC_PAGE_SIZE")


def rss_mb() -> float:
    """Return this process's resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * PAGE / 1e6


class Rounds(Online):
    """Runs rounds one after another."""

    def play(self, number: int) -> None:
        """Play one round."""
        self.now += 1.0
        sent = self.effects
        for i, device in enumerate(self.devices):
            delta = synthetic_delta("random", self.layout.size, number * len(self.devices) + i)
            payload = encode(top_k(delta, delta.size // 4), ValueCoding.BF16)
            for frame in device.frames(device.order(sent), self.layout, payload, i):
                if self.core.admits(device.topic, frame, self.now):
                    self.core.receive(device.topic, frame, self.now)
        self.poll()


def figures(found: Result) -> list[Figure]:
    """Return the memory at each milestone."""
    return [
        Figure(
            f"after {row['rounds']:,} rounds",
            f"{row['rss_mb']:.0f} MB, of which {row['caches_mb']:.0f} MB caches",
        )
        for row in found["rows"]
    ]


@bench("The coordinator's memory", figures)
def measure(
    rounds: int = 2000, devices: int = 8, size: int = 12_800, machine_mb: int = 1000
) -> Result:
    """Run ``rounds`` rounds with a model of ``size`` parameters. Returns the memory at the milestones."""
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        store = open_folder(Path(folder) / "state", durable=False)
        memory = Memory(int(SHARE * machine_mb * 1e6))
        options = {"quantile": 0.99}
        config = RunConfig(strategy="fedobp", options=options, num_rounds=rounds + 1, quorum=1.0)
        fleet = Rounds(Path(folder), store, devices, size, config, memory)
        for number in range(1, rounds + 1):
            fleet.play(number)
            if number in (*ROUNDS, rounds):
                gc.collect()
                rss, caches = round(rss_mb(), 1), round(memory.held / 1e6, 1)
                rows.append({"rounds": number, "rss_mb": rss, "caches_mb": caches})
    return {"devices": devices, "size": size, "rows": rows}
