"""The time of one training step in onnxruntime, compared with the same step in eager torch.

    python tools/bench/train_step.py [--seconds 10] [model ...]

Both sides run on one thread, batch 32, SGD with momentum 0.7, strictly in turn; the figures are medians.
The clock is the thread's CPU time, so that other load on the machine counts for neither side. Only ratios
are meaningful; absolute times are this machine's. The export before the timing verifies the program against
autograd, so a program that is fast but wrong is never timed.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_export import export, models
from sedge_export.verify import Program, load_program
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import load

BATCH_SIZE = 32
LEARNING_RATE, MOMENTUM = 0.01, 0.7
# Largest acceptable ratio of onnxruntime's time to eager torch's.
TARGETS = {"mlp": 1.0, "avgcnn": 1.2, "resnet8": 1.7, "resnet8_groupnorm": 1.7}
Step = Callable[[], object]


def main(argv: list[str] | None = None) -> int:
    """Print a table and a last line of JSON. Returns 1 when a target is missed."""
    parser = argparse.ArgumentParser(description="Time one training step against eager torch.")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--seconds", type=float, default=10.0, help="timed for each model")
    options = parser.parse_args(argv)
    for name in set(options.models) - set(TARGETS):
        parser.error(f"no model {name!r}, expected one of {', '.join(TARGETS)}")
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    print(f"{'model':<20}{'onnxruntime ms':>16}{'eager ms':>12}{'ratio':>8}{'target':>8}")
    for name in options.models or TARGETS:
        results[name] = measure(name, options.seconds)
        row = results[name]
        times = f"{row['onnxruntime_ms']:>16.2f}{row['eager_ms']:>12.2f}"
        print(f"{name:<20}{times}{row['ratio']:>8.2f}{row['target']:>8.2f}", flush=True)
    print(json.dumps({"train_step": results}))
    return int(any(row["ratio"] > row["target"] for row in results.values()))


def measure(name: str, seconds: float) -> dict[str, float]:
    """Median milliseconds of one step of the named reference model on both sides."""
    torch.manual_seed(0)
    model: nn.Module = getattr(models, name)()
    x, y = torch.randn(BATCH_SIZE, 1, 28, 28), torch.randint(10, (BATCH_SIZE,))
    with tempfile.TemporaryDirectory() as folder:
        export(model, x, batch_size=BATCH_SIZE, name=name, num_classes=10, folder=Path(folder))
        bundle, theta = load(Path(folder))
    program = load_program("train", bundle.program("train", "onnxruntime"))
    sides = [onnx_step(program, theta, x, y), _eager_step(model, x, y)]
    onnx_ms, eager_ms = alternate(sides, seconds)
    return {
        "onnxruntime_ms": onnx_ms,
        "eager_ms": eager_ms,
        "ratio": onnx_ms / eager_ms,
        "target": TARGETS[name],
    }


def alternate(steps: Sequence[Step], seconds: float) -> list[float]:
    """Median CPU milliseconds of each step, all run in turn for a while."""
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


def onnx_step(program: Program, theta: Theta, x: Tensor, y: Tensor) -> Step:
    """One step of a program, which keeps its own state."""
    state = [theta, np.zeros_like(theta)]
    fixed: dict[str, NDArray[np.generic]] = {
        "x": x.numpy(),
        "y": y.numpy(),
        "w": np.ones(len(x), np.float32),
        "learning_rate": np.array(LEARNING_RATE, np.float32),
        "momentum": np.array(MOMENTUM, np.float32),
    }

    def step() -> None:
        result = program({"theta": state[0], "velocity": state[1], **fixed})
        state[:] = result["theta_next"], result["velocity_next"]

    return step


def _eager_step(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

    def step() -> None:
        model.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
