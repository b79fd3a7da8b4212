"""How fast one host trains many devices, beside the loop that simulators usually have.

    python tools/bench/training.py [--rounds 5] [--trainer auto] [case ...]

The loop is FL-bench's: a DataLoader over a Subset, each image normalised as torchvision does it, eager
torch, torch.optim.SGD, one process with two threads (``OMP``'s default on two cores). Beside it the batched
trainer in two processes of one thread. Both train the same devices with the same number of examples, in
turn; what counts is the median over the rounds of the ratio within a round, for absolute figures are this
machine's at this moment. Neighbours on the machine hurt two threads that wait for each other more than two
processes, so there is a second ratio, "per core": processor time of the loop with one thread against
that of the trainer. Before it is timed a trainer has passed its own checks, and here one device's
training is compared with the loop's on the same batches.

Who waits while the other is timed may find its memory taken away by the kernel, or its clock lowered: each
trains an eighth of the devices again before it is timed.

The limit is what a matrix product of 1024 x 1024 reaches on one core, times two; the fraction of it counts
a model's multiplications in forward and backward passes as a direct algorithm does them, so that minimal
filtering may exceed 1.
"""

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler, Subset

from sedge_edge.data import Examples
from sedge_edge.training.batches import permutations
from sedge_edge.training.trainer import Trained
from sedge_emulate.training.choice import AUTO, open_trainer
from sedge_emulate.training.products import by_transposed
from sedge_emulate.training.tasks import FleetTrainer, Precision, Task
from sedge_export import cross_entropy, models
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.messages import Training

LEARNING_RATE = 0.01
MEAN, STD = 0.286, 0.3205
CORES = 2
# A case on a busy machine has fewer rounds than were asked for.
LONGEST_S = 35.0


@dataclass(frozen=True)
class Case:
    """A model, a batch size, and how many devices of how many steps; ``target`` in the loop's speed."""

    model: str
    batch_size: int
    precision: Precision
    devices: int
    steps: int
    target: float

    @property
    def examples(self) -> int:
        """All devices' examples together."""
        return self.devices * self.steps * self.batch_size

    @property
    def warm_up(self) -> int:
        """So many devices are trained before the clock starts."""
        return self.devices // 8


CASES = {
    "avgcnn": Case("avgcnn", 32, "fp32", 24, 12, 2.0),
    "avgcnn-bf16": Case("avgcnn", 32, "bf16", 24, 12, 3.0),
    "mlp": Case("mlp", 32, "fp32", 64, 12, 2.5),
    "mlp-10": Case("mlp", 10, "fp32", 64, 40, 2.5),
    "mlp-bf16": Case("mlp", 32, "bf16", 64, 12, 2.5),
}


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Raw images in [0, 1], normalised one by one as torchvision's Normalize does."""

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
    """Raw images (count, 1, 28, 28) on a flat background, as those of clothes are, and labels."""
    rng = np.random.default_rng(0)
    x = np.zeros((count, 1, 28, 28), np.float32)
    x[:, :, 4:24, 6:22] = rng.integers(0, 256, (count, 1, 20, 16)) / np.float32(255)
    return x, rng.integers(0, 10, count)


@cache
def module(name: str) -> nn.Module:
    """A reference model, the same in every process."""
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)()
    return model


def loop(case: Case, rows: Sequence[int], order: Sampler[int] | None = None) -> nn.Module:
    """Train one device as FL-bench does; ``order`` in place of a shuffle of DataLoader's own."""
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
    """The examples of a device."""
    count = case.steps * case.batch_size
    return range(device * count, (device + 1) * count)


def tasks(case: Case, devices: Sequence[int]) -> list[Task]:
    """The trainings of some devices."""
    x, y = images(case.examples)
    normal = (x - np.float32(MEAN)) / np.float32(STD)
    theta = np.concatenate([p.detach().numpy().ravel() for p in module(case.model).parameters()])
    training = Training(learning_rate=LEARNING_RATE)
    parts = [np.array(rows_of(case, device)) for device in devices]
    return [
        Task(theta, Examples(normal[part], y[part]), training, device)
        for part, device in zip(parts, devices, strict=True)
    ]


@cache
def trainer(case: Case, name: str, device: str = "cpu") -> FleetTrainer:
    """This process's trainer."""
    row = TensorSpec("float32", (1, 28, 28))
    model = module(case.model)
    return open_trainer(
        model, cross_entropy, True, case.batch_size, row,
        name=name, precision=case.precision, device=device,
    )  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock, and of the calling thread's own processor time."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> "Taken":
        return cls(time.perf_counter(), time.thread_time())

    def until_now(self) -> "Taken":
        end = Taken.now()
        return Taken(end.clock - self.clock, end.processor - self.processor)


