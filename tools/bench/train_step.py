"""Measures a training step in onnxruntime and in ExecuTorch, compared with the same step in eager torch.

All run on one thread, strictly alternating, with batches of 32 and SGD with momentum 0.7; the figures are
medians. The thread's CPU time is measured, so other load on the machine matters little. Only ratios are
meaningful, and only among processors with the same instructions: eager torch is twice as fast with AVX-512
as with AVX2, where the 4-layer CNN's ratios are 0.74 and 0.93. The export before the measurement verifies
the programs against autograd, so a program that is fast but wrong is never measured.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tools.bench.harness import Figure, Result, at_most, bench, chosen
from torch import Tensor, nn

from sedge_edge.training.noise import noise
from sedge_edge.training.steppers.model import Differentiated, ModelInTraining
from sedge_edge.training.trainer import TrainRequest
from sedge_export import export, models
from sedge_export.lowering.target import TARGETS as RUNTIMES
from sedge_export.programs import Program
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, Bundle, load
from sedge_protocol.wire.programs import FROZEN
from sedge_protocol.wire.training import Training

BATCH_SIZE = 32
LEARNING_RATE, MOMENTUM = 0.01, 0.7
# The targets: how long each runtime may take, as a multiple of eager torch's time.
TARGETS: dict[str, dict[str, float]] = {
    "mlp": {"onnxruntime": 0.7, "executorch": 1.5},
    "avgcnn": {"onnxruntime": 0.8, "executorch": 2.5},
    "resnet8": {"onnxruntime": 1.2, "executorch": 3.0},
    "resnet8_groupnorm": {"onnxruntime": 1.2, "executorch": 3.0},
}
Step = Callable[[], object]
RUNTIME_NAMES = {ONNXRUNTIME: "ONNX Runtime", EXECUTORCH: "ExecuTorch"}


def figures(found: Result) -> list[Figure]:
    """Return the ratio of each runtime to eager torch for each model's step."""
    return [
        Figure(
            f"a training step of {name}, {RUNTIME_NAMES[runtime]} against eager torch, one thread with "
            f"{found['instructions']}",
            f"{row['ratio']:.2f} of its time",
            (at_most(row["target"], row["ratio"]),),
        )
        for name, rows in found["train_step"].items()
        for runtime, row in rows.items()
    ]


@bench("A training step on a device", figures)
def measure(*models: str, seconds: float = 10.0) -> Result:
    """Measure each model's step for ``seconds``."""
    names = chosen(models, TARGETS)
    torch.set_num_threads(1)
    return {
        "train_step": {name: timed(name, seconds) for name in names},
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def timed(name: str, seconds: float) -> dict[str, dict[str, float]]:
    """Measure a reference model's step in each runtime and in eager torch.

    Returns both median times in milliseconds and their ratio for each runtime.
    """
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)()
    x, y = torch.randn(BATCH_SIZE, 1, 28, 28), torch.randint(10, (BATCH_SIZE,))
    with tempfile.TemporaryDirectory() as folder:
        export(
            model, x, batch_size=BATCH_SIZE, name=name, num_classes=10, folder=Path(folder),
            backends=tuple(TARGETS[name]),
        )  # fmt: skip
        bundle, theta = load(Path(folder))
    sides = [_eager_step(model, x, y)]
    for runtime in TARGETS[name]:
        sides.append(program_step(open_gradient(bundle, runtime), bundle, theta, x, y))
    eager_ms, *others = alternate(sides, seconds)
    return {
        runtime: {"ms": ms, "eager_ms": eager_ms, "ratio": ms / eager_ms, "target": target}
        for (runtime, target), ms in zip(TARGETS[name].items(), others, strict=True)
    }


def alternate(steps: Sequence[Step], seconds: float) -> list[float]:
    """Run the steps alternately for ``seconds``. Returns each step's median CPU milliseconds."""
    for step in (*steps, *steps):
        step()
    times: list[list[float]] = [[] for _ in steps]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for step, taken in zip(steps, times, strict=True):
            start = time.thread_time()
            step()
            taken.append((time.thread_time() - start) * 1e3)
    return [statistics.median(taken) for taken in times]


def open_gradient(bundle: Bundle, runtime: str) -> Program:
    """Open the bundle's gradient program in a runtime."""
    data = bundle.program("gradient", runtime)
    return RUNTIMES[runtime].load(data, bundle.manifest.signatures["gradient"])


def program_step(program: Program, bundle: Bundle, theta: Theta, x: Tensor, y: Tensor) -> Step:
    """Return a function that runs a program and one step of the devices' optimizer, including its state."""
    training = Training(learning_rate=LEARNING_RATE, momentum=MOMENTUM)
    model = ModelInTraining(bundle.manifest.layout, TrainRequest(theta, training, 0))
    fixed: dict[str, NDArray[np.generic]] = {
        "x": x.numpy(),
        "y": y.numpy(),
        "w": np.ones(len(x), np.float32),
    }
    if bundle.frozen is not None:
        fixed[FROZEN] = bundle.frozen
    steps, numbers = count(), bundle.manifest.noise

    def step() -> None:
        drawn = {"noise": noise(0, next(steps), numbers)} if numbers else {}
        found = program({"theta": model.theta, **fixed, **drawn})
        statistics = found.get("statistics")
        made = Differentiated(found["gradient"], found["loss"], statistics)
        model.advance(made, LEARNING_RATE)

    return step


def _eager_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()

    return step
