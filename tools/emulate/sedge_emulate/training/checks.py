"""No backend trains anything before it has trained this: a wrong one is refused, however fast.

Two checks. The gradient check trains a few devices, of ragged sizes, plainly and with momentum and prox,
beside the user's own model in plain eager torch (``sedge_export.eager``: autograd and torch.optim.SGD,
real rows only), and compares tensor by tensor: the difference of the trained values against their change,
in the L2 norm. A gradient that is lost, doubled or of another element is an error of the order of 1. Some
models make much of little: one value on the other side of a ReLU moves ResNet-8's first weights by per
cents. So torch itself trains a second time, from a start that is shaken in the last digits, and what
becomes of that is allowed as well. The composition check trains the same devices in other company and
wants the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sedge_edge.data import Examples, Inputs
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import FleetTrainer, Precision, Task
from sedge_export.batches import Batch
from sedge_export.eager import Eager
from sedge_export.network import copied
from sedge_protocol.errors import ExportError, SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics

# |difference| / |change| of a tensor, both L2. Summation orders differ by 1e-6 to 1e-5 after these few
# steps; one value that falls on the other side of a ReLU, by some 1e-4. In bf16 a step's gradient is off
# by 1 to 15 percent of a small tensor, in autocast as in every other way.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "bf16": 0.35}
# How far the start is shaken, as a share of each value; how many times the outcome is allowed, and up to
# which share of the change, lest a wrong gradient pass.
_SHAKEN = 1e-6
_SHAKES = 4.0
_MOST = 0.25
# float32 keeps no more of a value than this, however little it changed.
_ROUNDING = 1e-6
_SIZES = (2.25, 1.0, 0.4)  # devices' examples, in batches
_PLAIN = Training(local_epochs=1, learning_rate=0.05)
_PULLED = Training(local_epochs=1, learning_rate=0.02, momentum=0.7, prox=0.1)


class Wrong(SedgeError):
    """A backend computes something else than torch."""


@dataclass(frozen=True)
class Twins:
    """The check's tasks, and how plain torch ends them.

    ``noise`` is the largest share of a tensor's change, and ``loss_noise`` of a loss, by which torch
    differs from itself when its start is shaken.
    """

    tasks: tuple[Task, ...]
    thetas: tuple[Theta, ...]
    losses: tuple[float, ...]
    metrics: tuple[Metrics, ...]
    noise: float
    loss_noise: float


def twins(problem: Problem) -> Twins:
    """Train the check's tasks in plain eager torch."""
    rng = np.random.default_rng(0)
    theta = problem.network.theta
    rows = [max(2, round(size * problem.batch_size)) for size in _SIZES]
    classes = _num_outputs(problem)
    tasks = tuple(
        Task(
            theta, Examples(drawn(problem, count, rng), rng.integers(0, classes, count)), how, seed
        )
        for how in (_PLAIN, _PULLED)
        for seed, count in enumerate(rows)
    )
    ends = [_eager(problem, task, problem.module) for task in tasks]
    thetas, losses, metrics = zip(*ends, strict=True)
    noise = loss_noise = 0.0
    for task, end, loss in zip(tasks, thetas, losses, strict=True):
        shaken, shaken_loss, _ = _eager(problem, task, _shaken(problem.module))
        loss_noise = max(loss_noise, abs(shaken_loss - loss) / loss if loss else 0.0)
        for tensor in problem.network.layout.tensors:
            change = float(np.linalg.norm(end[tensor.slice] - theta[tensor.slice]))
            moved = float(np.linalg.norm(shaken[tensor.slice] - end[tensor.slice]))
            if change > _SHAKEN / TOLERANCE["fp32"] * float(np.linalg.norm(end[tensor.slice])):
                noise = max(noise, moved / change)
    return Twins(tasks, thetas, losses, metrics, noise, loss_noise)


def check(trainer: FleetTrainer, problem: Problem, precision: Precision, wanted: Twins) -> None:
    """Raise ``Wrong`` unless the trainer agrees with the twins, alone and in company."""
    found = _trained(trainer, wanted.tasks)
    for number, end in enumerate(found):
        _compare(trainer.name, problem, precision, end, wanted, number)
        loss = wanted.losses[number]
        if not math.isclose(end.loss, loss, rel_tol=_allowed(precision, wanted.loss_noise)):
            raise Wrong(f"{trainer.name}: a training's loss is {end.loss}, in torch {loss}")
    _check_evaluation(trainer, precision, wanted)
    _check_company(trainer, wanted.tasks, found)


def _allowed(precision: Precision, noise: float) -> float:
    """The share of a change, or of a loss, by which a backend may be off."""
    return TOLERANCE[precision] + min(_SHAKES * noise, _MOST)


