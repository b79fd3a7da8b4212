"""Two models side by side on one engine."""

from dataclasses import replace

import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PLAIN, problem

from sedge_edge.training.trainer import Mixed, TrainingDiverged
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import MixedTask, Task
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.messages import Training

CPU = torch.device("cpu")


@pytest.mark.parametrize("model", ["mlp", "cnn", "groupnorm", "batchnorm"])
def test_the_numbers_are_torchs(model: str) -> None:
    of = problem(model)
    trainings.check_mixed(AutogradTrainer(of, "fp32", CPU), of, 3e-4)


def task_of(of: Problem, mix: float = 0.5, adaptive: bool = False) -> MixedTask:
    (task, *_) = trainings.devices(of, PLAIN)
    own = trainings.elsewhere(of, task.theta)
    return MixedTask(task.theta, own, mix, adaptive, task.examples, PLAIN, 3)


def ended(trainer: AutogradTrainer, task: MixedTask) -> Mixed:
    (end,) = trainer.train_mixed([task])
    assert isinstance(end, Mixed), end
    return end


@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_the_ends_of_the_mix(model: str) -> None:
    """With mix 1 the own model trains as if alone; with mix 0 it learns nothing."""
    of = problem(model)
    trainer = AutogradTrainer(of, "fp32", CPU)
    task = task_of(of, 1.0)
    (alone,) = trainings.trained(trainer, [Task(task.own, task.examples, PLAIN, 3)])
    assert ended(trainer, task).own.tobytes() == alone.theta.tobytes()
    learning = trainings.parameters(of)
    still = ended(trainer, replace(task, mix=0.0)).own
    assert still[learning].tobytes() == task.own[learning].tobytes()


def test_the_mix_stays_between_0_and_1() -> None:
    """It goes to the better of two models, though one step would lead far beyond."""
    of = problem("mlp")
    trainer = AutogradTrainer(of, "fp32", CPU)
    task = task_of(of, 0.5, adaptive=True)
    near, far = task.sent, 10 * trainings.elsewhere(of, task.sent)
    assert ended(trainer, replace(task, sent=near, own=far)).mix == 0.0
    assert ended(trainer, replace(task, sent=far, own=near)).mix == 1.0


def test_only_the_mixture_diverges() -> None:
    of = problem("mlp")
    trainer = AutogradTrainer(of, "fp32", CPU)
    task = task_of(of)
    own = task.own * 1e30
    (end,) = trainer.train_mixed([replace(task, own=own)])
    assert isinstance(end, TrainingDiverged)
    assert "epoch 1 of 1, step" in str(end)


def test_an_unknown_frozen_tensor() -> None:
    of = problem("mlp")
    trainer = AutogradTrainer(of, "fp32", CPU)
    with pytest.raises(CodecError, match="no tensor named 'none'"):
        trainer.train_mixed([replace(task_of(of), training=Training(freeze=("none",)))])