# What the processes do.


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
    """Largest |difference| of one device's theta to the loop's on equal batches; largest |change|."""
    torch.set_num_threads(1)
    (task,) = tasks(case, [0])
    (found,) = trainer(case, name).train([task])
    if not isinstance(found, Trained):
        raise found
    (shuffle,) = permutations(task.seed, len(task.examples.targets), 1)
    model = loop(case, rows_of(case, 0), Fixed(shuffle.tolist()))
    wanted = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
    change = np.abs(wanted - task.theta).max()
    return float(np.abs(found.theta - wanted).max()), float(change)


class Fixed(Sampler[int]):
    """Rows in a given order."""

    def __init__(self, rows: list[int]) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


def products(precision: Precision) -> float:
    """Operations a second of a product of 1024 x 1024 on one core."""
    torch.set_num_threads(1)
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(1024, 1024).to(kind) for _ in range(2))
    times: list[float] = []
    for _ in range(12):
        start = time.perf_counter()
        by_transposed(a, b)
        times.append(time.perf_counter() - start)
    return 2 * 1024**3 / min(times)


def operations(name: str) -> float:
    """Additions and multiplications of one example's forward and backward pass, products only."""
    counts: list[float] = []

    def count(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        (weight, *_) = layer.parameters()
        counts.append(2.0 * weight.numel() * output[0, 0].numel())

    model = copy.deepcopy(module(name))
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            layer.register_forward_hook(count)
    model(torch.zeros(1, 1, 28, 28))
    # Forward, filter gradient, input gradient, of which the first layer needs none.
    return 3 * sum(counts) - counts[0]


def main(argv: list[str] | None = None) -> int:
    """Print a table and, last, one line of JSON; 1 when a target is missed."""
    parser = argparse.ArgumentParser(
        description="Time batched training against a simulator's loop."
    )
    parser.add_argument("cases", nargs="*", help=f"of {', '.join(CASES)}; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trainer", default=AUTO, help="a backend's name")
    options = parser.parse_args(argv)
    for name in set(options.cases) - set(CASES):
        parser.error(f"no case {name!r}, expected one of {', '.join(CASES)}")
    results: dict[str, Result] = {}
    words = ("loop /s", "trainer /s", "ratio", "per core", "target", "of limit", "|diff|")
    print(f"{'case':<13}{'trainer':<12}" + "".join(f"{word:>11}" for word in words))
    for name in options.cases or CASES:
        row = results[name] = measured(CASES[name], options.trainer, options.rounds)
        numbers = f"{row.loop:>11.0f}{row.rate:>11.0f}{row.ratio:>11.2f}{row.per_core:>11.2f}"
        rest = f"{row.target:>11.1f}{row.of_limit:>11.2f}{row.difference:>11.1e}"
        print(f"{name:<13}{row.trainer:<12}{numbers}{rest}", flush=True)
    found: dict[str, object] = {name: asdict(row) for name, row in results.items()}
    if torch.cuda.is_available():
        found["cuda"] = {name: on_cuda(CASES[name]) for name in options.cases or CASES}
        print(f"100 devices at a time on CUDA, examples/s: {found['cuda']}")
    print(json.dumps({"training": found}))
    return int(any(row.ratio < row.target for row in results.values()))


@dataclass(frozen=True)
class Result:
    """Both sides of a case, in examples a second, and all that is said about them."""

    trainer: str
    loop: float
    rate: float
    ratio: float
    per_core: float
    target: float
    of_limit: float
    products_per_second: float
    difference: float
    change: float


def measured(case: Case, name: str, rounds: int) -> Result:
    """Time a case in processes that stay between the rounds."""
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
        for number in range(rounds + 1):  # the first warms up
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
        limit = CORES * workers[0].submit(products, case.precision).result()
    rate = statistics.median(rates)
    return Result(
        trainer=name,
        loop=statistics.median(loops),
        rate=rate,
        ratio=statistics.median(r / other for r, other in zip(rates, loops, strict=True)),
        per_core=statistics.median(per_core),
        target=case.target,
        of_limit=rate * operations(case.model) / limit,
        products_per_second=limit,
        difference=error,
        change=change,
    )


def on_cuda(case: Case) -> float:
    """Examples a second of 100 devices at a time on a CUDA device."""
    work = tasks(case, range(case.devices))
    many = (work * -(-100 // len(work)))[:100]
    chosen = trainer(case, AUTO, "cuda")
    chosen.train(many)
    start = time.perf_counter()
    chosen.train(many)  # its results are on the host when it returns
    return 100 * case.steps * case.batch_size / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(main())
