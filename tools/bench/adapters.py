"""Compares training part of a model in a fleet with training the whole model, in bytes and accuracy.

There are two models, trained on handwritten digits by ten devices: the transformer of examples/lora.py with
adapters of rank 8, and a ResNet-8 whose body is frozen. Each base was trained on the images of the digits 0
to 4 among 600 others; the fleet trains on all ten digits. Every run uses FedAvg, sends the largest 4 % of
the elements in bf16, and has its own folder; an existing run is not repeated. Accuracies are before and
after local training. The bytes of a device's first round and of its later rounds are listed separately.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from examples.lora import BASE_EPOCHS, BASE_IMAGES, images
from tools.bench.fleets import emulated
from tools.bench.harness import Figure, Result, bench
from torch import Tensor, nn
from torch.nn import functional

from sedge_cloud.figures.numbers import percent, size
from sedge_emulate.headline import headline
from sedge_export.models import ResNet8, batch_norm

FLEET = """\
devices = 10
seed = 42
[data]
dataset = "{data}"
alpha = 0.5
[model]
factory = "{factory}"
[rounds]
num_rounds = {rounds}
[training]
optimizer = "adam"
learning_rate = {rate}
[codec]
values = "bf16"
fraction = 0.04
[[strategies]]
name = "fedavg"
"""


class Run(NamedTuple):
    """A model, its data, and its learning rate, which is larger for adapters."""

    data: str
    factory: str
    rate: float


RUNS = {
    "transformer, adapters of rank 8": Run("examples.lora:load", "examples.lora:build", 0.01),
    "transformer, whole": Run("examples.lora:load", "examples.lora:whole", 0.002),
    "ResNet-8, head on a frozen body": Run(
        "tools.bench.adapters:load", "tools.bench.adapters:head", 0.01
    ),
    "ResNet-8, whole": Run("tools.bench.adapters:load", "tools.bench.adapters:whole", 0.001),
}


class Tuned(ResNet8):
    """A ResNet-8 whose body is frozen, including its statistics."""

    def __init__(self) -> None:
        super().__init__(1, 10, batch_norm)

    def train(self, mode: bool = True) -> "Tuned":
        """Set the training mode, except for the body, which stays in evaluation mode."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        return self


def load() -> tuple[object, object]:
    """Return the images (N, 1, 16, 16) that the base was not trained on, and their labels (N,)."""
    x, y = enlarged()
    return x[BASE_IMAGES:].numpy(), y[BASE_IMAGES:].numpy()


def enlarged() -> tuple[Tensor, Tensor]:
    """Return all digits, enlarged to (N, 1, 16, 16), and their labels (N,)."""
    x, y = images()
    return functional.interpolate(x[:, None], scale_factor=2, mode="bilinear"), y


def whole() -> ResNet8:
    """Return the trained base with every parameter trainable."""
    x, y = (part[:BASE_IMAGES] for part in enlarged())
    x, y = x[y < 5], y[y < 5]
    model = ResNet8(1, 10, batch_norm)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(BASE_EPOCHS):
        for rows in torch.randperm(len(x)).split(32):  # type: ignore[no-untyped-call]
            optimizer.zero_grad()
            torch.autograd.backward(functional.cross_entropy(model(x[rows]), y[rows]))
            optimizer.step()
    return model


def head() -> Tuned:
    """Return the trained base, frozen except for its last layer."""
    model = Tuned()
    model.load_state_dict(whole().state_dict())
    model.requires_grad_(False).classifier.requires_grad_(True)
    return model


def figures(found: Result) -> list[Figure]:
    """Return the figures of training part of a model, compared with training all of it."""
    return [
        Figure(
            f"{name}: {cell['parameters']:,} parameters in training, {found['rounds']} rounds",
            f"{size(cell['up'])} up, {size(cell['down'])} down per device and round (its first: "
            f"{size(cell['newcomer_up'])} up, {size(cell['newcomer_down'])} down); "
            f"{percent(cell['before'])} before, {percent(cell['after'])} after training",
        )
        for name, cell in found["adapters"].items()
    ]


@bench("Adapters and frozen bodies", figures)
def measure(rounds: int = 20, out: Path = Path("runs/adapters")) -> Result:
    """Perform the missing runs, and collect the results of all runs."""
    cells: dict[str, dict[str, float]] = {}
    for name, run in RUNS.items():
        folder = out / name.replace(", ", "-").replace(" ", "-")
        result = emulated(FLEET.format(rounds=rounds, **run._asdict()), folder)
        row = headline(result.strategies[0])
        cells[name] = {
            "parameters": result.model.parameters,
            "before": row.before.mean,
            "after": row.after.mean,
            "up": row.rates.device.up,
            "down": row.rates.device.down,
            "newcomer_up": row.rates.newcomer.up,
            "newcomer_down": row.rates.newcomer.down,
        }
    return {"rounds": rounds, "adapters": cells}
