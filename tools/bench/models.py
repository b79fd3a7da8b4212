"""Which models the exporter takes: every model of ``tools/bench/zoo``, verified or refused with its reason.

    python -m tools.bench.models [--batch-size 8] [--page docs/models.md] [name ...]

Each is exported, which verifies its programs against eager torch in float64. Then its gradient step runs in
turn with eager torch's, on one thread; the ratio is one of CPU times, of medians over half a second, and in
a model of microseconds most of it is overhead. The export's time is the wall clock's. Memory is that of
``sedge_export.step_memory``. A name that ends in ``@executorch`` is exported for that backend. The page
is written after each model, so that what is done is kept.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tools.bench.train_step import LEARNING_RATE, MOMENTUM, Step, alternate, program_step
from tools.bench.zoo import CASES, SMALL, Case
from torch import Tensor, nn

from sedge_export import cross_entropy, export, squared_error
from sedge_export.target import TARGETS, signatures
from sedge_protocol.errors import ExportError
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, BundleManifest, load

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
SECONDS = 0.5
HEAD = """\
# Which models export

Written by `python -m tools.bench.models`, which exports every model of `tools/bench/zoo` in batches of
{batch} and verifies its programs against eager torch in float64: {verified}. An error is the largest
difference of a gradient in an epoch of four steps, as a share of the largest gradient; torch's is that of
eager torch in float32 on the same batches. A replaced batch is one with a proven kink (see
`tools/export/sedge_export/verify.py`). The step's ratio is its CPU time over that of the same step in eager
torch, both on one thread; memory is what a process needs for the step beside the runtime's libraries.

| model | kind | backend | verified | error | torch's | batches replaced | export s | step / eager | MB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    """What became of one model: its manifest and the cost of its step, or the reason against it."""

    case: Case
    backend: str
    seconds: float
    manifest: BundleManifest | None = None
    ratio: float = 0.0
    memory: int = 0
    reason: str = ""


def main(argv: list[str] | None = None) -> int:
    """Measure the models, and write the page. Returns 0."""
    parser = argparse.ArgumentParser(description="Export many models, and write a table.")
    parser.add_argument("names", nargs="*", help="default: all, and some for ExecuTorch")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    rows: dict[str, Row] = {}
    for name in options.names or [*CASES, *(f"{small}@{EXECUTORCH}" for small in SMALL)]:
        case, _, backend = name.partition("@")
        rows[name] = measured(CASES[case], backend or ONNXRUNTIME, options.batch_size)
        print(written(name, rows[name]), flush=True)
        options.page.write_text(page(rows, options.batch_size))
    return 0


def measured(case: Case, backend: str, batch_size: int) -> Row:
    """Export a model, and measure its step."""
    torch.manual_seed(0)
    model, x = case.build(), case.sample(batch_size)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            manifest = export(
                model, x, batch_size=batch_size, name="model", num_classes=case.classes,
                folder=folder, loss=case.loss, target=case.target, backends=(backend,),
                measure=backend == ONNXRUNTIME,
            )  # fmt: skip
        except ExportError as exc:
            return Row(case, backend, time.monotonic() - start, reason=str(exc))
        seconds = time.monotonic() - start
        bundle, theta = load(folder)
        memory = bundle.manifest.programs[0].memory_bytes
    y = _targets(manifest, batch_size)
    signature = signatures(bool(manifest.layout.statistics), False, manifest.frozen is not None)[
        "gradient"
    ]
    program = TARGETS[backend].load("gradient", bundle.program("gradient", backend), signature)
    ours, eager = alternate(
        [program_step(program, bundle, theta, x, y), eager_step(case, model, x, y)],
        SECONDS,
    )
    return Row(case, backend, seconds, manifest, ours / eager, memory)


def _targets(manifest: BundleManifest, batch_size: int) -> Tensor:
    rng = np.random.default_rng(0)
    shape = (batch_size, *manifest.row_target.shape)
    if manifest.num_classes:
        return torch.from_numpy(rng.integers(0, manifest.num_classes, shape))
    return torch.from_numpy(rng.random(shape, np.float32))


def eager_step(case: Case, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """One step of plain torch."""
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=MOMENTUM)
    loss = case.loss or (cross_entropy if case.classes else squared_error)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(loss(model(x), y).mean())
        optimizer.step()

    return step


def page(rows: Mapping[str, Row], batch_size: int) -> str:
    """The whole page."""
    counts: list[str] = []
    for backend in (ONNXRUNTIME, EXECUTORCH):
        of = [row for row in rows.values() if row.backend == backend]
        if of:
            passed = sum(row.manifest is not None for row in of)
            counts.append(f"{passed} of {len(of)} pass for {backend}")
    head = HEAD.format(batch=batch_size, verified=", ".join(counts))
    return head + "".join(written(name, row) + "\n" for name, row in rows.items())


def written(name: str, row: Row) -> str:
    """One row of the table."""
    found = row.manifest.verification if row.manifest else None
    if found is None:
        cells = [f"no: {row.reason}".replace("|", "\\|"), "", "", "", f"{row.seconds:.0f}", "", ""]
    else:
        errors = [f"{error:.0e}" for error in (found.epoch_error, found.torch_error)]
        replaced = f"{len(found.kinks)}" if found.kinks else ""
        memory = f"{row.memory / 1e6:.0f}" if row.memory else ""
        cells = ["yes", *errors, replaced, f"{row.seconds:.0f}", f"{row.ratio:.2f}", memory]
    return f"| {' | '.join([name.partition('@')[0], row.case.kind, row.backend, *cells])} |"


if __name__ == "__main__":
    sys.exit(main())
