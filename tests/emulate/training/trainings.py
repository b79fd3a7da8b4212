"""Small models, devices' examples, and trainings that two trainers must end alike."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from numpy.typing import NDArray
from tests.export.layers import Lambda
from torch import nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import SecondModel, Trained, TrainingDiverged, TrainRequest
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import FleetTrainer, Task
from sedge_export.models import ResNet8, avgcnn
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics

BATCH = 8
CLASSES = 5
SIZES = (20, 8, 3)
PLAIN = Training(learning_rate=0.05)
PULLED = Training(
    local_epochs=2, learning_rate=0.02, momentum=0.7, prox=0.3, warmup_steps=2, end_factor=0.5
)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, CLASSES))


def cnn() -> nn.Module:
    """Strides, padding, no bias, two channels, a pool of three: groups, a layer's ReLU in place."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, stride=2, padding=1, bias=False),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, padding=1, groups=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(8 * 3 * 3, 16),
        nn.ReLU(),
        nn.Linear(16, CLASSES, bias=False),
    )


def small_resnet(norm: Callable[[int], nn.Module]) -> nn.Module:
    model = ResNet8(2, CLASSES, norm)
    model.block2 = model.block3 = nn.Identity()  # type: ignore[assignment]
    model.classifier = nn.Linear(64, CLASSES)
    return model


def recurrent() -> nn.Module:
    """The mean over the steps of a GRU that reads rows (T, F) both ways, and a classifier."""
    layer = nn.GRU(8, 6, batch_first=True, bidirectional=True)
    return nn.Sequential(Lambda(lambda gru, x: gru(x)[0].mean(1), layer), nn.Linear(12, CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (1, 8, 8)),
    "cnn": (cnn, (2, 9, 9)),
    "avgcnn": (lambda: avgcnn(classes=CLASSES), (1, 28, 28)),
    "groupnorm": (lambda: small_resnet(lambda c: nn.GroupNorm(2, c)), (2, 8, 8)),
    "batchnorm": (lambda: small_resnet(lambda c: nn.BatchNorm2d(c, momentum=0.2)), (2, 8, 8)),
    "recurrent": (recurrent, (7, 8)),
}


def problem(name: str, batch_size: int = BATCH) -> TrainingProblem:
    """A model with fixed values."""
    torch.manual_seed(3)
    make, shape = MODELS[name]
    return TrainingProblem(make(), CLASSIFICATION, batch_size, TensorSpec("float32", shape))


