"""Measures how fast one host trains many devices, compared with the loop that simulators usually run.

The loop is FL-bench's: a DataLoader over a Subset, each image normalised as in torchvision, eager torch,
torch.optim.SGD, one process with two threads (``OMP``'s default on two cores). The trainer has two
processes with one thread each. Both train the same devices with the same number of examples, alternately.
The result is the median over the rounds of the ratio within a round, because absolute figures vary with the
machine's load. That load slows down two threads that wait for each other more than two processes, so there
is a second ratio, "per core": the loop's CPU time with one thread, relative to the trainer's. Before a
trainer is timed, it must pass its own checks, and one device's training is compared with the loop's on the
same batches. While one side waits, the kernel may swap out its memory or lower the processor's clock, so
each side trains an eighth of the devices again before it is timed.

Then every trainer is compared with autograd on the models, batches and devices of the shipped examples,
alternately, in one process with one thread. The figure is the median over the rounds of the ratio of CPU
times.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from tools.bench.harness import Figure, Result, at_least, bench, chosen
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.batches import permutations
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained, TrainRequest
from sedge_emulate.training.choice import AUTO, NAMES, open_trainer
from sedge_emulate.training.tasks import FleetTrainer, Task
from sedge_export import export, models
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, TensorSpec, load
from sedge_protocol.wire.training import Training

LEARNING_RATE = 0.01
MEAN, STD = 0.286, 0.3205
CORES = 2
# A case starts no more rounds after this long, so on a busy machine it gets fewer than requested.
LONGEST_S = 35.0


@dataclass(frozen=True)
class Case:
    """A model, a batch size, and the numbers of devices and steps.

    ``target`` is how many times as fast as the loop the trainer should be.
    """

    model: str
    batch_size: int
    devices: int
    steps: int
    target: float

    @property
    def examples(self) -> int:
        """How many examples all devices have together."""
        return self.devices * self.steps * self.batch_size

    @property
    def warm_up(self) -> int:
        """How many devices are trained before the measurement."""
        return self.devices // 8


CASES = {
    "avgcnn": Case("avgcnn", 32, 24, 12, 2.0),
    "mlp": Case("mlp", 32, 64, 12, 2.5),
    "mlp-10": Case("mlp", 10, 64, 40, 2.5),
}


@dataclass(frozen=True)
class Example:
    """A shipped example: model, row shape, batch size, training settings, devices, and rows per device."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    batch_size: int
    training: Training
    devices: int
    rows: int


def wine() -> nn.Module:
    """Return a model like that in examples/own_model.py."""
    return nn.Sequential(nn.Linear(13, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 3))


_IMAGE = (1, 28, 28)
EXAMPLES = {
    "fashion_mnist.toml": Example(models.avgcnn, _IMAGE, 32, Training(1, 0.01, 0.7), 5, 375),
    "thousand.toml": Example(models.avgcnn, _IMAGE, 32, Training(5, 0.01, 0.7), 8, 53),
    "own_model.toml": Example(wine, (13,), 8, Training(3, 0.05), 5, 27),
    "own_strategy.toml": Example(
        lambda: models.mlp(64, 200, 10), (8, 8), 32, Training(2, 0.05), 10, 135
    ),
}


BESIDE = "beside"
NAMED = (*CASES, BESIDE)


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Raw images in [0, 1], each of which is normalised when it is read, like torchvision's Normalize."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        image = self.x[row].clone()
        mean = torch.as_tensor([MEAN], dtype=image.dtype, device=image.device)
        std = torch.as_tensor([STD], dtype=image.dtype, device=image.device)
        if (std == 0).any():
            raise ValueError("std evaluated to zero, leading to division by zero")
        return image.sub_(mean.view(-1, 1, 1)).div_(std.view(-1, 1, 1)), self.y[row]

    def __len__(self) -> int:
        return len(self.x)


@cache
def images(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return raw images (count, 1, 28, 28) on a flat background, like Fashion-MNIST's, and labels."""
    rng = np.random.default_rng(0)
    x = np.zeros((count, 1, 28, 28), np.float32)
    x[:, :, 4:24, 6:22] = rng.integers(0, 256, (count, 1, 20, 16)) / np.float32(255)
    return x, rng.integers(0, 10, count)


@cache
def module(name: str) -> nn.Module:
    """Return a reference model, the same in every process."""
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)()
    return model


