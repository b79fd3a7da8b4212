"""What every trainer must train correctly before it trains anything else.

The gradient check trains a few devices, of ragged sizes, plainly and with momentum and prox. The yardstick
is the user's own model in float64 (``sedge_export.verification.eager``: autograd, torch.optim.SGD, real
rows only). Plain eager float32 differs from it by rounding, and by what the model makes of rounding: one
value on the other side of a ReLU moves ResNet-8's first weights by per cents, and torch's channels-last
batch norm is 30 times less exact than its contiguous one. A trainer passes where each tensor is as near as
the same tensor in eager float32 in either memory format, within a factor; in a task or two it may be off by
more, as accidents of rounding are rare. A gradient that is lost, doubled or of another element is an error
of the order of 1. Where two right trainings part within a few steps, as those of a fresh MobileNetV2 do at
the usual rate, a comparison would show nothing: such a model is trained at lower rates.
The composition check trains the same devices in other groups and requires the same bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn

from sedge_edge.backends.rows import COUNTED
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.noise import noise
from sedge_edge.training.trainer import Trained, TrainingDiverged, TrainRequest
from sedge_emulate.training.problem import LABELS, Problem
from sedge_emulate.training.tasks import FleetTrainer, Precision, Task
from sedge_export.inspection.operators import accepts
from sedge_export.subject.batches import Batch
from sedge_export.subject.network import Network, copied
from sedge_export.verification.eager import Eager, Vector
from sedge_protocol.errors import ExportError, SedgeError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.parts import columns
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics

# |difference| / |change| of a tensor, both L2, that any trainer may have. Summation orders differ by 1e-6
# to 1e-5 after these few steps; one value that falls on the other side of a ReLU, by some 1e-4. In bf16 a
# step's gradient is off by 1 to 15 percent of a small tensor.
TOLERANCE: dict[Precision, float] = {"fp32": 1e-3, "bf16": 0.35}
# How many times eager float32's own error a trainer's may be. In so many of the six tasks it may be more,
# up to that share of the change: what is wrong with a batch size, momentum or prox shows in three.
_FACTOR = 8.0
_ACCIDENTS = 2
_MOST = 0.25
# The learning rates, as shares of the usual ones, that are tried until eager float32 is off by no more than
# this share of any tensor's change. Plain autograd was off by up to 2.3 times as much (six networks, three
# to five seeds), which leaves it below ``_MOST``. Usual rates put MobileNetV2 off by 4.2, a thousandth by
# 0.2; where no rate is calm, the limit grows with eager's error, to what a lost gradient still exceeds.
_CALM = 0.1
_LOST = 0.75
_RATES = (1.0, 0.1, 0.01, 0.001)
# How far the start of a second float32 training is shaken, as a share of each value: one training alone
# may happen to put every value on the right side of every ReLU.
_SHAKEN = 1e-6
# float32 keeps no more of a value than this, however little it changed, nor of the gradient of a tensor
# whose terms cancel, such as a bias in front of a normalisation, beside that of all others.
_ROUNDING = 1e-6
_SIZES = (2.25, 1.0, 0.4)  # devices' examples, in batches
_PLAIN = Training(local_epochs=1, learning_rate=0.05)
_PULLED = Training(local_epochs=1, learning_rate=0.02, momentum=0.7, prox=0.1)


class Wrong(SedgeError):
    """A trainer computes something else than torch."""


@dataclass(frozen=True)
class _End:
    """theta (n,) after a task, the last epoch's loss, and the evaluation on the same examples."""

    theta: Vector
    loss: float
    metrics: Metrics


@dataclass(frozen=True)
class References:
    """The check's tasks, their ends in float64, and how far from these eager float32 ends.

    ``errors`` has the largest L2 error of each tensor's change by name, in the tensor's own unit, and
    ``shares`` as a share of the change; ``noise`` is the largest share, ``loss_noise`` that of a loss.
    """

    tasks: tuple[Task, ...]
    ends: tuple[_End, ...]
    errors: dict[str, float]
    shares: dict[str, float]
    loss_noise: float

    @property
    def noise(self) -> float:
        """The largest share of a tensor's change by which eager float32 is off."""
        return max(self.shares.values())


def references(problem: Problem) -> References:
    """Train the check's tasks in plain eager torch, in float64 and in float32.

    A model that computes in float32 alone is its own yardstick. Raises ``ExportError`` for a model that
    does not fit its input.
    """
    rng = np.random.default_rng(0)
    rows = [max(2, round(size * problem.batch_size)) for size in _SIZES]
    classes = _num_outputs(problem)
    devices = [drawn_examples(problem, n, classes, rng) for n in rows]
    found: list[References] = []
    for share in _RATES:
        hows = [replace(how, learning_rate=share * how.learning_rate) for how in (_PLAIN, _PULLED)]
        tasks = tuple(
            Task(TrainRequest(problem.network.theta, how, seed), examples)
            for how in hows
            for seed, examples in enumerate(devices)
        )
        found.append(_references(problem, tasks))
        if found[-1].noise <= _CALM:
            break
    return min(found, key=lambda each: each.noise)


