"""Trains one device after another in eager torch, as PFLlib and FL-bench do. This is the rate to beat.

Each device has a copy of the model, torch.optim.SGD, and newly permuted batches in every epoch. The data
are on the training device and there is no DataLoader: both frameworks have one, so their own loops are
slower than this. "default" is float32 as torch ships it, with TF32 in convolutions on a GPU; "fp32" has no
TF32 anywhere.
"""

import copy
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

import torch
from tools.bench.gpu.cells import Cell, Figures, Settings
from tools.bench.gpu.costs import cost
from tools.bench.gpu.rate import rate
from tools.bench.gpu.sizes import SIZES, Size
from tools.bench.gpu.subjects import LEARNING_RATE, built, examples_of, problem, subject
from tools.bench.training import Example
from torch import Tensor, nn

DEFAULT = "default"
PRECISIONS = (DEFAULT, "bf16", "fp32")


def cells(settings: Settings) -> list[Cell]:
    """Return a cell for each model and precision."""
    size = SIZES[settings.size]
    return [
        Cell(
            {"model": name, "precision": precision},
            partial(measured, name, size, settings.device, precision),
        )
        for precision in PRECISIONS
        for name in size.models
    ]


def measured(name: str, size: Size, device: str, precision: str) -> Figures:
    """Measure examples, FLOPs and bytes per second."""
    example = subject(name, size, size.loop_devices)
    loop = Loop(example, device, precision)
    found = rate(loop.train, examples_of(example), size.seconds, device)
    each = cost(problem(example))
    return {"examples_s": found, "flops_s": found * each.flops, "bytes_s": found * each.bytes}


class Loop:
    """An example's devices, trained one after another."""

    def __init__(self, example: Example, device: str, precision: str) -> None:
        self._example, self._device, self._precision = example, device, precision
        rng = torch.Generator().manual_seed(0)
        rows = example.devices, example.rows
        self._x = torch.randn(*rows, *example.shape, generator=rng).to(device)
        self._y = torch.randint(0, 3, rows, generator=rng).to(device)
        self._model = built(example).to(device)

    def train(self) -> None:
        """Train every device, one after another."""
        with _arithmetic(self._precision, self._device):
            for x, y in zip(self._x, self._y, strict=True):
                self._train(x, y)

    def _train(self, x: Tensor, y: Tensor) -> None:
        example = self._example
        model = copy.deepcopy(self._model).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        for _ in range(example.training.local_epochs):
            order = torch.randperm(example.rows, device=self._device)
            for rows in torch.split(order, example.batch_size):
                half = torch.autocast(
                    self._device, torch.bfloat16, enabled=self._precision == "bf16"
                )
                with half:
                    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()


@contextmanager
def _arithmetic(precision: str, device: str) -> Generator[None]:
    """Disable TF32 within this context if ``precision`` is "fp32"."""
    if precision != "fp32" or device == "cpu":
        yield
        return
    # Only convolutions need this: by default torch does not use TF32 for matrix products.
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield
