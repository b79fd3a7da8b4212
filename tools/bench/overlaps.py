"""What comparing the devices of a large round costs one process, and a Ray cluster.

    python -m tools.bench overlaps [--size 582026] [--devices 500 1000 5000] [--ray local]

FedCAC and FedPURIN compare every pair of masks (``algorithms/collaboration.py``). Each way runs in a
process of its own, on the same random masks; the bytes of the result must be equal. Memory is the peak of
that process; the cluster's store holds the masks besides, once on each host. Time with Ray includes joining
the cluster. From these rows follows from which size on the coordinator asks it. The last line is JSON.
"""

import argparse
import hashlib
import json
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from sedge_cloud.algorithms import collaboration
from sedge_cloud.algorithms.collaboration import overlaps
from sedge_cloud.compute import ComputeConfig

Row = dict[str, str | int | float]


def compared(devices: int, size: int, ray: str | None) -> Row:
    """The overlaps of so many random masks of ``size`` bits, in this process or by a cluster."""
    collaboration._LARGE = 0  # at every size
    rng = np.random.default_rng(0)
    masks = [rng.integers(0, 2**63, -(-size // 64), np.uint64) for _ in range(devices)]
    began = time.perf_counter()
    found = overlaps(masks, ComputeConfig(ray).compute())
    return {
        "devices": devices,
        "by": ray or "one process",
        "s": round(time.perf_counter() - began, 1),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "sha256": hashlib.sha256(found.tobytes()).hexdigest(),
    }


def main() -> None:
    """Measure, print, and end with JSON."""
    parser = argparse.ArgumentParser(description="What comparing many devices costs.")
    parser.add_argument("--size", type=int, default=582_026)
    parser.add_argument("--devices", type=int, nargs="+", default=[500, 1000, 5000])
    parser.add_argument("--ray", default="local")
    arguments = parser.parse_args()
    rows: list[Row] = []
    for devices in arguments.devices:
        for ray in (None, arguments.ray):
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                rows.append(alone.submit(compared, devices, arguments.size, ray).result())
            print(rows[-1])
        if rows[-1]["sha256"] != rows[-2]["sha256"]:
            raise SystemExit("the two ways differ")
    print(json.dumps({"size": arguments.size, "overlaps": rows}))


if __name__ == "__main__":
    main()
