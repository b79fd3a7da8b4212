"""Small models, devices' examples, and the same training in a few lines of ordinary torch."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from numpy.typing import NDArray
from torch import nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.batches import Batch
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import SecondModel, Trained, TrainingDiverged, TrainRequest
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import FleetTrainer, Task
from sedge_export.models import ResNet8, avgcnn
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Role, Theta
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.training import Training

BATCH = 8
CLASSES = 5
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


class Recurrent(nn.Module):
    """The mean over the steps of a GRU that reads rows (T, F) both ways, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(8, 6, batch_first=True, bidirectional=True)
        self.classifier = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.classifier(self.layer(x)[0].mean(1))
        return found


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (1, 8, 8)),
    "cnn": (cnn, (2, 9, 9)),
    "avgcnn": (lambda: avgcnn(classes=CLASSES), (1, 28, 28)),
    "groupnorm": (lambda: small_resnet(lambda c: nn.GroupNorm(2, c)), (2, 8, 8)),
    "batchnorm": (lambda: small_resnet(lambda c: nn.BatchNorm2d(c, momentum=0.2)), (2, 8, 8)),
    "recurrent": (Recurrent, (7, 8)),
}


def problem(name: str, batch_size: int = BATCH) -> Problem:
    """A model with fixed values."""
    torch.manual_seed(3)
    make, shape = MODELS[name]
    return Problem(make(), CLASSIFICATION, batch_size, TensorSpec("float32", shape))


def examples(shape: tuple[int, ...], count: int, seed: int) -> Examples:
    """Images with a flat half, so that max-pools meet equal elements, and labels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, *shape), np.float32)
    x[:, ..., : shape[-1] // 2] = -0.5
    return Examples(x, rng.integers(0, CLASSES, count))


def devices(of: Problem, training: Training, sizes: Sequence[int] = (20, 8, 3)) -> list[Task]:
    """A task for each number of examples: with batches of 8 three steps, one, and one of three rows."""
    rng = np.random.default_rng(1)
    tasks: list[Task] = []
    for seed, size in enumerate(sizes):
        theta = of.network.theta
        learning = parameters(of)
        theta[learning] += rng.normal(0, 0.01, int(learning.sum())).astype(np.float32)
        tasks.append(
            Task(TrainRequest(theta, training, 40 + seed), examples(of.input.shape, size, seed))
        )
    return tasks


def with_(task: Task, **fields: Any) -> Task:
    """The task with other fields of its request."""
    return task._replace(request=replace(task.request, **fields))


def parameters(of: Problem) -> NDArray[np.bool_]:
    """Which elements of theta (n,) are parameters, not statistics."""
    layout = of.network.layout
    return ~layout.mask(layout.statistics)


class Torch:
    """A model in plain torch: autograd, torch.optim.SGD, real rows only; frozen tensors put back."""

    def __init__(self, of: Problem, theta: Theta, training: Training) -> None:
        self.model = copy.deepcopy(of.module).train()
        self.held = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._of, self._layout, self._training = of, of.network.layout, training
        self._optimizer = torch.optim.SGD(self.model.parameters(), momentum=training.momentum)
        self.theta = theta
        self._frozen = {name: self.held[name].detach().clone() for name in training.freeze}

    @property
    def theta(self) -> Theta:
        return self._layout.flatten(
            {n: self.held[n].detach().numpy() for n in self._layout.by_name}
        )

    @theta.setter
    def theta(self, theta: Theta) -> None:
        with torch.no_grad():
            for name, values in self._layout.views(theta).items():
                self.held[name].copy_(torch.from_numpy(values.copy()))

    def gradient(self, data: Examples, rows: NDArray[np.int64]) -> Theta:
        """Of the mean loss of the rows, (n,), 0 where frozen; moves the statistics."""
        self._optimizer.zero_grad()
        x, y = (torch.from_numpy(a[rows]) for a in (data.inputs, data.targets))
        torch.autograd.backward(self._of.objective.loss(self.model(x), y).mean())
        return self._layout.flatten(
            {
                name: np.zeros(tensor.shape, np.float32)
                if tensor.grad is None or name in self._frozen
                else tensor.grad.numpy().copy()
                for name, tensor in self.held.items()
                if name in self._layout.by_name
            }
        )

    def step(self, gradient: Theta, anchor: Theta, rate: float) -> None:
        """Along the gradient (n,) and the pull towards the anchor (n,)."""
        self._optimizer.param_groups[0]["lr"] = rate
        pulls, views = self._layout.views(anchor), self._layout.views(gradient)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name not in pulls:  # of the model's own frozen tensors
                    continue
                pull = self._training.prox * (parameter - torch.from_numpy(pulls[name]))
                parameter.grad = torch.from_numpy(views[name].copy()) + pull
            self._optimizer.step()
            for name, kept in self._frozen.items():
                self.held[name].copy_(kept)


def in_torch(of: Problem, task: Task) -> Theta:
    """theta (n,) after the task."""
    return with_gradient(of, task)[0]


def with_gradient(of: Problem, task: Task) -> tuple[Theta, Theta]:
    """theta (n,) after the task, and the last batch's gradient (n,)."""
    model = Torch(of, task.request.theta, task.request.training)
    gradient = task.request.theta
    for batch, rate in with_rates(of, task):
        gradient = model.gradient(task.examples, batch.indices[batch.weights > 0])
        added = gradient if task.request.correction is None else gradient + task.request.correction
        model.step(
            added, task.request.theta if task.request.anchor is None else task.request.anchor, rate
        )
    return model.theta, gradient


