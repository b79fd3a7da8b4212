"""``sedge-edge`` in the guest; at its end it writes its peak memory, and what it has imported, to a file.

    measured_agent.py REPORT [sedge-edge's words]

Under qemu-user a process's own memory holds translated code as well. /proc/self/maps is the guest's and
/proc/self/smaps the host's, at the same addresses: the pages of the mappings in both are the guest's.
"""

import json
import sys
import threading
from bisect import bisect_right
from pathlib import Path

from sedge_edge.__main__ import main

INTERVAL_S = 0.1


def guest_mib() -> float:
    """The resident memory of the guest's own mappings."""
    ours = sorted(
        tuple(int(number, 16) for number in line.split(maxsplit=1)[0].split("-"))
        for line in Path("/proc/self/maps").read_text().splitlines()
    )
    firsts = [first for first, _ in ours]
    total, inside = 0, False
    with Path("/proc/self/smaps").open() as lines:  # as a whole it would be MiB of what is measured
        for line in lines:
            name, _, rest = line.partition(" ")
            if name == "Rss:":
                total += inside * int(rest.split()[0])
            elif not name.endswith(":"):
                address = int(name.partition("-")[0], 16)
                place = bisect_right(firsts, address) - 1
                inside = place >= 0 and address < ours[place][1]
    return total / 1024


def sample(peak: list[float], ended: threading.Event) -> None:
    """Keep the largest of many samples in ``peak``."""
    while not ended.wait(INTERVAL_S):
        peak[0] = max(peak[0], guest_mib())


if __name__ == "__main__":
    peak, ended = [0.0], threading.Event()
    sampler = threading.Thread(target=sample, args=(peak, ended))
    sampler.start()
    try:
        status = main(sys.argv[2:])
    finally:
        ended.set()
        sampler.join()
        report = {"peak_mib": peak[0], "modules": sorted(sys.modules)}
        Path(sys.argv[1]).write_text(json.dumps(report))
    sys.exit(status)