def _references(problem: Problem, tasks: tuple[Task, ...]) -> References:
    layout = problem.network.layout
    try:
        ends = [_eager(problem, task, problem.module, torch.float64) for task in tasks]
    except RuntimeError:  # it computes in nothing but float32
        ends = [_eager(problem, task, problem.module, torch.float32) for task in tasks]
    errors, shares = dict.fromkeys(layout.by_name, 0.0), dict.fromkeys(layout.by_name, 0.0)
    loss_noise = 0.0
    start = problem.network.theta
    shaken = _shaken(problem.module)
    moved = Network(shaken, problem.objective).theta - start.astype(np.float64)
    plain = problem.module, torch.contiguous_format, np.zeros_like(moved)
    for module, format, shift in (plain, (shaken, torch.channels_last, moved)):
        for task, exact in zip(tasks, ends, strict=True):
            end = _eager(problem, task, module, torch.float32, format)
            loss_noise = max(loss_noise, abs(end.loss - exact.loss) / (abs(exact.loss) or 1.0))
            for name, error, change, floor in _off(layout, start, end.theta - shift, exact.theta):
                errors[name] = max(errors[name], error)
                if change > floor:
                    shares[name] = max(shares[name], error / change)
    return References(tasks, tuple(ends), errors, shares, loss_noise)


def check(
    trainer: FleetTrainer, problem: Problem, precision: Precision, wanted: References
) -> None:
    """Raise ``Wrong`` unless the trainer agrees with the references, alone and in groups."""
    found = _trained(trainer, wanted.tasks)
    _compare(trainer.name, problem.network.layout, precision, found, wanted)
    for end, exact in zip(found, wanted.ends, strict=True):
        if not math.isclose(
            end.loss, exact.loss, rel_tol=_share(precision, wanted.loss_noise), abs_tol=1e-6
        ):
            raise Wrong(f"{trainer.name}: a training's loss is {end.loss}, in torch {exact.loss}")
    _check_evaluation(trainer, problem, precision, wanted)
    _check_grouping(trainer, wanted.tasks, found)


def _share(precision: Precision, noise: float) -> float:
    """The share of a change, or of a loss, by which a trainer may be off."""
    return TOLERANCE[precision] + min(_FACTOR * noise, _most(noise))


def _most(noise: float) -> float:
    """The share by which a trainer may be off by accident."""
    return max(_MOST, min(_MOST / _CALM * noise, _LOST))


def _off(
    layout: Layout, start: Theta, found: Theta | Vector, wanted: Vector
) -> list[tuple[str, float, float, float]]:
    """Of each tensor its name, its error, its change, and what float32 cannot tell from none, all L2."""
    changes = [_norm(wanted[tensor.slice] - start[tensor.slice]) for tensor in layout.tensors]
    return [
        (
            tensor.name,
            _norm(found[tensor.slice] - wanted[tensor.slice]),
            change,
            _ROUNDING * (_norm(wanted[tensor.slice]) + max(changes)),
        )
        for tensor, change in zip(layout.tensors, changes, strict=True)
    ]


def _norm(vector: Theta | Vector) -> float:
    return float(np.linalg.norm(vector.astype(np.float64)))


def _compare(
    name: str, layout: Layout, precision: Precision, found: Sequence[Trained], wanted: References
) -> None:
    accidents = dict.fromkeys(layout.by_name, 0)
    for end, task, exact in zip(found, wanted.tasks, wanted.ends, strict=True):
        for tensor, error, change, floor in _off(
            layout, task.request.theta, end.theta, exact.theta
        ):
            if (
                change <= floor
            ):  # as of a bias before a batch normalisation: its gradient is rounding
                floor += _FACTOR * wanted.errors[tensor]
            share = _share(precision, wanted.shares[tensor])
            accidents[tensor] += not error <= share * change + floor
            most = (TOLERANCE[precision] + _most(wanted.shares[tensor])) * change + floor
            if not error <= most or accidents[tensor] > _ACCIDENTS:
                raise Wrong(
                    f"{name}: {tensor} is off by {error:.2g} (L2) after {end.steps} steps of"
                    f" {precision}, of a change of {change:.2g}"
                )


def drawn_examples(problem: Problem, rows: int, classes: int, rng: np.random.Generator) -> Examples:
    """Random examples of the problem, or some of its sample where the model takes no random ones."""
    x, target = drawn(problem, rows, rng), problem.target
    if problem.sample is not None and not accepts(copied(problem.module), torch.from_numpy(x)):
        x = problem.sample[rng.integers(0, len(problem.sample), rows)]
    if target is None:
        return Examples(x, x)
    shape = (rows, *target.shape)
    if target.dtype == "int64":
        return Examples(x, rng.integers(0, classes, shape))
    return Examples(x, rng.standard_normal(shape, np.float32))


