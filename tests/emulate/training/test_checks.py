"""The checks: right backends pass, and each kind of wrong one is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.emulate.training.trainings import MODELS, problem
from tests.export.layers import Body, Lambda
from tools.bench.zoo.deep import resnet18
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.batches import permutations
from sedge_edge.training.examples import Examples
from sedge_edge.training.steppers.model import Differentiated
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import References, Wrong, check, references
from sedge_emulate.training.module import Module
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import FleetTrainer, Precision, Task
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.update import Metrics

CPU = torch.device("cpu")
OF = problem("cnn")


@pytest.fixture(scope="module")
def wanted() -> References:
    return references(OF)


def opened() -> AutogradTrainer:
    return AutogradTrainer(OF, "fp32", CPU)


Spoil = Callable[[Task, Trained], Trained]
Model = tuple[Theta, Examples]


class Faulty(AutogradTrainer):
    """A trainer with one thing wrong."""

    def __init__(self, spoil: Spoil = lambda _, end: end, of: TrainingProblem = OF) -> None:
        super().__init__(of, "fp32", CPU)
        self.name = "faulty"
        self._spoil = spoil

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        ends = super().train(tasks)
        return [
            self._spoil(task, end) if isinstance(end, Trained) else end
            for task, end in zip(tasks, ends, strict=True)
        ]


def unlearned(of: TrainingProblem, tensor: str) -> Faulty:
    """A trainer in which a tensor learns nothing: torch.compile's fault with convolutions."""
    place = of.network.layout.by_name[tensor].slice

    def spoil(task: Task, end: Trained) -> Trained:
        theta = end.theta.copy()
        theta[place] = task.request.theta[place]
        return replace(end, theta=theta)

    return Faulty(spoil, of)


@pytest.mark.parametrize("model", MODELS)
def test_right_ones_pass_and_in_bf16_within_its_tolerance(model: str) -> None:
    of = problem(model)
    opened: list[Callable[[Precision, torch.device], FleetTrainer]] = [partial(AutogradTrainer, of)]
    if model != "recurrent":  # which torch's vmap cannot evaluate
        opened.append(partial(VectorisedTrainer, of, width=2))
    for trainer in opened:
        check(trainer("fp32", CPU), of, "fp32", found := references(of))
        check(half := trainer("bf16", CPU), of, "bf16", found)
        with pytest.raises(Wrong, match="eager torch in float32 is off by"):
            check(half, of, "fp32", found)


def normalised() -> nn.Module:
    """Convolutions whose biases a batch normalisation takes out again, so that these learn nothing."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(8 * 7 * 7, 10),
    )  # fmt: skip


def problem_of(model: nn.Module, batch_size: int) -> TrainingProblem:
    row = TensorSpec("float32", (1, 28, 28))
    return TrainingProblem(model, CLASSIFICATION, batch_size, row, shuffles=permutations)


@pytest.mark.parametrize("seed", [0, 1])
def test_plain_autograd_passes_on_an_ordinary_network(seed: int) -> None:
    """Also where torch's own float32 is hundreds of roundings off."""
    torch.manual_seed(seed)
    of = problem_of(normalised(), 32)
    check(AutogradTrainer(of, "fp32", CPU), of, "fp32", references(of))


def test_where_training_is_chaotic_plain_autograd_passes_and_a_lost_gradient_does_not() -> None:
    """At the usual rates two right trainings of this network have nothing in common after three steps."""
    torch.manual_seed(0)
    row = TensorSpec("float32", (3, 8, 8))
    of = TrainingProblem(resnet18(8), CLASSIFICATION, 8, row, shuffles=permutations)
    found = references(of)
    check(AutogradTrainer(of, "fp32", CPU), of, "fp32", found)
    with pytest.raises(Wrong, match=r"gradient of '0\.0\.weight' is zero"):
        check(unlearned(of, "0.0.weight"), of, "fp32", found)


def test_a_model_that_asks_for_float32() -> None:
    """It computes in float64 all the same when it is the reference."""
    asking = Lambda(lambda last, x: last(x.flatten(1).float()), nn.Linear(64, 5))
    of = replace(problem("mlp"), module=asking)
    check(AutogradTrainer(of, "fp32", CPU), of, "fp32", references(of))


def place(name: str) -> slice:
    return OF.network.layout.by_name[name].slice


def slow(task: Task, end: Trained) -> Trained:
    """One bias a twentieth off."""
    theta = end.theta.copy()
    bias = place("2.bias")
    theta[bias] += 0.05 * (theta[bias] - task.request.theta[bias])
    return replace(end, theta=theta)


