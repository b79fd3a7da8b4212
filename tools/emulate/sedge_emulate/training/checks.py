"""Checks what every trainer must compute correctly before it trains anything else.

The gradient check lets the trainer do one step of plain SGD on a batch, either full or partly padded. The
change of the model reveals the gradient, which the exporter's yardstick
(``sedge_export.verification.yardstick``) compares with that of the user's own model: in float64, and in
float32 in both memory formats, because torch's channels-last batch norm is 30 times less accurate than its
contiguous one. A gradient that is lost, doubled or in the wrong place gives an error on the order of 1. How
gradients are applied is not checked here: all trainers share one loop of steppers, which has its own tests.

The composition check trains devices with different numbers of examples, with plain SGD and with momentum
and prox. Then it trains them again in other groups, and requires bit-identical results.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import torch

from sedge_edge.backends.rows import classes_first, cross_entropy
from sedge_edge.training.examples import Examples
from sedge_edge.training.noise import noise
from sedge_edge.training.trainer import TrainingDiverged, TrainRequest
from sedge_emulate.training.problem import LABELS, TrainingProblem
from sedge_emulate.training.tasks import FleetTrainer, Precision, Task
from sedge_export.inspection.operators import accepts
from sedge_export.subject.batches import PaddedBatch, Samples, random_samples, whole_rows
from sedge_export.subject.network import copied
from sedge_export.verification.eager import Vector
from sedge_export.verification.yardstick import GRADIENT, Truth, Yardstick, largest
from sedge_protocol.errors import ExportError, SedgeError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics

# How far a trainer's gradient may be off beyond the error of eager float32, as a share of the largest
# gradient in the tensor. TF32 has a 10-bit mantissa. In bf16, single elements may be off by half of the
# largest gradient; an element of a lost or misplaced gradient is off by all of it.
TOLERANCE: dict[Precision, float] = {"fp32": 2e-3, "bf16": 0.6}
# The rounding error of a gradient that is recovered from a float32 change of the model, as a share of the
# largest gradient of all. Even a gradient that should be 0 has this error, for example that of a bias
# before a normalisation.
_KEPT = 1e-5
_CASES = 3
# The number of cases that may be discarded because the loss has a kink at the case's model.
_MAX_RETRIES = 8
# The largest step of a parameter from one case to the next, as a share of the largest parameter.
_MOVE = 0.02
_FORMATS = (torch.contiguous_format, torch.channels_last)
_SIZES = (2.25, 1.0, 0.4)  # the devices' numbers of examples, in batches
_PLAIN = Training(local_epochs=1, learning_rate=0.05)
_PULLED = Training(local_epochs=1, learning_rate=0.02, momentum=0.7, prox=0.1)


class Wrong(SedgeError):
    """A trainer computes something different from torch."""


@dataclass(frozen=True)
class _Case:
    """A training task of one step, its batch as the trainer receives it, and torch's result for it."""

    task: Task
    batch: PaddedBatch
    truth: Truth


@dataclass
class References:
    """The cases of the gradient check with torch's results, and the tasks of the composition check."""

    problem: TrainingProblem
    tasks: tuple[Task, ...]
    yardstick: Yardstick
    _devices: tuple[Examples, ...]
    _made: list[_Case] = field(default_factory=list["_Case"])

    def cases(self) -> Iterator[_Case]:
        """Yield cases without end. Each is computed once and reused for the next trainer."""
        for index in count():
            if index == len(self._made):
                self._made.append(self._next())
            yield self._made[index]

    def _next(self) -> _Case:
        theta, index = self.problem.network.theta, len(self._made)
        if self._made:
            before = self._made[-1]
            theta = before.task.request.theta
            self.yardstick.gradient(
                theta, before.batch
            )  # for ``descend``: a search for a kink may have moved the yardstick's model
            theta = self.yardstick.descend(_MOVE * _rate(theta, before.truth))
        examples = self._devices[index % len(self._devices)]
        task = Task(TrainRequest(theta, _PLAIN, index), examples)
        batch = _first_batch(self.problem, task)
        truth = self.yardstick.gradient(theta, batch)
        how = Training(local_epochs=1, learning_rate=_rate(theta, truth))
        return _Case(Task(TrainRequest(theta, how, index), examples), batch, truth)


def _rate(theta: Theta, truth: Truth) -> float:
    """Return the learning rate at which the largest step equals the largest parameter."""
    return max(largest(theta), 1e-3) / truth.steepest


def references(problem: TrainingProblem) -> References:
    """Prepare the checks. Raises ``ExportError`` for a model that does not fit its input."""
    pool, rng = _pool(problem), torch.Generator().manual_seed(0)

    def device(rows: int) -> Examples:
        chosen = torch.randint(len(pool.x), (rows,), generator=rng)
        x, y = pool.x[chosen].numpy(), pool.y[chosen].numpy()
        return Examples(x, x if pool.y is pool.x else y)

    rows = [max(2, round(size * problem.batch_size)) for size in _SIZES]
    devices = [device(n) for n in rows]
    tasks = tuple(
        Task(TrainRequest(problem.network.theta, how, seed), examples)
        for how in (_PLAIN, _PULLED)
        for seed, examples in enumerate(devices)
    )
    single = tuple(device(n) for n in (*rows[1:], rows[1]))
    first = _first_batch(problem, Task(tasks[0].request, single[0]))
    layout, objective = problem.network.layout, problem.objective
    yardstick = Yardstick(problem.module, layout, objective, first, _FORMATS)
    return References(problem, tasks, yardstick, single)


