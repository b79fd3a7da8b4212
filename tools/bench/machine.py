"""The machine of the measurements, as one line of JSON.

    python tools/bench/machine.py

Processor, cores, memory and versions. Linux only.
"""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("numpy", "torch", "onnxruntime", "paho-mqtt", "msgspec")


def main() -> None:
    """Print it."""
    found = {
        "cpu": processor(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes(Path("/proc/meminfo").read_text()) / 2**30),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }
    print(json.dumps(found))


def processor(cpuinfo: str) -> str:
    """The name of the first processor; "unknown" on boards that do not report one."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return "unknown"


def memory_bytes(meminfo: str) -> int:
    """All memory."""
    (line,) = [line for line in meminfo.splitlines() if line.startswith("MemTotal:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main()