def nan(task: Task, end: Trained) -> Trained:
    theta = end.theta.copy()
    theta[7] = np.nan
    return replace(end, theta=theta)


def dearer(task: Task, end: Trained) -> Trained:
    return replace(end, loss=end.loss * 1.01)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (slow, r"faulty: the gradient of '2\.bias' is wrong: off by"),
        (nan, r"faulty: the gradient of '0\.weight' is wrong: off by nan"),
        (dearer, "faulty: the loss is wrong"),
    ],
)
def test_wrong_ones_are_refused(spoil: Spoil, message: str, wanted: References) -> None:
    with pytest.raises(Wrong, match=message):
        check(Faulty(spoil), OF, "fp32", wanted)


def test_a_shifted_gradient_is_refused(wanted: References, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that other runtimes have: a max-pool that sends gradients elsewhere."""
    right, weight = Module.differentiate, place("0.weight")

    def shifted(self: Module, *given: Any) -> Differentiated:
        found = right(self, *given)
        found.gradient[weight] = cast(Tensor, found.gradient)[weight].roll(1)
        return found

    monkeypatch.setattr(Module, "differentiate", shifted)
    with pytest.raises(Wrong, match=r"gradient of '0\.weight' is wrong"):
        check(opened(), OF, "fp32", wanted)


class Neighbourly(Faulty):
    """Bits that depend on how many train together."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        ends = AutogradTrainer.train(self, tasks)
        if len(tasks) == 1:
            return ends
        return [
            replace(end, theta=np.nextafter(end.theta, np.float32(9)))
            for end in ends
            if isinstance(end, Trained)
        ]


def test_company_must_not_show(wanted: References) -> None:
    with pytest.raises(Wrong, match="depend on the others in its group"):
        check(Neighbourly(), OF, "fp32", wanted)


class Misjudging(Faulty):
    """Right in training, wrong in evaluation."""

    answer: Metrics | TrainingDiverged = Metrics(1.0, 0.5, 1)

    def evaluate(self, models: Sequence[Model]) -> list[Metrics | TrainingDiverged]:
        return [self.answer] * len(models)


class Diverging(Faulty):
    """Gives up on everything."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        return [TrainingDiverged("at once")] * len(tasks)


def test_evaluations_are_checked(wanted: References) -> None:
    trainer = Misjudging()
    with pytest.raises(Wrong, match="the loss_sum is wrong"):
        check(trainer, OF, "fp32", wanted)
    trainer.answer = TrainingDiverged("no")
    with pytest.raises(Wrong, match="faulty: no in an evaluation, but not in torch"):
        check(trainer, OF, "fp32", wanted)
    first = next(wanted.cases()).task
    (end,) = AutogradTrainer.evaluate(trainer, [(first.request.theta, first.examples)])
    assert isinstance(end, Metrics)
    trainer.answer = Metrics(end.loss, 1.0, 1)
    with pytest.raises(Wrong, match="the metric_sum is wrong"):
        check(trainer, OF, "fp32", wanted)


def test_divergence_is_wrong_here(wanted: References) -> None:
    with pytest.raises(Wrong, match="diverged, but not in torch: at once"):
        check(Diverging(), OF, "fp32", wanted)


def test_a_model_that_does_not_fit_its_input() -> None:
    for shape, model in ((3, 8, 8), OF.module), ((2, 8, 8), nn.Conv2d(2, 3, 3)):
        of = TrainingProblem(model, OF.objective, 8, TensorSpec("float32", shape))
        with pytest.raises(ExportError, match=r"expected outputs \(B, C, ...\) for rows of float"):
            references(of)


def embedded(table: Body, x: Tensor) -> Tensor:
    """Two numbers and a category's code in each row."""
    return torch.cat([x[:, :2], table(x[:, 2].long())], 1)


def test_a_model_that_takes_no_random_rows_is_checked_on_real_ones() -> None:
    model = nn.Sequential(Lambda(embedded, nn.Embedding(3, 4)), nn.Linear(6, 2))
    rng = np.random.default_rng(0)
    sample = rng.standard_normal((40, 3), np.float32)
    sample[:, 2] = rng.integers(0, 3, 40)
    of = TrainingProblem(model, OF.objective, 8, TensorSpec("float32", (3,)), sample=sample)
    found = references(of)
    assert {code for task in found.tasks for code in task.examples.inputs[:, 2]} == {0, 1, 2}
    check(AutogradTrainer(of, "fp32", CPU), of, "fp32", found)
