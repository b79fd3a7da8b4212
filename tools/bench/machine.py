"""Describes the machine of the measurements: processor, cores, memory and versions. Linux only."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from tools.bench.harness import Figure, Result, bench

PACKAGES = ("numpy", "torch", "onnxruntime", "paho-mqtt", "msgspec")


def figures(found: Result) -> list[Figure]:
    """Return the description of the machine as one figure."""
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    return [
        Figure(
            "Machine",
            f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB, {found['platform']}, "
            f"Python {found['python']}; {versions}.",
        )
    ]


@bench("The machine", figures)
def measure() -> Result:
    """Return the machine's properties."""
    return {
        "cpu": processor(Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes(Path("/proc/meminfo").read_text()) / 2**30),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def processor(cpuinfo: str) -> str:
    """Return the first processor's name, or "unknown" on boards that do not report it."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return "unknown"


def memory_bytes(meminfo: str) -> int:
    """Return the machine's memory in bytes."""
    (line,) = [line for line in meminfo.splitlines() if line.startswith("MemTotal:")]
    return 1024 * int(line.split()[1])
