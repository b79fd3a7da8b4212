"""The fleet of ``examples/fashion_mnist.toml`` under three seeds, with more strategies, as a paper would.

Runs headline.toml once for each seed; a seed that has ended is not run again. The result is the mean
and sample standard deviation over the seeds of every figure of ``sedge-emulate compare``, for each strategy
and for the first one minus each other one, seed by seed. Accuracies are in [0, 1].
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.figures.numbers import percent
from sedge_emulate.compare.comparison import compared

FLEET = Path(__file__).with_name("headline.toml")


def figures(found: Result) -> list[Figure]:
    """The accuracy of each strategy."""
    return [
        Figure(f"{row['name']}, before training", percent(row["figures"]["before"]["mean"]))
        for row in found["strategies"]
    ]


@bench("Fashion-MNIST under several seeds", figures)
def measure(seeds: Sequence[int] = (42, 43, 44), out: Path = Path("runs/headline")) -> Result:
    """Run what is not there yet, and compare."""
    for seed in seeds:
        emulated(FLEET, out / f"seed-{seed}", seed=seed)
    found: Result = msgspec.to_builtins(compared([out]))
    return found