def loop(case: Case, rows: Sequence[int], order: Sampler[int] | None = None) -> nn.Module:
    """Train one device as FL-bench does. ``order`` replaces DataLoader's own shuffle."""
    x, y = images(case.examples)
    dataset = Subset(Images(torch.from_numpy(x), torch.from_numpy(y)), rows)
    loader = DataLoader(dataset, case.batch_size, shuffle=order is None, sampler=order)
    model = copy.deepcopy(module(case.model))
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    criterion = nn.CrossEntropyLoss()
    model.train()
    for inputs, labels in loader:
        if len(inputs) <= 1:
            continue
        loss = criterion(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def rows_of(case: Case, device: int) -> range:
    """Return the rows of a device's examples."""
    count = case.steps * case.batch_size
    return range(device * count, (device + 1) * count)


def tasks(case: Case, devices: Sequence[int]) -> list[Task]:
    """Return the training tasks of these devices."""
    x, y = images(case.examples)
    normal = (x - np.float32(MEAN)) / np.float32(STD)
    theta = np.concatenate([p.detach().numpy().ravel() for p in module(case.model).parameters()])
    training = Training(learning_rate=LEARNING_RATE)
    parts = [np.array(rows_of(case, device)) for device in devices]
    return [
        Task(TrainRequest(theta, training, device), Examples(normal[part], y[part]))
        for part, device in zip(parts, devices, strict=True)
    ]


@cache
def trainer(case: Case, name: str) -> FleetTrainer:
    """Return the trainer of this name, which is created once per process and case."""
    model = module(case.model)
    bundle = bundle_of(model, case.batch_size, (1, 28, 28))
    row = TensorSpec("float32", (1, 28, 28))
    return open_trainer(model, CLASSIFICATION, case.batch_size, row, name=name, bundle=bundle)


def bundle_of(model: nn.Module, batch_size: int, shape: tuple[int, ...]) -> Bundle:
    """Export a model, and return the bundle."""
    sample = torch.randn(batch_size, *shape)
    classes = model(sample[:1]).shape[1]
    with TemporaryDirectory() as found:
        folder = Path(found) / "bundle"
        export(model, sample, batch_size=batch_size, name="it", num_classes=classes, folder=folder)
        return load(folder)[0]


@dataclass(frozen=True)
class Taken:
    """How long work took: wall-clock seconds, and the calling thread's CPU seconds."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> "Taken":
        return cls(time.perf_counter(), time.thread_time())

    def until_now(self) -> "Taken":
        end = Taken.now()
        return Taken(end.clock - self.clock, end.processor - self.processor)


# The functions below run in child processes.


def run_loop(case: Case, threads: int) -> Taken:
    torch.set_num_threads(threads)
    for device in range(case.warm_up):
        loop(case, rows_of(case, device))
    start = Taken.now()
    for device in range(case.devices):
        loop(case, rows_of(case, device))
    return start.until_now()


def run_trainer(case: Case, name: str, share: int) -> Taken:
    torch.set_num_threads(1)
    work = tasks(case, range(case.devices)[share::CORES])
    chosen = trainer(case, name)
    chosen.train(work[: case.warm_up])
    start = Taken.now()
    chosen.train(work)
    return start.until_now()


def open_here(case: Case, name: str) -> str:
    torch.set_num_threads(1)
    return trainer(case, name).name


def difference(case: Case, name: str) -> tuple[float, float]:
    """Compare a device's theta with the loop's after training on equal batches.

    Returns the maximum absolute difference, and the maximum absolute change from the initial theta.
    """
    torch.set_num_threads(1)
    (task,) = tasks(case, [0])
    (found,) = trainer(case, name).train([task])
    if not isinstance(found, Trained):
        raise found
    (shuffle,) = permutations(task.request.seed, len(task.examples.targets), 1)
    model = loop(case, rows_of(case, 0), Fixed(shuffle.tolist()))
    wanted = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    change = np.abs(wanted - task.request.theta).max()
    return float(np.abs(found.theta - wanted).max()), float(change)


class Fixed(Sampler[int]):
    """A sampler that returns rows in a given order."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def opened(example: Example) -> dict[str, FleetTrainer]:
    """Open every trainer for an example's model."""
    torch.manual_seed(0)
    model = example.build()
    bundle = bundle_of(model, example.batch_size, example.shape)
    return {
        name: open_trainer(
            model, CLASSIFICATION, example.batch_size, TensorSpec("float32", example.shape),
            name=name, bundle=bundle,
        )
        for name in NAMES
    }  # fmt: skip


def example_tasks(example: Example, theta: Theta) -> list[Task]:
    """Return the training tasks of an example's devices from theta (n,), on random rows."""
    rng = np.random.default_rng(0)
    return [
        Task(
            TrainRequest(theta, example.training, device),
            Examples(
                rng.standard_normal((example.rows, *example.shape), np.float32),
                rng.integers(0, 3, example.rows),
            ),
        )
        for device in range(example.devices)
    ]


def beside_autograd(example: Example, rounds: int) -> dict[str, float]:
    """Return how many times as fast as autograd each trainer is, as the median over the rounds."""
    torch.set_num_threads(1)
    trainers = opened(example)
    module = example.build()
    theta = np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])
    work = example_tasks(example, theta)
    ratios: dict[str, list[float]] = {name: [] for name in trainers}
    for number in range(rounds + 1):  # the first round is a warm-up
        taken: dict[str, float] = {}
        for name, trainer in trainers.items():
            start = time.thread_time()
            trainer.train(work)
            taken[name] = time.thread_time() - start
        if number:
            for name, seconds in taken.items():
                ratios[name].append(taken["autograd"] / seconds)
    return {name: statistics.median(found) for name, found in ratios.items()}