def _first_batch(problem: TrainingProblem, task: Task) -> PaddedBatch:
    """Return the task's first batch, as tensors and with its random numbers."""
    batch = next(problem.batches(task))
    rows, weights = torch.from_numpy(batch.indices), torch.from_numpy(batch.weights)
    x, y = torch.from_numpy(task.examples.inputs), torch.from_numpy(task.examples.targets)
    numbers = torch.from_numpy(noise(task.request.seed, 0, problem.noise))
    return PaddedBatch(x[rows], y[rows], weights, int(batch.weights.sum()), numbers)


def check(
    trainer: FleetTrainer, problem: TrainingProblem, precision: Precision, wanted: References
) -> None:
    """Raise ``Wrong`` unless the trainer passes both checks."""
    left, retries = _CASES, _MAX_RETRIES
    for case in wanted.cases():
        try:
            _check_case(trainer, wanted, case, TOLERANCE[precision])
            left -= 1
        except ExportError as exc:
            theta = case.task.request.theta
            if not retries or wanted.yardstick.kink(theta, case.batch) is None:
                raise Wrong(f"{trainer.name}: {exc}") from exc
            retries -= 1
        if not left:
            break
    _check_grouping(trainer, wanted.tasks)


def _check_case(trainer: FleetTrainer, wanted: References, case: _Case, tolerance: float) -> None:
    (end,) = trainer.train([case.task])
    if isinstance(end, TrainingDiverged):
        raise Wrong(f"{trainer.name}: training diverged, but not in torch: {end}")
    theta, rate = case.task.request.theta, case.task.request.training.learning_rate
    gradient = (theta.astype(np.float64) - end.theta) / rate
    for tensor in wanted.problem.network.layout.tensors:
        if tensor.name in wanted.problem.network.layout.statistics:
            gradient[tensor.slice] = 0.0
    left = wanted.yardstick.statistics(end.theta)
    truth = case.truth.sparing(GRADIENT, _KEPT * case.truth.steepest)
    truth.check(wanted.yardstick.answers(gradient, end.loss, left), tolerance)
    (found,) = trainer.evaluate([(theta, case.task.examples)])
    if isinstance(found, TrainingDiverged):
        raise Wrong(f"{trainer.name}: {found} in an evaluation, but not in torch")
    _check_evaluation(wanted, theta, case.task.examples, found, tolerance)


def _check_evaluation(
    wanted: References, theta: Theta, examples: Examples, found: Metrics, tolerance: float
) -> None:
    rows = len(examples.targets)
    x, y = torch.from_numpy(examples.inputs), torch.from_numpy(examples.targets)
    whole = PaddedBatch(x, y, torch.ones(rows), rows)
    truth = wanted.yardstick.evaluation(theta, whole, tolerance)
    weight = truth.right["weight_sum"]
    sums: dict[str, Vector] = {"loss_sum": found.loss * weight}
    if wanted.problem.objective.metric is not cross_entropy:  # a perplexity cannot be summed
        sums["metric_sum"] = found.metric * weight
    truth.of(*sums).check(sums, tolerance)


def _pool(problem: TrainingProblem) -> Samples:
    """Return examples to draw from: random ones, or the sample's if the model rejects random inputs."""
    row, rng = problem.input, torch.Generator().manual_seed(0)
    sample = torch.zeros(2, *row.shape) if row.dtype == "float32" else _tokens(row.shape)
    if problem.sample is not None:
        sample = torch.from_numpy(problem.sample)
    outputs, target = _num_outputs(problem, sample), problem.target
    classes = outputs if target is not None and target.dtype == "int64" else 0
    drawn = random_samples(sample, target, classes, problem.batch_size, rng, problem.parts)
    if problem.sample is None or accepts(copied(problem.module), drawn.x):
        return drawn
    return whole_rows(sample, drawn, rng)


def _tokens(shape: tuple[int, ...]) -> torch.Tensor:
    """Return two rows, of zeros and of ones: token ids that are in every vocabulary."""
    return torch.stack(
        [torch.zeros(shape, dtype=torch.int64), torch.ones(shape, dtype=torch.int64)]
    )


def _num_outputs(problem: TrainingProblem, sample: torch.Tensor) -> int:
    problem.network.model.eval()
    try:
        with torch.no_grad():
            output = problem.network.predict(torch.from_numpy(problem.network.theta), sample[:1])
        if problem.target is not None and problem.target.dtype == "int64" and problem.target.shape:
            output = classes_first(output, torch.zeros(1, *problem.target.shape))
        _, outputs, *more = output.shape
        if more and problem.target == LABELS:
            raise ValueError(f"outputs {tuple(output.shape)} for labels")
    except (RuntimeError, ValueError, IndexError) as exc:
        row_shape = f"{problem.input.dtype} {tuple(problem.input.shape)}"
        raise ExportError(
            f"model: expected outputs (B, C, ...) for rows of {row_shape}, but it fails: {exc}"
        ) from exc
    return outputs


def _check_grouping(trainer: FleetTrainer, tasks: Sequence[Task]) -> None:
    found = _ends(trainer, tasks)
    alone = [*_ends(trainer, tasks[:1]), *_ends(trainer, tasks[-1:])]
    among_others = _ends(trainer, [tasks[-1], *tasks[::-1]])[1:]
    if found[::-1] != among_others or [found[0], found[-1]] != alone:
        raise Wrong(f"{trainer.name}: a device's bits depend on the others in its group")


def _ends(trainer: FleetTrainer, tasks: Sequence[Task]) -> list[bytes | None]:
    """Return each task's final theta as bytes, or None if it diverged, which may happen in torch too."""
    ends = trainer.train(tasks)
    return [None if isinstance(end, TrainingDiverged) else end.theta.tobytes() for end in ends]
