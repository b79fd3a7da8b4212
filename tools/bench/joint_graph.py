"""A training step of ExecuTorch's own training path, compared with our program in the same runtime.

ExecuTorch exports forward and backward pass as one "joint graph" (torch.export's _export_forward_backward),
and runs it in its TrainingModule with its own SGD. Both sides train the 4-layer CNN on one thread, strictly
in turn; times are medians of the thread's CPU time. An error is the largest difference of a tensor's first
gradient from eager torch's, as a share of that tensor's largest gradient, in the worst tensor. Max pooling
is wrong there; a network without it is differentiated correctly.
"""

import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from tools.bench.harness import Figure, Result, at_least, bench
from tools.bench.train_step import (
    LEARNING_RATE,
    MOMENTUM,
    Step,
    alternate,
    open_gradient,
    program_step,
)
from torch import Tensor, nn
from torch.export.experimental import (
    _export_forward_backward,  # pyright: ignore[reportPrivateUsage]
)

from sedge_export import export, models
from sedge_export.lowering.executorch.runtime import library, quiet
from sedge_protocol.layout import Layout
from sedge_protocol.wire.bundle import EXECUTORCH, load

TARGET = 25.0  # The minimum speed of our program, relative to theirs.
Gradients = Mapping[str, Tensor]


class WithLoss(nn.Module):
    """A model with its loss, from which a joint graph begins its backward pass."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The mean loss over a batch."""
        return nn.functional.cross_entropy(self.model(x), y)


def figures(found: Result) -> list[Figure]:
    """ExecuTorch's own training path against ours."""
    row = found["joint_graph"]
    measured = (
        f"{row['times']:.0f} times as fast ({row['ours_ms']:.1f} and {row['joint_ms']:.0f} ms); the "
        f"gradient's error is {row['ours_error']:.0e} of its largest, there {row['joint_error']:.0e}"
    )
    what = "a training step of avgcnn in ExecuTorch, against ExecuTorch's own training path"
    return [Figure(what, measured, (at_least(row["target"], row["times"], "times"),))]


@bench("ExecuTorch's own training path", figures)
def measure(seconds: float = 20.0, batch_size: int = 32) -> Result:
    """Milliseconds of a step and the first gradient's error on both sides."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = models.avgcnn()
    x, y = torch.randn(batch_size, 1, 28, 28), torch.randint(10, (batch_size,))
    torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
    exact = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    with tempfile.TemporaryDirectory() as folder:
        export(
            model, x, batch_size=batch_size, name="avgcnn", num_classes=10, folder=Path(folder),
            backends=(EXECUTORCH,),
        )  # fmt: skip
        bundle, theta = load(Path(folder))
    program, layout = open_gradient(bundle, EXECUTORCH), bundle.manifest.layout
    feed = {"theta": theta, "x": x.numpy(), "y": y.numpy(), "w": np.ones(batch_size, np.float32)}
    ours_error = _error(_by_name(layout, program(feed)["gradient"]), exact)
    joint, gradients = _joint(model, x, y)
    joint_error = _error(gradients, exact)
    ours_ms, joint_ms = alternate([program_step(program, bundle, theta, x, y), joint], seconds)
    row = {
        "ours_ms": ours_ms, "ours_error": ours_error, "joint_ms": joint_ms,
        "joint_error": joint_error, "times": joint_ms / ours_ms, "target": TARGET,
    }  # fmt: skip
    return {"joint_graph": row}


def _joint(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Step, Gradients]:
    """A step of the joint graph, and its gradients at the model's parameters."""
    exir = import_module("executorch.exir")
    library()  # loads the runtime, on one thread
    training = import_module("executorch.extension.training")
    with quiet():
        exported = _export_forward_backward(torch.export.export(WithLoss(model), (x, y)))
        checked = exir.EdgeCompileConfig(_check_ir_validity=False)
        data = exir.to_edge(exported, compile_config=checked).to_executorch().buffer
        module = training._load_for_executorch_for_training_from_buffer(data)
        module.forward_backward("forward", (x, y))
        found = {
            name.removeprefix("model."): gradient.clone()
            for name, gradient in module.named_gradients().items()
        }
        sgd = training.get_sgd_optimizer(module.named_parameters(), LEARNING_RATE, MOMENTUM)

    def step() -> None:
        assert data  # the runtime reads the program in place
        module.forward_backward("forward", (x, y))
        sgd.step(module.named_gradients())

    return step, found


def _by_name(
    layout: Layout, gradient: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
) -> Gradients:
    return {name: torch.from_numpy(view) for name, view in layout.views(gradient).items()}


def _error(found: Gradients, exact: Gradients) -> float:
    return max(float((found[name] - g).abs().max() / g.abs().max()) for name, g in exact.items())
