"""Measures every form of the emulator's vectorised trainer, which trains many devices at once.

A form is a set of choices. As in an emulation, each form is checked against float64 before it is timed; if
it is wrong, its row says so. The timed call is ``FleetTrainer.train``: it copies thetas to the device, runs
all steps, and copies thetas back. Cells are sorted by how many of their choices differ from the first
cell's, so that each choice is measured on its own before time runs out.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import product
from typing import Literal

import torch
from tools.bench.gpu.cells import CUDA_ONLY, Cell, Figures, Missing, Settings
from tools.bench.gpu.costs import Cost, cost
from tools.bench.gpu.rate import rate
from tools.bench.gpu.sizes import SIZES, Size
from tools.bench.gpu.subjects import examples_of, problem, subject
from tools.bench.training import example_tasks

from sedge_emulate.training.checks import References, Wrong, check, references
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Convolutions, Precision, Task
from sedge_emulate.training.vectorised import VectorisedTrainer

GRAPHS, EAGER = "graphs", "no graphs"
# The models that have no convolutions.
_PLAIN = ("mlp",)
# The number of devices in the trainer that is checked; the check needs at least this many.
_CHECKED = 4


@dataclass(frozen=True)
class Form:
    """The trainer's settings. "tf32" is float32 with the factors of products rounded."""

    precision: Literal["fp32", "bf16", "tf32"] = "fp32"
    launches: str = EAGER
    convolutions: Convolutions = "grouped"

    def open(self, of: TrainingProblem, device: str, width: int) -> VectorisedTrainer:
        """Create a trainer for ``width`` devices at a time."""
        return VectorisedTrainer(
            of,
            self.rounding,
            torch.device(device),
            width,
            tf32=self.precision == "tf32",
            graphs=self.launches == GRAPHS,
            convolutions=self.convolutions,
        )

    @property
    def rounding(self) -> Precision:
        """The trainer's name for the precision."""
        return "bf16" if self.precision == "bf16" else "fp32"

    @property
    def differences(self) -> int:
        """How many choices differ from the default."""
        return sum(value != getattr(Form(), key) for key, value in asdict(self).items())


def single(settings: Settings) -> list[Cell]:
    """Return the cells that differ from the default form and first width in at most one choice."""
    return [cell for differences, cell in _matrix(settings) if differences <= 1]


def combined(settings: Settings) -> list[Cell]:
    """Return the cells that differ from the default form and first width in two or more choices."""
    return [cell for differences, cell in _matrix(settings) if differences > 1]


def _matrix(settings: Settings) -> list[tuple[int, Cell]]:
    """Return each cell with the number of its differences from the first cell, fewest first.

    TF32 is used only at the first width.
    """
    size = SIZES[settings.size]
    grid = [
        (form.differences + (width != size.widths[0]), name, width, form)
        for width, form in product(size.widths, _forms())
        for name in size.models
        if form.precision != "tf32" or width == size.widths[0]
        if form.convolutions == "grouped" or name not in _PLAIN
    ]
    return [
        (
            differences,
            Cell(
                {"model": name, "devices": width, **asdict(form)},
                partial(measured, name, size, settings.device, width, form),
            ),
        )
        for differences, name, width, form in sorted(grid, key=lambda row: row[0])
    ]


def _forms() -> Iterator[Form]:
    for launches in (EAGER, GRAPHS):
        for precision in ("fp32", "bf16", "tf32"):
            for convolutions in ("grouped", "unfold"):
                yield Form(precision, launches, convolutions)


def measured(name: str, size: Size, device: str, width: int, form: Form) -> Figures:
    """Measure the combined rate of devices that train at once, in examples, FLOPs and bytes per second.

    Raises ``Missing`` on a CPU if the form needs a GPU, and with the figures if the form's results are
    wrong.
    """
    if device == "cpu" and (form.precision != "fp32" or form.launches != EAGER):
        raise Missing(CUDA_ONLY)
    wrong = _wrong(name, size, device, form)
    example, of = subject(name, size, width), _problem(name, size)
    trainer, tasks = form.open(of, device, width), _tasks(name, size)[:width]
    found = rate(lambda: trainer.train(tasks), examples_of(example), size.seconds, device)
    each = _cost(name, size)
    figures = {"examples_s": found, "flops_s": found * each.flops, "bytes_s": found * each.bytes}
    if wrong:
        raise Missing(f"wrong: {wrong}", figures)
    return figures


@cache
def _wrong(name: str, size: Size, device: str, form: Form) -> str:
    """Return how the form's training differs from torch's, or "" if it does not."""
    of = _problem(name, size)
    try:
        check(form.open(of, device, _CHECKED), of, form.rounding, _references(name, size))
    except Wrong as exc:
        return str(exc)
    return ""


# These are computed once per process for each model.


@cache
def _problem(name: str, size: Size) -> TrainingProblem:
    return problem(subject(name, size, 1))


@cache
def _cost(name: str, size: Size) -> Cost:
    return cost(_problem(name, size))


@cache
def _references(name: str, size: Size) -> References:
    return references(_problem(name, size))


@cache
def _tasks(name: str, size: Size) -> list[Task]:
    example = subject(name, size, max(size.widths))
    return example_tasks(example, _problem(name, size).network.theta)
