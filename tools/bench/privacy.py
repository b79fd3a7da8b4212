"""Measures how much accuracy differential privacy costs in fleets of different sizes.

The data set is Fashion-MNIST, shrunk to 7 x 7. Each of 30, 300 or 3,000 devices has 20 random images, a
quarter of them for tests. FedAvg trains a network of 2,410 parameters twice: once as usual, with equal
weights, and once with (8, 1e-5)-differential privacy. All devices train in every round, except in the fleet
of 3,000, where a tenth of them do. The accountant sets the noise as a multiple of the clip. Accuracies are
those of the global model on the test images of all devices (of 300 devices in the fleet of 3,000). A
finished fleet is not repeated.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, bench

from sedge_cloud.figures.numbers import percent
from sedge_cloud.privacy import EMPTY_SHARE, epsilon_of, least_noise
from sedge_emulate.paired import pooled

EPSILON, DELTA, CLIP = 8.0, 1e-5, 0.5
PER_DEVICE = 20
# Maps a fleet's size to the share of its devices that trains in each round.
FLEETS = {30: 1.0, 300: 1.0, 3000: 0.1}
PLAIN, PRIVATE = "plain", "private"
MODEL = """from torch import nn


def model():
    return nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(49, 40), nn.ReLU(), nn.Linear(40, 10))
"""
FLEET = """devices = {devices}
workers = 1
[data]
dataset = "fashion-mnist"
examples = {examples}
split = "iid"
[model]
factory = "privacy_{devices}_{seed}:model"
batch_size = 8
[rounds]
num_rounds = {rounds}
fraction_train = {share}
fraction_evaluate = {share}
[training]
local_epochs = 5
learning_rate = 0.1
[codec]
fraction = 1.0
error_feedback = false
[broadcast]
values = "fp32"
fraction = 1.0
[[strategies]]
name = "fedavg"
label = "plain"
robust = {{ rule = "mean", clip = 0.0, max_weight = 0.0, equal_weights = true }}
[[strategies]]
name = "fedavg"
label = "private"
privacy = {{ epsilon = {epsilon}, delta = {delta}, clip = {clip} }}
"""


def figures(found: Result) -> Iterator[Figure]:
    """Yield a figure for each size of the fleet, with means over the seeds."""
    for row in found["rows"]:
        plain, private = (mean(row[label]) for label in (PLAIN, PRIVATE))
        budget = f"({found['epsilon']:g}, {found['delta']:g})"
        yield Figure(
            f"{row['devices']:,} devices at {budget}, noise {row['noise']:.3g} times the clip",
            f"accuracy of the global model {percent(private)}, without privacy {percent(plain)}; "
            f"{row['rounds']} rounds spend epsilon {row['spent']:.3f}; seeds: {len(row[PLAIN])}",
        )


@bench("What differential privacy costs", figures)
def measure(
    devices: Sequence[int] = tuple(FLEETS), seeds: Sequence[int] = (42, 43, 44), rounds: int = 10,
    out: Path = Path("runs/privacy"),
) -> Result:  # fmt: skip
    """Run the fleets that have no result yet, and return all results."""
    rows: list[Result] = []
    for size in devices:
        share, delta = FLEETS.get(size, 1.0), (1 - EMPTY_SHARE) * DELTA
        row: Result = {"devices": size, "share": share, "rounds": rounds, PLAIN: [], PRIVATE: []}
        row["noise"] = least_noise(share, rounds, EPSILON, delta)
        row["spent"] = epsilon_of(row["noise"], share, rounds, delta)
        for seed in seeds:
            folder = out / f"{size}-{seed}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"privacy_{size}_{seed}.py").write_text(MODEL)
            text = FLEET.format(
                devices=size,
                examples=PER_DEVICE * size,
                seed=seed,
                rounds=rounds,
                share=share,
                epsilon=EPSILON,
                delta=DELTA,
                clip=CLIP,
            )
            for result in emulated(text, folder, seed=seed).strategies:
                row[result.name].append(pooled(result.devices, "before"))
        rows.append(row)
    return {"epsilon": EPSILON, "delta": DELTA, "clip": CLIP, "seeds": seeds, "rows": rows}
