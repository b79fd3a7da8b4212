"""Finds how many elements FedOBP should keep personal in models of 500 to 600,000 parameters.

Two data sets, each with six models, are split among ten devices by Dir(0.3). With ``--validation``, rules
that derive the number from the model's size are compared on a fifth of the devices' training examples; the
default was chosen that way. Otherwise FedAvg, the paper's quantile and the default are compared on the test
examples. A finished fleet is not repeated. Accuracies are in [0, 1], pooled over the test examples, before
and after training.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path
from statistics import mean

from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.figures.numbers import percent
from sedge_emulate.paired import pooled

DIGITS, FASHION = "digits", "fashion-mnist"
# Maps a model's number of parameters to the widths of its layers, except the output layer's ten classes.
MODELS: Mapping[str, Mapping[int, str]] = {
    DIGITS: {
        650: "layers(64)",
        2_410: "layers(64, 32)",
        7_510: "layers(64, 100)",
        30_010: "layers(64, 400)",
        101_022: "layers(64, 256, 316)",
        602_314: "layers(64, 512, 1088)",
    },
    FASHION: {
        500: "layers(49, pool=4)",
        2_410: "layers(49, 40, pool=4)",
        7_850: "layers(784)",
        25_450: "layers(784, 32)",
        101_770: "layers(784, 128)",
        582_026: "avgcnn()",
    },
}
FACTORY = """from sedge_export.models import avgcnn
from torch import nn


def layers(*widths, pool=1):
    hidden = [m for a, b in zip(widths, widths[1:]) for m in (nn.Linear(a, b), nn.ReLU())]
    pooled = [nn.AvgPool2d(pool)] if pool > 1 else []
    return nn.Sequential(*pooled, nn.Flatten(), *hidden, nn.Linear(widths[-1], 10))


def model():
    return {model}
"""
FLEET = """devices = 10
workers = 1
[data]
dataset = "{dataset}"
examples = {examples}
alpha = 0.3
min_examples = 40
validation = {validation}
[model]
factory = "{factory}:model"
[rounds]
num_rounds = 8
[training]
local_epochs = 2
learning_rate = 0.03
momentum = 0.7
"""
STRATEGY = """[[strategies]]
name = "{name}"
label = "{label}"
options = {{ {options} }}
"""
EXAMPLES = {DIGITS: 0, FASHION: 2500}
# Rules for the number of personal elements in a model with n parameters.
RULES: Mapping[str, Callable[[int], int]] = {
    "41 or more": lambda n: max(41, n * 7 // 100_000),
    "square root": isqrt,
    "1 %": lambda n: n // 100,
    "5 %": lambda n: n // 20,
}
PLAIN, PAPER, DEFAULT = "FedAvg", "the paper's quantile", "default"


def figures(found: Result) -> list[Figure]:
    """Return the mean accuracies before and after training for each data set, size and strategy."""
    cells: dict[str, dict[str, list[Result]]] = {}
    for row in found["rows"]:
        cell = cells.setdefault(f"{row['dataset']}, {row['parameters']:,} parameters", {})
        cell.setdefault(row["strategy"], []).append(row)
    return [
        Figure(cell, "; ".join(f"{name} {_mean(rows)}" for name, rows in strategies.items()))
        for cell, strategies in cells.items()
    ]


def _mean(rows: Sequence[Result]) -> str:
    return " / ".join(percent(mean(row[key] for row in rows)) for key in ("before", "after"))


@bench("FedOBP's default by model size", figures)
def measure(
    validation: float = 0.0,
    seeds: Sequence[int] = (42, 43, 44),
    sizes: Sequence[int] = (),
    out: Path = Path("runs/least_personal"),
) -> Result:
    """Run the fleets that have no result yet. ``sizes`` selects models by their number of parameters."""
    rows: list[Result] = []
    for seed in seeds:
        for dataset, models in MODELS.items():
            for size, model in models.items():
                if not sizes or size in sizes:
                    home = out / f"{'validated-' * bool(validation)}{dataset}-{size}-{seed}"
                    rows += _rows(dataset, size, model, seed, validation, home)
    return {"validation": validation, "rows": rows}


def _rows(
    dataset: str, size: int, model: str, seed: int, validation: float, home: Path
) -> list[Result]:
    factory = f"model_{dataset}_{size}".replace("-", "_")
    home.mkdir(parents=True, exist_ok=True)
    (home / f"{factory}.py").write_text(FACTORY.format(model=model))
    fleet = FLEET.format(
        dataset=dataset, examples=EXAMPLES[dataset], validation=validation, factory=factory
    )
    found = emulated(fleet + "".join(_strategies(size, validation > 0)), home, seed=seed)
    return [
        {
            "dataset": dataset,
            "parameters": found.model.parameters,
            "seed": seed,
            "strategy": strategy.name,
            "personal": sum(share.elements for share in strategy.personal),
            "before": pooled(strategy.devices, "before"),
            "after": pooled(strategy.devices, "after"),
        }
        for strategy in found.strategies
    ]


def _strategies(size: int, validates: bool) -> Iterator[str]:
    yield STRATEGY.format(name="fedavg", label=PLAIN, options="")
    options = {PAPER: "quantile = 0.99993", DEFAULT: ""}
    if validates:
        kept = {label: rule(size) + 0.5 for label, rule in RULES.items()}
        options = {label: f"quantile = {1 - k / (size - 1)}" for label, k in kept.items()}
    for label, it in options.items():
        yield STRATEGY.format(name="fedobp", label=label, options=it)
