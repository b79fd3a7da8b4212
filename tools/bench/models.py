"""Tests which models the exporter supports: exports every model in ``tools/bench/zoo``.

    python -m tools.bench models [--published] [--seeds N] [--batch-size 8] [--page FILE] [name ...]

With ``--published``, or by name, it exports models from public packages instead. They are built in a
separate environment (``--venvs``), into which pip installs timm, transformers and the others. Every export
verifies the programs against eager torch in float64, or fails with a reason. Then the exported gradient
step and eager torch's step run alternately on one thread; the ratio compares their median CPU times over
half a second. For a model whose step takes microseconds, the ratio is mostly overhead. The export's time is
wall time. Memory is measured by ``sedge_export.writing.step_memory``. A name that ends in ``@executorch``
is exported for that backend.

With ``--seeds`` the deep networks are exported with that many seeds instead, and the emulator's trainers
are checked on each. The page is written after each row. Rows that are not measured again stay unchanged.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from tools.bench import models_page
from tools.bench.models_page import Key
from tools.bench.parts.environments import TORCH, install
from tools.bench.train_step import (
    LEARNING_RATE,
    MOMENTUM,
    Step,
    alternate,
    open_gradient,
    program_step,
)
from tools.bench.zoo import CASES, DEEP, SMALL
from tools.bench.zoo.case import Case
from tools.bench.zoo.published import PACKAGES, PUBLISHED
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import Wrong, check, references
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.programs import OnnxFleet
from sedge_emulate.training.tasks import FleetTrainer
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_export import cross_entropy, export, squared_error
from sedge_protocol.errors import ExportError
from sedge_protocol.wire.bundle import (
    EXECUTORCH,
    ONNXRUNTIME,
    Bundle,
    BundleManifest,
    load,
)

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECONDS = 0.5


ALL = CASES | PUBLISHED


def main(argv: list[str] | None = None) -> int:
    """Measure the models, and write the page. Returns 0."""
    parser = argparse.ArgumentParser(description="Export many models, and write a table.")
    parser.add_argument("names", nargs="*", help="default: all, and some for ExecuTorch")
    parser.add_argument("--published", action="store_true", help="all models from public packages")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="number of seeds for the deep networks, which then run instead",
    )
    parser.add_argument("--venvs", type=Path, default=Path("runs/published"))
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    models, seeds = models_page.read(options.page)
    table, rows = (seeds, seeded) if options.seeds else (models, exported)
    names = options.names or [*CASES, *(f"{small}@{EXECUTORCH}" for small in SMALL)]
    if options.published:
        names = options.names or list(PUBLISHED)
    if options.seeds:
        names = [f"{name}@{s}" for name in options.names or DEEP for s in range(options.seeds)]
    if not find_spec("timm") and (
        of_packages := [n for n in names if n.partition("@")[0] in PUBLISHED]
    ):
        return in_environment(of_packages, options)
    for name in names:
        case, _, of = name.partition("@")
        key: Key = case, of or ONNXRUNTIME
        table[key] = models_page.line(key, rows(ALL[case], key[1], options.batch_size))
        print(table[key], flush=True)
        models_page.write(options.page, models, seeds, ALL, options.batch_size)
    return 0


def in_environment(names: Sequence[str], options: argparse.Namespace) -> int:
    """Run the same command in the environment of the public packages. Returns its exit status."""
    python = install([[TORCH, *PACKAGES]], options.venvs, ours=True)
    words = ["--batch-size", str(options.batch_size), "--page", str(options.page), *names]
    return subprocess.run([python, "-m", "tools.bench", "models", *words], check=False).returncode


def exported(case: Case, backend: str, batch_size: int) -> list[str]:
    """Export a model, and measure its step. Returns the cells of its row."""
    torch.manual_seed(0)
    model, x = case.build(), case.sample(batch_size)
    size = f"{sum(parameter.numel() for parameter in model.parameters()):,}"
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        try:
            manifest = export(
                model, x, batch_size=batch_size, name="model", num_classes=case.classes,
                folder=Path(name), loss=case.loss, target=case.target, backends=(backend,),
                measure=True,
            )  # fmt: skip
        except ExportError as exc:
            seconds = f"{time.monotonic() - start:.0f}"
            return [size, f"no: {exc}", "", "", "", seconds, "", ""]
        seconds = f"{time.monotonic() - start:.0f}"
        bundle, theta = load(Path(name))
    y = _targets(manifest, batch_size)
    ours, eager = alternate(
        [
            program_step(open_gradient(bundle, backend), bundle, theta, x, y),
            eager_step(case, model, x, y),
        ],
        SECONDS,
    )
    taken = manifest.programs[0].memory_bytes
    memory = taken and taken + theta.nbytes  # The gradient takes as much memory as theta.
    cost = [seconds, f"{ours / eager:.2f}", f"{memory / 1e6:.0f}" if memory else ""]
    return [size, "yes", *verification(manifest), *cost]


def seeded(case: Case, seed: str, batch_size: int) -> list[str]:
    """Export a model with this seed, and check the emulator's trainers on it.

    Returns the cells of its row.
    """
    torch.manual_seed(int(seed))
    model, x = case.build(), case.sample(batch_size)
    with tempfile.TemporaryDirectory() as name:
        try:
            manifest = export(
                model, x, batch_size=batch_size, name="model", num_classes=case.classes,
                folder=Path(name), seed=int(seed),
            )  # fmt: skip
        except ExportError as exc:
            return [f"no: {exc}", "", "", "", ""]
        bundle, _ = load(Path(name))
    return ["yes", *verification(manifest), "; ".join(trainers(model, bundle))]


def trainers(model: nn.Module, bundle: Bundle) -> list[str]:
    """Check each of the emulator's trainers on this classifier.

    Returns each trainer's name, or "not" and the error if it trains wrongly.
    """
    manifest, cpu = bundle.manifest, torch.device("cpu")
    problem = TrainingProblem(model, CLASSIFICATION, manifest.batch_size, manifest.input)
    wanted = references(problem)
    opened: list[Callable[[], FleetTrainer]] = [
        lambda: AutogradTrainer(problem, "fp32", cpu),
        lambda: VectorisedTrainer(problem, "fp32", cpu, 2),
        lambda: OnnxFleet(problem, "fp32", bundle),
    ]
    found: list[str] = []
    for build in opened:
        trainer = build()
        try:
            check(trainer, problem, "fp32", wanted)
            found.append(trainer.name)
        except Wrong as exc:
            found.append(f"not {exc}")
    return found


def verification(manifest: BundleManifest) -> list[str]:
    """Return the cells for an export's two errors and for the number of batches that it replaced."""
    found = manifest.verification
    if found is None:
        return ["", "", ""]
    errors = [f"{error:.0e}" for error in (found.epoch_error, found.torch_error)]
    return [*errors, f"{len(found.kinks)}" if found.kinks else ""]


def _targets(manifest: BundleManifest, batch_size: int) -> Tensor:
    rng = np.random.default_rng(0)
    shape = (batch_size, *manifest.row_target.shape)
    if manifest.num_classes:
        return torch.from_numpy(rng.integers(0, manifest.num_classes, shape))
    return torch.from_numpy(rng.random(shape, np.float32))


def eager_step(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return a function that makes one training step in plain torch."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=MOMENTUM)
    loss = case.loss or (cross_entropy if case.classes else squared_error)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(loss(model(x), y).mean())
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
