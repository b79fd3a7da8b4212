"""The stages, most valuable first, which together take under six minutes. Does not import torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """A stage's name, subject and time limit, and the "module:function" that returns its cells."""

    name: str
    title: str
    seconds: float
    cells: str


CARD = Stage("card", "the card and its measured limits", 20.0, "tools.bench.gpu.card:cells")
STAGES = (
    CARD,
    Stage("tests", "the tests that need a GPU", 40.0, "tools.bench.gpu.gpu_tests:cells"),
    Stage("loop", "eager torch, one device after another", 20.0, "tools.bench.gpu.loop:cells"),
    Stage("vectorised", "many devices at once", 55.0, "tools.bench.gpu.vectorised:single"),
    Stage("thousand", "examples/thousand.toml, whole", 70.0, "tools.bench.gpu.fleets:thousand"),
    Stage("fleet", "a large fleet, two rounds", 70.0, "tools.bench.gpu.fleets:large"),
    Stage("processes", "several processes at once", 15.0, "tools.bench.gpu.processes:cells"),
    # This stage is last, because it uses all the remaining time.
    Stage("combined", "many devices at once", 15.0, "tools.bench.gpu.vectorised:combined"),
)
TOTAL_S = sum(stage.seconds for stage in STAGES)