def with_rates(of: Problem, task: Task) -> list[tuple[Batch, float]]:
    """Every batch with its learning rate, by torch's own schedules."""
    training, found = task.request.training, list(of.batches(task))
    sgd = torch.optim.SGD([torch.zeros(1)], lr=training.learning_rate)
    warmup, linear = training.warmup_steps or 1, torch.optim.lr_scheduler.LinearLR
    schedules = [
        linear(sgd, 1 / warmup, total_iters=warmup - 1),
        linear(sgd, 1.0, training.end_factor, total_iters=len(found)),
    ]
    rates: list[float] = []
    for _ in found:
        rates.append(sgd.param_groups[0]["lr"])
        sgd.step()
        for schedule in schedules:
            schedule.step()
    return list(zip(found, rates, strict=True))


def mixed_in_torch(of: Problem, task: Task) -> tuple[Theta, Theta, float]:
    """The sent model and the own one (n,), and the mix: algorithm 1 of Deng et al. as it is written."""
    second = task.request.second
    assert second is not None
    bare = structs.replace(task.request.training, prox=0.0)
    sent, own = Torch(of, task.request.theta, task.request.training), Torch(of, second.theta, bare)
    mixture, mix = Torch(of, task.request.theta, structs.replace(bare, freeze=())), second.mix
    moving = of.network.layout.mask(
        set(of.network.layout.statistics) - {*task.request.training.freeze}
    )
    still = of.network.layout.mask(task.request.training.freeze)
    for step, (batch, rate) in enumerate(with_rates(of, task)):
        rows = batch.indices[batch.weights > 0]
        mixture.theta = (mix * own.theta + (1 - mix) * sent.theta).astype(np.float32)
        slope = mixture.gradient(task.examples, rows)
        slope[still] = 0
        toward = float(np.dot((own.theta - sent.theta).astype(np.float64), slope))
        own.step((mix * slope).astype(np.float32), own.theta, rate)
        own.theta = np.where(moving, mixture.theta, own.theta)
        sent.step(sent.gradient(task.examples, rows), task.request.theta, rate)
        if second.adaptive and step == 0:
            mix = min(1.0, max(0.0, mix - rate * toward))
    return sent.theta, own.theta, mix


def trained(trainer: FleetTrainer, tasks: Sequence[Task]) -> list[Trained]:
    """The ends of trainings none of which diverges."""
    found: list[Trained] = []
    for end in trainer.train(tasks):
        assert isinstance(end, Trained), end
        found.append(end)
    return found


def check_like_torch(trainer: FleetTrainer, of: Problem, training: Training, error: float) -> None:
    """Every tensor of every device agrees with torch's to ``error`` of its change (L2)."""
    tasks = devices(of, training)
    for end, task in zip(trained(trainer, tasks), tasks, strict=True):
        assert end.steps == len(list(of.batches(task)))
        agree(of, task.request.theta, end.theta, in_torch(of, task), error)