def figures(found: Result) -> list[Figure]:
    """Compare the trainer's speed with a simulator's loop, and each trainer's speed with autograd."""
    written: list[Figure] = []
    for name, row in found["training"].items():
        if name == BESIDE:
            for example, ratios in row.items():
                speeds = ", ".join(f"{n} {r:.2f}" for n, r in ratios.items() if n != "autograd")
                what = f"training of examples/{example} by other trainers, relative to autograd"
                written.append(Figure(what, speeds))
            continue
        what = f"devices trained on one host, {name} ({row['trainer']}), against FL-bench's loop"
        measured = (
            f"{row['rate']:,.0f} examples/s, {row['ratio']:.2f} times as fast "
            f"({row['per_core']:.2f} per core and processor time)"
        )
        met = (at_least(row["target"], row["ratio"], "times"),)
        written.append(Figure(what, measured, met))
    return written


@bench("Training many devices on one host", figures)
def measure(*cases: str, rounds: int = 5, trainer: str = AUTO) -> Result:
    """Measure each case with the named trainer; the case "beside" compares all trainers with autograd."""
    names = chosen(cases, NAMED)
    found: Result = {
        name: asdict(measured(CASES[name], trainer, rounds)) for name in names if name in CASES
    }
    if BESIDE in names:
        found[BESIDE] = {n: beside_autograd(example, rounds) for n, example in EXAMPLES.items()}
    return {"training": found}


@dataclass(frozen=True)
class Sides:
    """A case's rates on both sides, in examples per second, and the figures derived from them."""

    trainer: str
    loop: float
    rate: float
    ratio: float
    per_core: float
    target: float
    difference: float
    change: float


def measured(case: Case, name: str, rounds: int) -> Sides:
    """Measure a case in processes that are kept from round to round."""
    with ExitStack() as stack:
        simulator, *workers = (
            stack.enter_context(ProcessPoolExecutor(1, get_context("spawn")))
            for _ in range(1 + CORES)
        )
        name = workers[0].submit(open_here, case, name).result()
        for worker in workers[1:]:
            worker.submit(open_here, case, name).result()
        error, change = workers[0].submit(difference, case, name).result()
        loops: list[float] = []
        rates: list[float] = []
        per_core: list[float] = []
        end = time.monotonic() + LONGEST_S
        for number in range(rounds + 1):  # the first round is a warm-up
            if number > 1 and time.monotonic() > end:
                break
            wide, narrow = (
                simulator.submit(run_loop, case, threads).result() for threads in (CORES, 1)
            )
            futures = [w.submit(run_trainer, case, name, i) for i, w in enumerate(workers)]
            shares = [future.result() for future in futures]
            if number:
                loops.append(case.examples / wide.clock)
                rates.append(case.examples / max(share.clock for share in shares))
                per_core.append(narrow.processor / sum(share.processor for share in shares))
    return Sides(
        trainer=name,
        loop=statistics.median(loops),
        rate=statistics.median(rates),
        ratio=statistics.median(r / other for r, other in zip(rates, loops, strict=True)),
        per_core=statistics.median(per_core),
        target=case.target,
        difference=error,
        change=change,
    )
