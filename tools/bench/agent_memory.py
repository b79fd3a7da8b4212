"""What the agent costs a device: the size of its installation, and its memory in a job and after it.

    python tools/bench/agent_memory.py [BUNDLE] [--backend NAME] [--epochs 3] [--examples 640]

BUNDLE is a folder made by sedge-export; without one the 4-layer CNN is exported, in batches of 32. For each
backend, or for the named one, this repository is installed with the backend's extra, at the versions of
constraints.txt, into a fresh environment. A new process there loads the whole agent and the runtime, trains
the bundle on random examples on one thread, and does what the agent does after a job. Sizes are sums of
file sizes in site-packages without pip, in MB; memory is the kernel's VmHWM (peak) and VmRSS, in MiB. The
last line is JSON. Linux only.
"""

import argparse
import importlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sedge_edge.training.trainer import TrainRequest

REPOSITORY = Path(__file__).parents[2]
# Part of every virtual environment; no program of ours uses it.
NOT_OURS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils-precedence")
FORBIDDEN = ("torch", "executorch", "onnx", "PIL", "scipy")
EXTRAS = {"onnxruntime": "onnx", "executorch": "executorch"}


def install(venv: Path, backend: str) -> Path:
    """Install the agent alone into a fresh environment. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    python = venv / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    constraints = str(REPOSITORY / "constraints.txt")
    if backend == "executorch":
        build = [sys.executable, str(REPOSITORY / "edge" / "native" / "build.py")]
        wheels = str(venv / "wheels")
        subprocess.run([*build, "--machine", platform.machine(), "--out", wheels], check=True)
        pip += ["--find-links", wheels]
    subprocess.run([*pip, "-c", constraints, f"{REPOSITORY}[{EXTRAS[backend]}]"], check=True)
    return python


def package_sizes(venv: Path) -> dict[str, float]:
    """MB of each entry of site-packages, the largest first."""
    (packages,) = venv.glob("lib/python*/site-packages")
    sizes: dict[str, float] = {}
    for entry in packages.iterdir():
        if not entry.name.startswith(NOT_OURS):
            files = [entry] if entry.is_file() else [p for p in entry.rglob("*") if p.is_file()]
            sizes[entry.name] = sum(p.stat().st_size for p in files) / 1e6
    return dict(sorted(sizes.items(), key=lambda item: -item[1]))


def memory() -> dict[str, float]:
    """Peak and current memory of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    names = {"peak": "VmHWM", "now": "VmRSS"}
    return {name: int(fields[field].split()[0]) / 1024 for name, field in names.items()}


def train(folder: Path, backend: str, epochs: int, num_examples: int) -> dict[str, object]:
    """Load everything, train, and report time and memory. Runs inside the fresh environment."""
    row: dict[str, object] = {"interpreter_mib": memory()["now"]}
    # Imported here, step by step, because the memory of the imports is measured too.
    import numpy as np

    from sedge_edge.backends import open_trainer
    from sedge_edge.training.examples import Examples
    from sedge_protocol.host.memory_limit import release_memory
    from sedge_protocol.wire.bundle import load
    from sedge_protocol.wire.training import Training

    importlib.import_module("sedge_edge.__main__")  # everything the agent's process loads
    row["agent_mib"] = memory()["now"]
    bundle, theta = load(folder)
    manifest = bundle.manifest
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((num_examples, *manifest.input.shape)).astype(np.float32)
    examples = Examples(inputs, rng.integers(0, manifest.num_classes, num_examples, np.int64))
    row["data_mib"] = (inputs.nbytes + theta.nbytes) / 2**20
    trainer = open_trainer(bundle, backend, 1)
    row["opened_mib"] = memory()["now"]
    trainer.evaluate(theta, examples)
    started = time.perf_counter()
    trained = trainer.train(TrainRequest(theta, Training(epochs), 0), examples, lambda: False)
    row["ms_per_step"] = (time.perf_counter() - started) * 1e3 / trained.steps
    trainer.evaluate(trained.theta, examples)
    row |= {"steps": trained.steps, "parameters": theta.size, "batch_size": manifest.batch_size}
    row |= {"peak_mib": memory()["peak"], "after_mib": memory()["now"]}
    del trained
    release_memory()
    row["idle_mib"] = memory()["now"]
    loaded = [name for name in FORBIDDEN if name in sys.modules]
    if loaded:
        raise SystemExit(f"the agent loaded {', '.join(loaded)}")
    return row


def make_bundle(folder: Path) -> Path:
    """The 4-layer CNN, for every backend."""
    # Where a bundle is given, and in the fresh environments, there is no need of torch.
    import torch

    from sedge_export import export, models

    torch.manual_seed(0)
    x = torch.randn(32, 1, 28, 28)
    export(
        models.avgcnn(), x, batch_size=len(x), name="avgcnn", num_classes=10, folder=folder,
        backends=tuple(EXTRAS),
    )  # fmt: skip
    return folder


def measure(
    arguments: argparse.Namespace, backend: str, bundle: Path, venv: Path
) -> dict[str, object]:
    """Install, sum up file sizes, and train in a process of its own."""
    python = install(venv, backend)
    packages = package_sizes(venv)
    for name, size in packages.items():
        if size >= 0.1:
            print(f"{size:8.1f} MB  {name}")
    command = [str(python), __file__, str(bundle.absolute()), "--inside"]
    command += [f"--backend={backend}", f"--epochs={arguments.epochs}"]
    command += [f"--examples={arguments.examples}"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # as in sedge-edge.service
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    row = {"install_mb": sum(packages.values()), **json.loads(ended.stdout)}
    rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in row.items()}
    return {"machine": platform.machine(), "backend": backend, **rounded}


def main() -> None:
    """Print the sizes, then one line of JSON with a row for each backend."""
    parser = argparse.ArgumentParser(description="Installation size and memory of the agent.")
    parser.add_argument("bundle", type=Path, nargs="?")
    parser.add_argument("--backend", choices=EXTRAS)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=640)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        options = arguments.backend, arguments.epochs, arguments.examples
        print(json.dumps(train(arguments.bundle, *options)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle = arguments.bundle or make_bundle(folder / "bundle")
        rows = [
            measure(arguments, backend, bundle, folder / backend)
            for backend in ([arguments.backend] if arguments.backend else EXTRAS)
        ]
    print(json.dumps({"agent_memory": rows}))


if __name__ == "__main__":
    main()