def examples(shape: tuple[int, ...], count: int, seed: int) -> Examples:
    """Images with a flat half, so that max-pools meet equal elements, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *shape), np.float32)
    x[:, ..., : shape[-1] // 2] = -0.5
    return Examples(x, rng.integers(0, CLASSES, count))


def devices(of: TrainingProblem, training: Training, sizes: Sequence[int] = SIZES) -> list[Task]:
    """A task for each number of examples: with batches of 8 three steps, one, and one of three rows."""
    rng = np.random.default_rng(1)
    tasks: list[Task] = []
    for seed, size in enumerate(sizes):
        theta, learning = of.network.theta, parameters(of)
        theta[learning] += rng.normal(0, 0.01, int(learning.sum())).astype(np.float32)
        request = TrainRequest(theta, training, 40 + seed)
        tasks.append(Task(request, examples(of.input.shape, size, seed)))
    return tasks


def with_(task: Task, **fields: Any) -> Task:
    """The task with other fields of its request."""
    return task._replace(request=replace(task.request, **fields))


def parameters(of: TrainingProblem) -> NDArray[np.bool_]:
    """Which elements of theta (n,) are parameters, not statistics."""
    layout = of.network.layout
    return ~layout.mask(layout.statistics)


def trained(trainer: FleetTrainer, tasks: Sequence[Task]) -> list[Trained]:
    """The ends of trainings none of which diverges."""
    found: list[Trained] = []
    for end in trainer.train(tasks):
        assert isinstance(end, Trained), end
        found.append(end)
    return found


def agree(
    of: TrainingProblem,
    start: Theta,
    found: Theta,
    wanted: Theta,
    error: float,
    still: Sequence[str] = (),
) -> None:
    """Every tensor is off by at most ``error`` of its change; those ``still`` have their first bits."""
    for tensor in of.network.layout.tensors:
        place = tensor.slice
        if tensor.name in still:
            assert found[place].tobytes() == start[place].tobytes(), tensor.name
            continue
        change = float(np.linalg.norm(wanted[place] - start[place]))
        assert change > 0, tensor.name
        off = float(np.linalg.norm(found[place] - wanted[place]))
        floor = 1e-6 * float(np.linalg.norm(wanted[place]))
        assert off <= error * change + floor, f"{tensor.name}: {off:.2g} of {change:.2g}"


def elsewhere(of: TrainingProblem, theta: Theta, seed: int = 5) -> Theta:
    """Another model (n,) near theta (n,), with the same statistics."""
    shift = np.random.default_rng(seed).normal(0, 0.1, len(theta)).astype(np.float32)
    return np.where(parameters(of), theta + shift, theta)


def corrections(of: TrainingProblem, count: int) -> list[Theta | None]:
    """What devices add to their gradients, statistics and all; every second one adds nothing."""
    rng, size = np.random.default_rng(6), of.network.layout.size
    return [None if i % 2 else rng.normal(0, 0.02, size).astype(np.float32) for i in range(count)]


def frozen(of: TrainingProblem, first: int) -> tuple[str, ...]:
    """Every second tensor, or the others; of parameters and statistics alike."""
    return tuple(of.network.layout.by_name)[first::2]


def everything(of: TrainingProblem) -> list[Task]:
    """Trainings in which all that a device can be told is switched on, and some plain ones between them."""
    full = structs.replace(
        PULLED, nesterov=True, weight_decay=0.01, clip_norm=1.0, average=0.7, freeze=frozen(of, 1)
    )
    given = zip(devices(of, full), corrections(of, 3), strict=True)
    anchored = [
        with_(task, anchor=elsewhere(of, task.request.theta), correction=correction, gradient=True)
        for task, correction in given
    ]
    mixed = structs.replace(PULLED, freeze=frozen(of, 0))
    mixtures = [
        with_(task, second=SecondModel(elsewhere(of, task.request.theta), 0.6, adaptive))
        for task, adaptive in zip(devices(of, mixed), (True, False, True), strict=True)
    ]
    kept = devices(of, structs.replace(PLAIN, optimizer="adam", optimizer_state="keep"), (20,))
    still = devices(of, structs.replace(PLAIN, freeze=tuple(of.network.layout.by_name)), (3,))
    dropping = devices(of, structs.replace(PULLED, last_batch="drop"), (20, 8))
    plain = devices(of, PLAIN)
    return [*anchored, *mixtures, *kept, with_(still[0], gradient=True), *dropping, *plain]


def check_agreement(
    trainer: FleetTrainer, other: FleetTrainer, of: TrainingProblem, error: float = 3e-4
) -> None:
    """Both trainers end everything alike, this one also with the same bits alone as beside a divergence."""
    tasks = everything(of)
    bad = examples(of.input.shape, 20, 9)
    bad.inputs[3] = np.nan
    diverged, *_ = ends = trainer.train([tasks[0]._replace(examples=bad), *tasks])
    assert isinstance(diverged, TrainingDiverged) and "epoch 1 of 2, step" in str(diverged)
    for task, end, wanted in zip(tasks, ends[1:], trained(other, tasks), strict=True):
        assert isinstance(end, Trained), end
        assert end.steps == wanted.steps and end.loss == pytest.approx(wanted.loss, rel=error)
        (alone,) = trained(trainer, [task])
        pairs = zip(vectors(of, task, end), vectors(of, task, wanted), strict=True)
        for (start, vector, still), (_, expected, _) in pairs:
            agree(of, start, vector, expected, error, still)
        again = zip(vectors(of, task, end), vectors(of, task, alone), strict=True)
        assert all(one[1].tobytes() == two[1].tobytes() for one, two in again)
        if end.second is not None and wanted.second is not None and task.request.second is not None:
            assert end.second.mix == pytest.approx(wanted.second.mix, rel=1e-4)
            assert (end.second.mix != 0.6) is task.request.second.adaptive
    unknown = with_(tasks[0], training=structs.replace(PLAIN, freeze=("head.wait",)))
    with pytest.raises(CodecError, match=r"no tensor named 'head\.wait'"):
        trainer.train([unknown])
    check_evaluations(trainer, other, of, error / 10)


def vectors(
    of: TrainingProblem, task: Task, end: Trained
) -> Iterator[tuple[Theta, Theta, tuple[str, ...]]]:
    """The vectors (n,) of an end, each with where it began and the names of what stays as it was there."""
    request, freeze = task.request, task.request.training.freeze
    zero = np.zeros_like(request.theta)
    yield request.theta, end.theta, freeze
    if request.training.average:
        assert end.mean is not None
        yield request.theta, end.mean, freeze
    if request.second is not None:
        assert end.second is not None
        yield request.second.theta, end.second.theta, freeze
    assert (end.gradient is not None) is request.gradient
    if end.gradient is not None:
        yield zero, end.gradient, (*freeze, *of.network.layout.statistics)
    for moment in end.moments.vectors if end.moments else ():
        yield zero, moment, (*freeze, *of.network.layout.statistics)


def check_evaluations(
    trainer: FleetTrainer, other: FleetTrainer, of: TrainingProblem, error: float
) -> None:
    """Loss and accuracy of several batches and of one; and a loss that is not finite."""
    models = [(task.request.theta, task.examples) for task in devices(of, PLAIN, (200, 9))]
    broken = models[0][0].copy()
    broken[-1] = np.inf
    *found, diverged = trainer.evaluate([*models, (broken, models[0][1])])
    assert isinstance(diverged, TrainingDiverged) and "evaluation" in str(diverged)
    for one, wanted in zip(found, other.evaluate(models), strict=True):
        assert isinstance(one, Metrics) and isinstance(wanted, Metrics)
        assert one.num_examples == wanted.num_examples
        assert one.loss == pytest.approx(wanted.loss, rel=error)
        assert abs(one.metric - wanted.metric) <= 1.5 / one.num_examples