def drawn(problem: Problem, rows: int, rng: np.random.Generator) -> Inputs:
    """Random inputs (rows, ...); half of the float ones are flat in one half, as images are."""
    shape = (rows, *problem.input.shape)
    if problem.input.dtype != "float32":
        return rng.integers(0, 2, shape)
    x = rng.standard_normal(shape, np.float32)
    x[::2, ..., : x.shape[-1] // 2] = -0.5
    return x


def _num_outputs(problem: Problem) -> int:
    row = torch.from_numpy(drawn(problem, 1, np.random.default_rng(0)))
    problem.network.model.eval()
    try:
        with torch.no_grad():
            output = problem.network.predict(torch.from_numpy(problem.network.theta), row)
        _, outputs = output.shape
    except (RuntimeError, ValueError, IndexError) as exc:
        row_shape = f"{problem.input.dtype} {tuple(problem.input.shape)}"
        raise ExportError(
            f"model: expected outputs (B, C) for rows of {row_shape}; it fails: {exc}"
        ) from exc
    return outputs


def _shaken(module: nn.Module) -> nn.Module:
    """A copy whose parameters differ in their last digits."""
    shaken = copied(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shaken.parameters():
            signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
            parameter.mul_(1 + _SHAKEN * signs.to(parameter))
    return shaken


def _eager(problem: Problem, task: Task, module: nn.Module) -> tuple[Theta, float, Metrics]:
    """theta, the last epoch's loss, and the evaluation of the trained module on the same examples."""
    layout, training = problem.network.layout, task.training
    eager = Eager(module, layout, problem.loss, training.momentum)
    x, y = torch.from_numpy(task.examples.inputs), torch.from_numpy(task.examples.targets)
    anchor = task.theta if training.prox else None
    losses: list[tuple[int, float, float]] = []
    for batch in problem.batches(task):
        rows = torch.from_numpy(batch.indices)
        weights = torch.from_numpy(batch.weights)
        real = int(batch.weights.sum())
        step = Batch(x[rows], y[rows], weights, real)
        losses.append(
            (batch.epoch, eager.step(step, training.learning_rate, training.prox, anchor), real)
        )
    everything = Batch(x, y, torch.ones(len(y)), len(y))
    _, sums = eager.evaluate(everything, problem.classifies)
    count = len(y)
    last = [(loss, real) for epoch, loss, real in losses if epoch == losses[-1][0]]
    mean = sum(loss * real for loss, real in last) / sum(real for _, real in last)
    metrics = Metrics(sums["loss_sum"] / count, sums["correct_count"] / count, count)
    return eager.theta, mean, metrics


def _trained(trainer: FleetTrainer, tasks: Sequence[Task]) -> list[Trained]:
    found: list[Trained] = []
    for end in trainer.train(tasks):
        if isinstance(end, TrainingDiverged):
            raise Wrong(f"{trainer.name}: a training diverged that does not in torch: {end}")
        found.append(end)
    return found


def _compare(
    name: str, problem: Problem, precision: Precision, end: Trained, twins: Twins, number: int
) -> None:
    theta = twins.thetas[number]
    for tensor in problem.network.layout.tensors:
        place = tensor.slice
        start, wanted, found = twins.tasks[number].theta[place], theta[place], end.theta[place]
        error = float(np.linalg.norm(found - wanted))
        scale = float(np.linalg.norm(wanted - start))
        floor = _ROUNDING * float(np.linalg.norm(wanted))
        if not error <= _allowed(precision, twins.noise) * scale + floor:
            raise Wrong(
                f"{name}: {tensor.name} is off by {error:.2g} (L2) after {end.steps} steps of {precision},"
                f" of a change of {scale:.2g}"
            )


def _check_evaluation(trainer: FleetTrainer, precision: Precision, wanted: Twins) -> None:
    models = [(t, task.examples) for t, task in zip(wanted.thetas, wanted.tasks, strict=True)]
    for found, expected in zip(trainer.evaluate(models), wanted.metrics, strict=True):
        if isinstance(found, TrainingDiverged):
            raise Wrong(f"{trainer.name}: {found}, in torch {expected}")
        if not math.isclose(found.loss, expected.loss, rel_tol=TOLERANCE[precision]):
            raise Wrong(f"{trainer.name}: an evaluation gives {found}, torch {expected}")
        # A draw between two classes may go the other way.
        allowed = max(1.5, 3 * TOLERANCE[precision] * expected.num_examples)
        if abs(found.accuracy - expected.accuracy) * expected.num_examples > allowed:
            raise Wrong(f"{trainer.name}: an evaluation gives {found}, torch {expected}")


def _check_company(trainer: FleetTrainer, tasks: Sequence[Task], found: Sequence[Trained]) -> None:
    alone = [*_trained(trainer, tasks[:1]), *_trained(trainer, tasks[-1:])]
    among_others = _trained(trainer, [tasks[-1], *tasks[::-1]])[1:]
    pairs = [
        *zip(found[::-1], among_others, strict=True),
        (found[0], alone[0]),
        (found[-1], alone[1]),
    ]
    for first, again in pairs:
        if again.theta.tobytes() != first.theta.tobytes():
            raise Wrong(f"{trainer.name}: a device's bits depend on the others in its company")
