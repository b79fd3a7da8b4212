"""The checks: right backends pass, and each kind of wrong one is refused."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.emulate.trainings import problem
from torch import Tensor, nn

from sedge_edge.data import Examples
from sedge_edge.training.batches import permutations
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.checks import TOLERANCE, Twins, Wrong, check, drawn, twins
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.sequential import SequentialTrainer, open_sequential
from sedge_emulate.training.tasks import Task
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_export.models import resnet8
from sedge_export.network import cross_entropy
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.update import Metrics

CPU = torch.device("cpu")
OF = problem("wide_cnn")


@pytest.fixture(scope="module")
def wanted() -> Twins:
    return twins(OF)


def opened(name: str = "winograd") -> SequentialTrainer:
    return open_sequential(name, OF, "fp32", CPU)


@pytest.mark.parametrize("name", ["sequential", "winograd", "autograd"])
def test_right_ones_pass(name: str, wanted: Twins) -> None:
    check(opened(name), OF, "fp32", wanted)


@pytest.mark.parametrize("model", ["mlp", "batchnorm", "groupnorm", "avgcnn"])
def test_bf16_passes_within_its_tolerance(model: str) -> None:
    of = problem(model)
    twin = twins(of)
    trainer = open_sequential("sequential", of, "bf16", CPU)
    check(trainer, of, "bf16", twin)
    with pytest.raises(Wrong, match="of fp32, of a change of"):
        check(trainer, of, "fp32", twin)
    check(VectorisedTrainer(of, "fp32", CPU, 2), of, "fp32", twin)


def test_a_model_that_makes_much_of_little_passes_and_its_lost_gradients_do_not() -> None:
    """At the batch of FedPURIN's experiments plain torch itself differs by per cents."""
    torch.manual_seed(0)
    row = TensorSpec("float32", (1, 28, 28))
    of = Problem(resnet8(1, 10), cross_entropy, True, 100, row, permutations)
    twin = twins(of)
    assert twin.noise > 5 * TOLERANCE["fp32"]
    trainer = open_sequential("sequential", of, "fp32", CPU)
    check(trainer, of, "fp32", twin)
    first = of.network.layout.by_name["conv1.weight"].slice
    lost_ones = [theta.copy() for theta in twin.thetas]
    for theta, task in zip(lost_ones, twin.tasks, strict=True):
        theta[first] = task.theta[first]  # as if nothing had been learned
    with pytest.raises(Wrong, match=r"conv1\.weight"):
        check(trainer, of, "fp32", replace(twin, thetas=tuple(lost_ones)))


class Faulty(SequentialTrainer):
    """A trainer with one thing wrong."""

    def __init__(self, spoil: Callable[[Task, Trained], Trained]) -> None:
        inner = opened("sequential")
        super().__init__("faulty", OF, inner._engine, CPU)
        self._spoil = spoil

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        ends = super().train(tasks)
        return [
            self._spoil(task, end) if isinstance(end, Trained) else end
            for task, end in zip(tasks, ends, strict=True)
        ]


def place(name: str) -> slice:
    return OF.network.layout.by_name[name].slice


def lost(task: Task, end: Trained) -> Trained:
    """torch.compile's fault: a convolution that does not learn."""
    theta = end.theta.copy()
    theta[place("2.weight")] = task.theta[place("2.weight")]
    return replace(end, theta=theta)


def slow(task: Task, end: Trained) -> Trained:
    """One bias a hundredth off."""
    theta = end.theta.copy()
    bias = place("4.bias")
    theta[bias] += 0.01 * (theta[bias] - task.theta[bias])
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
        (lost, r"faulty: 2\.weight is off by .* after \d+ steps of fp32"),
        (slow, r"faulty: 4\.bias is off by"),
        (nan, r"faulty: 0\.weight is off by nan"),
        (dearer, "faulty: a training's loss is"),
    ],
)
def test_wrong_ones_are_refused(
    spoil: Callable[[Task, Trained], Trained], message: str, wanted: Twins
) -> None:
    with pytest.raises(Wrong, match=message):
        check(Faulty(spoil), OF, "fp32", wanted)


