"""Measures the cost of comparing the devices in a large round, in one process and on a Ray cluster.

FedCAC and FedPURIN compare every pair of masks (``algorithms/collaboration.py``). Both ways run on the same
random masks, each in a separate process, and must give identical results. Memory is the peak of that
process; with Ray, the cluster's store also holds the masks once on each host. Time with Ray includes
joining the cluster. The results determined the size from which the coordinator uses Ray.
"""

import hashlib
import resource
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.algorithms import collaboration
from sedge_cloud.algorithms.collaboration import overlaps
from sedge_cloud.compute import ComputeConfig

Row = dict[str, str | int | float]


def compared(devices: int, size: int, ray: str | None) -> Row:
    """Compute the overlaps of this many random masks of ``size`` bits, in this process or on a cluster."""
    collaboration._LARGE = 0  # so that a cluster is used at every size
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


def figures(found: Result) -> list[Figure]:
    """Return the time and memory for each number of devices, in one process and with Ray."""
    return [
        Figure(
            f"comparing {row['devices']:,} devices, {row['by']}",
            f"{row['s']} s, {row['peak_mb']} MB",
        )
        for row in found["overlaps"]
    ]


@bench("Comparing the devices of a large round", figures)
def measure(
    size: int = 582_026, devices: Sequence[int] = (500, 1000, 5000), ray: str = "local"
) -> Result:
    """Compare this many devices, with masks of ``size`` bits.

    ``ray`` is the address of the cluster; "local" starts one on this host.
    """
    rows: list[Row] = []
    for count in devices:
        for way in (None, ray):
            with ProcessPoolExecutor(1, get_context("spawn")) as alone:
                rows.append(alone.submit(compared, count, size, way).result())
        if rows[-1]["sha256"] != rows[-2]["sha256"]:
            raise SystemExit("the two ways give different results")
    return {"size": size, "overlaps": rows}