def drawn(problem: Problem, rows: int, rng: np.random.Generator) -> Inputs:
    """Random inputs (rows, ...); half of the float ones are flat in one half, as images are."""
    shape = (rows, *problem.input.shape)
    if problem.input.dtype != "float32":
        return rng.integers(0, 2, shape)
    x = rng.standard_normal(shape, np.float32)
    x[::2, ..., : x.shape[-1] // 2] = -0.5
    for part, places in columns(problem.parts):
        if part.dtype == "int64":
            x[:, places] = rng.integers(0, 2, (rows, part.size))
    return x


def _num_outputs(problem: Problem) -> int:
    given, rng = problem.sample, np.random.default_rng(0)
    row = torch.from_numpy(drawn(problem, 1, rng) if given is None else given[:1])
    problem.network.model.eval()
    try:
        with torch.no_grad():
            output = problem.network.predict(torch.from_numpy(problem.network.theta), row)
        _, outputs, *more = output.shape
        if more and problem.target == LABELS:
            raise ValueError(f"outputs {tuple(output.shape)} for labels")
    except (RuntimeError, ValueError, IndexError) as exc:
        row_shape = f"{problem.input.dtype} {tuple(problem.input.shape)}"
        raise ExportError(
            f"model: expected outputs (B, C, ...) for rows of {row_shape}; it fails: {exc}"
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


def _eager(
    problem: Problem,
    task: Task,
    module: nn.Module,
    kind: torch.dtype,
    format: torch.memory_format = torch.contiguous_format,
) -> _End:
    """The end of a task in plain torch, computed in float32 or float64, its images in the given format."""
    request, layout = task.request, problem.network.layout
    training = request.training
    eager = Eager(module, layout, problem.objective, training.momentum, kind)
    x, y = torch.from_numpy(task.examples.inputs), torch.from_numpy(task.examples.targets)
    if x.ndim == 4:
        x = x.contiguous(memory_format=format)
    anchor = request.theta if training.prox else None
    losses: list[tuple[int, float, float]] = []
    for batch in problem.batches(task):
        rows = torch.from_numpy(batch.indices)
        weights = torch.from_numpy(batch.weights)
        real = int(batch.weights.sum())
        numbers = torch.from_numpy(noise(request.seed, len(losses), problem.noise))
        step = Batch(x[rows], y[rows], weights, real, numbers)
        loss = eager.step(step, training.learning_rate, training.prox, anchor)
        losses.append((batch.epoch, loss, real))
    count = len(y)
    _, sums = eager.evaluate(Batch(x, y, torch.ones(count), count))
    last = [(loss, real) for epoch, loss, real in losses if epoch == losses[-1][0]]
    mean = sum(loss * real for loss, real in last) / sum(real for _, real in last)
    metrics = Metrics(sums["loss_sum"] / count, sums["metric_sum"] / count, count)
    return _End(eager.theta, mean, metrics)


def _trained(trainer: FleetTrainer, tasks: Sequence[Task]) -> list[Trained]:
    found: list[Trained] = []
    for end in trainer.train(tasks):
        if isinstance(end, TrainingDiverged):
            raise Wrong(f"{trainer.name}: a training diverged that does not in torch: {end}")
        found.append(end)
    return found


def _check_evaluation(
    trainer: FleetTrainer, problem: Problem, precision: Precision, wanted: References
) -> None:
    pairs = zip(wanted.ends, wanted.tasks, strict=True)
    models = [(end.theta.astype(np.float32), task.examples) for end, task in pairs]
    for found, end in zip(trainer.evaluate(models), wanted.ends, strict=True):
        expected = end.metrics
        if isinstance(found, TrainingDiverged):
            raise Wrong(f"{trainer.name}: {found}, in torch {expected}")
        share = _share(precision, wanted.loss_noise)
        if not math.isclose(found.loss, expected.loss, rel_tol=share, abs_tol=1e-6):
            raise Wrong(f"{trainer.name}: an evaluation gives {found}, torch {expected}")
        allowed = share * abs(expected.metric) + 1e-6
        if problem.objective.metric in COUNTED:  # a draw between two classes may go the other way
            allowed = max(1.5 / expected.num_examples, 3 * TOLERANCE[precision])
        if abs(found.metric - expected.metric) > allowed:
            raise Wrong(f"{trainer.name}: an evaluation gives {found}, torch {expected}")


def _check_grouping(trainer: FleetTrainer, tasks: Sequence[Task], found: Sequence[Trained]) -> None:
    alone = [*_trained(trainer, tasks[:1]), *_trained(trainer, tasks[-1:])]
    among_others = _trained(trainer, [tasks[-1], *tasks[::-1]])[1:]
    pairs = [
        *zip(found[::-1], among_others, strict=True),
        (found[0], alone[0]),
        (found[-1], alone[1]),
    ]
    for first, again in pairs:
        if again.theta.tobytes() != first.theta.tobytes():
            raise Wrong(f"{trainer.name}: a device's bits depend on the others in its group")