def agree(
    of: Problem, start: Theta, found: Theta, wanted: Theta, error: float, still: Sequence[str] = ()
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


def elsewhere(of: Problem, theta: Theta, seed: int = 5) -> Theta:
    """Another model (n,) near theta (n,), with the same statistics."""
    shift = np.random.default_rng(seed).normal(0, 0.1, len(theta)).astype(np.float32)
    return np.where(parameters(of), theta + shift, theta)


def corrections(of: Problem, count: int) -> list[Theta | None]:
    """What devices add to their gradients, statistics and all; every second one adds nothing."""
    rng, size = np.random.default_rng(6), of.network.layout.size
    return [None if i % 2 else rng.normal(0, 0.02, size).astype(np.float32) for i in range(count)]


def frozen(of: Problem, first: int) -> tuple[str, ...]:
    """Every second tensor, or the others; of parameters and statistics alike."""
    return tuple(of.network.layout.by_name)[first::2]


def check_frozen_and_anchored(trainer: FleetTrainer, of: Problem, error: float) -> None:
    """As torch: some tensors frozen, a prox towards another model, a correction; or all frozen."""
    for first, training in ((0, PLAIN), (1, PULLED), (0, structs.replace(PLAIN, prox=0.3))):
        freeze = frozen(of, first)
        tasks = devices(of, structs.replace(training, freeze=freeze))
        tasks = [
            with_(task, anchor=elsewhere(of, task.request.theta), correction=correction)
            for task, correction in zip(tasks, corrections(of, len(tasks)), strict=True)
        ]
        ends = trained(trainer, [*tasks, *devices(of, training)])  # and some others between them
        for end, task in zip(ends, tasks, strict=False):
            agree(of, task.request.theta, end.theta, in_torch(of, task), error, still=freeze)
            (alone,) = trained(trainer, [task])
            assert alone.theta.tobytes() == end.theta.tobytes()
    everything = structs.replace(PULLED, freeze=tuple(of.network.layout.by_name))
    (task, *_) = devices(of, everything)
    (end,) = trained(trainer, [with_(task, gradient=True)])
    assert end.theta.tobytes() == task.request.theta.tobytes()
    assert end.gradient is not None
    assert not end.gradient.any()
    strange = with_(task, training=structs.replace(PLAIN, freeze=("head.wait",)))
    with pytest.raises(CodecError, match=r"no tensor named 'head\.wait'"):
        trainer.train([strange])


def check_gradient(trainer: FleetTrainer, of: Problem, error: float) -> None:
    """The last batch's gradient as torch has it; asking for it changes no bit of theta."""
    freeze = (next(iter(of.network.layout.by_name)),)
    for training in (PLAIN, structs.replace(PULLED, freeze=freeze)):
        tasks = [with_(t, anchor=elsewhere(of, t.request.theta)) for t in devices(of, training)]
        tasks[0] = with_(tasks[0], correction=corrections(of, 1)[0])
        asking = [with_(task, gradient=True) for task in tasks]
        pairs = zip(trained(trainer, tasks), trained(trainer, asking), asking, strict=True)
        for end, again, task in pairs:
            assert end.gradient is None
            assert again.gradient is not None
            assert again.theta.tobytes() == end.theta.tobytes()
            _, wanted = with_gradient(of, task)
            (alone,) = trained(trainer, [task])
            assert alone.gradient is not None
            assert alone.gradient.tobytes() == again.gradient.tobytes()
            for tensor in of.network.layout.tensors:
                found, expected = again.gradient[tensor.slice], wanted[tensor.slice]
                if tensor.role is Role.STATISTIC or tensor.name in training.freeze:
                    assert not found.any(), tensor.name
                    continue
                off, scale = (float(np.linalg.norm(v)) for v in (found - expected, expected))
                assert off <= error * scale, f"{tensor.name}: {off:.2g} of {scale:.2g}"


def check_mixed(trainer: FleetTrainer, of: Problem, error: float) -> None:
    """Two models side by side: the sent one as alone, bit for bit; own and mix as in torch."""
    for training, adaptive in (
        (structs.replace(PLAIN, warmup_steps=3), True),
        (structs.replace(PULLED, freeze=frozen(of, 1)), False),
    ):
        tasks = [
            Task(
                TrainRequest(
                    task.request.theta,
                    training,
                    7,
                    second=SecondModel(elsewhere(of, task.request.theta), 0.6, adaptive),
                ),
                task.examples,
            )
            for task in devices(of, training)
        ]
        good = tasks[0]
        bad = examples(of.input.shape, 20, 9)
        bad.inputs[3] = np.float32(1e38)
        diverged, *ends = trainer.train([good._replace(examples=bad), *tasks])
        assert isinstance(diverged, TrainingDiverged)
        assert ", step" in str(diverged)
        for end, task in zip(ends, tasks, strict=True):
            assert isinstance(end, Trained) and end.second is not None, end
            second = task.request.second
            assert second is not None
            (alone,) = trained(
                trainer, [Task(TrainRequest(task.request.theta, training, 7), task.examples)]
            )
            sent, own, mix = mixed_in_torch(of, task)
            agree(of, task.request.theta, end.theta, sent, error, training.freeze)
            if trainer.width == 1:
                assert end.theta.tobytes() == alone.theta.tobytes()
                assert (end.loss, end.steps) == (alone.loss, alone.steps)
            agree(of, second.theta, end.second.theta, own, error, training.freeze)
            assert end.second.mix == pytest.approx(mix, rel=1e-4)
            assert (end.second.mix == second.mix) is not adaptive


def check_mean(trainer: FleetTrainer, of: Problem, error: float) -> None:
    """The mean of the models after the last steps, of devices with three steps and with one."""
    tasks = devices(of, structs.replace(PLAIN, average=0.7))
    for end, task in zip(trained(trainer, tasks), tasks, strict=True):
        found = list(of.batches(task))
        model, thetas = Torch(of, task.request.theta, task.request.training), list[Theta]()
        for batch, rate in with_rates(of, task):
            gradient = model.gradient(task.examples, batch.indices[batch.weights > 0])
            model.step(gradient, task.request.theta, rate)
            thetas.append(model.theta)
        wanted = np.mean(thetas[-max(1, int(0.7 * len(found))) :], axis=0)
        assert end.mean is not None
        agree(of, task.request.theta, end.mean, wanted, error)
        agree(of, task.request.theta, end.theta, thetas[-1], error)
        (alone,) = trained(trainer, [task])
        assert alone.model.tobytes() == end.model.tobytes()


def check_divergence(trainer: FleetTrainer, of: Problem) -> None:
    """A device whose loss explodes says so; the others' bits are as without it."""
    good = devices(of, PLAIN)
    bad = examples(of.input.shape, 20, 9)
    bad.inputs[3] = np.float32(1e38)
    broken = good[0]._replace(examples=bad)
    ends = trainer.train([good[0], broken, *good[1:]])
    diverged = ends.pop(1)
    assert not isinstance(diverged, Trained)
    assert "epoch 1 of 1, step" in str(diverged)
    alone = trained(trainer, good)
    for end, expected in zip(ends, alone, strict=True):
        assert isinstance(end, Trained)
        assert end.theta.tobytes() == expected.theta.tobytes()


def check_repeats(trainer: FleetTrainer, again: FleetTrainer, of: Problem) -> None:
    """The same bits from another trainer of the kind, in another order, and the second time."""
    tasks = devices(of, PULLED)
    first = [end.theta.tobytes() for end in trained(trainer, tasks)]
    assert [end.theta.tobytes() for end in trained(trainer, tasks)] == first
    assert [end.theta.tobytes() for end in trained(again, tasks[::-1])] == first[::-1]


def check_evaluation(trainer: FleetTrainer, of: Problem, error: float = 1e-5) -> None:
    """Loss and accuracy as in torch, statistics untouched; and one that is not finite."""
    tasks = devices(of, PLAIN, (200, 9))
    model = copy.deepcopy(of.module).eval()
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    broken = tasks[0].request.theta.copy()
    broken[-1] = np.inf
    models = [(t.request.theta, t.examples) for t in tasks]
    *found, diverged = trainer.evaluate([*models, (broken, tasks[0].examples)])
    for metrics, task in zip(found, tasks, strict=True):
        for name, values in of.network.layout.views(task.request.theta).items():
            held[name].data.copy_(torch.from_numpy(values.copy()))
        with torch.no_grad():
            output = model(torch.from_numpy(task.examples.inputs))
        y = torch.from_numpy(task.examples.targets)
        right = float((output.argmax(1) == y).double().mean())
        assert not isinstance(metrics, Exception)
        assert (
            abs(metrics.loss - float(of.objective.loss(output, y).mean())) <= error * metrics.loss
        )
        assert abs(metrics.metric - right) <= 1.5 / len(y) + (error > 1e-3) * 0.1
        assert metrics.num_examples == len(y)
    assert isinstance(diverged, Exception)
    assert "evaluation" in str(diverged)