def test_a_gradient_of_the_wrong_element_is_refused(
    wanted: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault that other runtimes have: a max-pool that sends gradients elsewhere."""
    from sedge_emulate.training import layers

    right = layers.MaxPool.backward

    def shifted(self: layers.MaxPool, gradient: Tensor, wants_input: bool) -> Tensor | None:
        found = right(self, gradient, wants_input)
        return None if found is None else found.roll(1, -1)

    monkeypatch.setattr(layers.MaxPool, "backward", shifted)
    with pytest.raises(Wrong, match="is off by"):
        check(opened("sequential"), OF, "fp32", wanted)


class Neighbourly(Faulty):
    """Bits that depend on how many train together."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        ends = SequentialTrainer.train(self, tasks)
        if len(tasks) == 1:
            return ends
        return [
            replace(end, theta=np.nextafter(end.theta, np.float32(9)))
            for end in ends
            if isinstance(end, Trained)
        ]


def test_company_must_not_show(wanted: Twins) -> None:
    with pytest.raises(Wrong, match="depend on the others in its company"):
        check(Neighbourly(lambda _, end: end), OF, "fp32", wanted)


class Misjudging(Faulty):
    """Right in training, wrong in evaluation."""

    answer: Metrics | TrainingDiverged = Metrics(1.0, 0.5, 1)

    def evaluate(
        self, models: Sequence[tuple[Theta, Examples]]
    ) -> list[Metrics | TrainingDiverged]:
        return [self.answer] * len(models)


class Diverging(Faulty):
    """Gives up on everything."""

    def train(self, tasks: Sequence[Task]) -> list[Trained | TrainingDiverged]:
        return [TrainingDiverged("at once")] * len(tasks)


def test_evaluations_are_checked(wanted: Twins) -> None:
    trainer = Misjudging(lambda _, end: end)
    with pytest.raises(Wrong, match="an evaluation gives Metrics"):
        check(trainer, OF, "fp32", wanted)
    trainer.answer = TrainingDiverged("no")
    with pytest.raises(Wrong, match="faulty: no, in torch Metrics"):
        check(trainer, OF, "fp32", wanted)
    right = replace_accuracy(wanted, 1.0)
    with pytest.raises(Wrong, match="an evaluation gives"):
        check(opened(), OF, "fp32", right)


def replace_accuracy(wanted: Twins, accuracy: float) -> Twins:
    return replace(
        wanted, metrics=tuple(Metrics(m.loss, accuracy, m.num_examples) for m in wanted.metrics)
    )


def test_divergence_is_wrong_here(wanted: Twins) -> None:
    with pytest.raises(Wrong, match="diverged that does not in torch: at once"):
        check(Diverging(lambda _, end: end), OF, "fp32", wanted)


@pytest.mark.parametrize(
    ("shape", "model"), [((3, 8, 8), OF.module), ((2, 8, 8), nn.Conv2d(2, 3, 3))]
)
def test_a_model_that_does_not_fit_its_input(shape: tuple[int, ...], model: nn.Module) -> None:
    of = Problem(model, OF.loss, True, 8, TensorSpec("float32", shape))
    with pytest.raises(ExportError, match=r"expected outputs \(B, C\) for rows of float32"):
        twins(of)


def test_inputs_have_flat_halves_and_whole_numbers_stay_small() -> None:
    rng = np.random.default_rng(0)
    x = drawn(OF, 6, rng)
    assert (x[::2, ..., :4] == -0.5).all()
    assert len(np.unique(x[1])) > 50
    tokens = drawn(Problem(OF.module, OF.loss, True, 8, TensorSpec("int64", (5,))), 6, rng)
    assert tokens.dtype == np.int64
    assert set(np.unique(tokens)) == {0, 1}
    assert TOLERANCE["fp32"] < TOLERANCE["bf16"] < 0.5
