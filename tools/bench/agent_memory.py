"""Measures what the agent costs a device: its installation's size, and its memory during and after a job.

The bundle is the 4-layer CNN, in batches of 32. For each backend, or only the named ones, this repository
is installed with the backend's extra into a new environment, at the versions of constraints.txt. A process
in that environment (elsewhere/agent.py) loads the whole agent and the runtime, trains the bundle on random
examples with one thread, and cleans up as the agent does after a job. Sizes are sums of file sizes in
site-packages without pip, in MB; memory is the kernel's VmHWM (peak) and VmRSS, in MiB. Linux only.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from tools.bench.harness import Figure, Result, at_most, bench, chosen
from tools.bench.train_step import RUNTIME_NAMES

from sedge_export import export, models
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

REPOSITORY = Path(__file__).parents[2]
# pip is in every virtual environment, but the agent does not use it.
NOT_OURS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
EXTRAS = {ONNXRUNTIME: "onnx", EXECUTORCH: "executorch"}
# The targets: the installation's size in MB, and the memory in MiB while training the 4-layer CNN.
TARGETS = {ONNXRUNTIME: (150, 96), EXECUTORCH: (100, 64)}


def install(venv: Path, backend: str) -> Path:
    """Install the agent alone into a fresh environment. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = str(REPOSITORY / "constraints.txt")
    if backend == EXECUTORCH:
        build = [sys.executable, str(REPOSITORY / "edge" / "native" / "build.py")]
        wheels = str(venv / "wheels")
        subprocess.run([*build, "--machine", platform.machine(), "--out", wheels], check=True)
        pip += ["--find-links", wheels]
    subprocess.run([*pip, "-c", constraints, f"{REPOSITORY}[{EXTRAS[backend]}]"], check=True)
    return python


def package_sizes(venv: Path) -> dict[str, float]:
    """Return the size of each entry of site-packages in MB, largest first."""
    (packages,) = venv.glob("lib/python*/site-packages")
    sizes: dict[str, float] = {}
    for entry in packages.iterdir():
        if not entry.name.startswith(NOT_OURS):
            files = [entry] if entry.is_file() else [p for p in entry.rglob("*") if p.is_file()]
            sizes[entry.name] = sum(p.stat().st_size for p in files) / 1e6
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def make_bundle(folder: Path) -> Path:
    """Export the 4-layer CNN for every backend."""
    torch.manual_seed(0)
    x = torch.randn(32, 1, 28, 28)
    export(
        models.avgcnn(), x, batch_size=len(x), name="avgcnn", num_classes=10, folder=folder,
        backends=tuple(EXTRAS),
    )  # fmt: skip
    return folder


def installed(backend: str, bundle: Path, venv: Path, epochs: int, examples: int) -> Result:
    """Install the agent, add up its file sizes, and train in a separate process."""
    python = install(venv, backend)
    packages = package_sizes(venv)
    for name, size in packages.items():
        if size >= 0.1:
            print(f"{size:8.1f} MB  {name}")
    script = Path(__file__).parent / "elsewhere" / "agent.py"
    words = map(str, (python, script, bundle.absolute(), backend, epochs, examples))
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as in sedge-edge.service
    ended = subprocess.run([*words], check=True, stdout=subprocess.PIPE, text=True, env=environment)
    row = {"install_mb": sum(packages.values()), **json.loads(ended.stdout)}
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
    return {"machine": platform.machine(), "backend": backend, **rounded}


def figures(found: Result) -> list[Figure]:
    """Return figures for the size of an agent's installation and for the agent's memory."""
    written: list[Figure] = []
    for row in found["agent_memory"]:
        runtime, (most_mb, most_mib) = RUNTIME_NAMES[row["backend"]], TARGETS[row["backend"]]
        what = f"an agent's installation with {runtime}, and its memory while it trains the CNN"
        measured = f"{row['install_mb']:.0f} MB, {row['peak_mib']:.0f} MiB; {row['idle_mib']:.0f} MiB after"
        met = at_most(most_mb, row["install_mb"], "MB"), at_most(most_mib, row["peak_mib"], "MiB")
        written.append(Figure(what, measured, met))
    return written


@bench("Size of the agent", figures)
def measure(backends: Sequence[str] = (), epochs: int = 3, examples: int = 640) -> Result:
    """Measure each backend. Returns a row for each."""
    names = chosen(backends, EXTRAS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = make_bundle(folder / "bundle")
        rows = [installed(each, bundle, folder / each, epochs, examples) for each in names]
    return {"agent_memory": rows}
