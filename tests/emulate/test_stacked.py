"""Many devices at once, models of linear layers."""

import pytest
import torch
from tests.emulate import trainings
from tests.emulate.trainings import PLAIN, PULLED, problem
from torch import nn

from sedge_emulate.training.problem import Problem
from sedge_emulate.training.stacked import StackedTrainer
from sedge_emulate.training.tasks import Unsupported
from sedge_export import cross_entropy
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.messages import LastBatch, Training

CPU = torch.device("cpu")


def opened(of: Problem) -> StackedTrainer:
    return StackedTrainer(of, "fp32", CPU)


def flat(*layers: nn.Module) -> Problem:
    """A model for rows of 7 numbers."""
    torch.manual_seed(2)
    return Problem(nn.Sequential(*layers), cross_entropy, True, 4, TensorSpec("float32", (7,)))


DEEP = (nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 6, bias=False), nn.Linear(6, 5))


@pytest.mark.parametrize("training", [PLAIN, PULLED, Training(learning_rate=0.1, prox=0.5)])
def test_the_numbers_are_torchs(training: Training) -> None:
    for of in (problem("mlp"), flat(*DEEP)):
        trainings.check_like_torch(opened(of), of, training, 2e-4)


@pytest.mark.parametrize("last_batch", ["pad", "fill", "drop"])
def test_the_last_batch(last_batch: LastBatch) -> None:
    of = problem("mlp")
    training = Training(local_epochs=2, learning_rate=0.05, last_batch=last_batch)
    trainings.check_like_torch(opened(of), of, training, 2e-4)


def test_bf16_is_near() -> None:
    of = problem("mlp")
    trainer = StackedTrainer(of, "bf16", CPU)
    trainings.check_like_torch(trainer, of, PLAIN, 0.3)
    trainings.check_like_torch(trainer, of, PULLED, 0.3)
    trainings.check_evaluation(trainer, of, 2e-2)


def test_evaluation_bits_and_divergence() -> None:
    of = problem("mlp")
    trainer = opened(of)
    trainings.check_evaluation(trainer, of)
    trainings.check_repeats(trainer, opened(of), of)
    trainings.check_divergence(trainer, of)


def test_frozen_anchored_gradient_and_mixed() -> None:
    of = problem("mlp")
    trainer = opened(of)
    trainings.check_frozen_and_anchored(trainer, of, 3e-4)
    trainings.check_gradient(trainer, of, 3e-4)
    trainings.check_mixed(trainer, of, 3e-4)


def test_more_devices_than_its_width_and_mixed_settings() -> None:
    of = problem("mlp")
    trainer = opened(of)
    trainer.width = 4
    sizes = [3 + 5 * (i % 6) for i in range(11)]
    tasks = [
        task
        for pair in zip(
            trainings.devices(of, PLAIN, sizes), trainings.devices(of, PULLED, sizes), strict=True
        )
        for task in pair
    ]
    together = trainings.trained(trainer, tasks)
    for end, task in zip(together, tasks, strict=True):
        (alone,) = trainings.trained(trainer, [task])
        assert end.theta.tobytes() == alone.theta.tobytes()
        assert (end.loss, end.steps) == (alone.loss, alone.steps)


def test_the_width_follows_the_model() -> None:
    assert opened(flat(*DEEP)).width == 64
    large = Problem(nn.Sequential(nn.Linear(784, 200), nn.Linear(200, 10)), cross_entropy, True, 4,
                    TensorSpec("float32", (784,)))  # fmt: skip
    assert opened(large).width == 8
    huge = Problem(nn.Sequential(nn.Linear(5000, 500)), cross_entropy, True, 4,
                   TensorSpec("float32", (5000,)))  # fmt: skip
    assert opened(huge).width == 4


@pytest.mark.parametrize(
    ("of", "reason"),
    [
        (problem("avgcnn"), "Convolution"),
        (problem("groupnorm"), "no layer known for GroupNorm|not one link"),
        (flat(nn.ReLU(), nn.Linear(7, 5)), "Relu"),
        (flat(nn.Linear(7, 5), nn.ReLU()), "linear layer at the end"),
        (Problem(nn.Sequential(nn.Linear(8, 5)), cross_entropy, True, 4,
                 TensorSpec("float32", (3, 8))), "Linear"),
    ],
)  # fmt: skip
def test_other_models_are_refused(of: Problem, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        opened(of)


def test_a_layer_used_twice_is_refused() -> None:
    shared = nn.Linear(7, 7)
    with pytest.raises(Unsupported, match="used twice"):
        opened(flat(shared, nn.ReLU(), shared, nn.Linear(7, 5)))


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    of = problem("mlp")
    trainer = StackedTrainer(of, "fp32", torch.device("cuda"))
    trainings.check_like_torch(trainer, of, PULLED, 1e-3)
    trainings.check_frozen_and_anchored(trainer, of, 1e-3)
    trainings.check_gradient(trainer, of, 1e-3)
    trainings.check_mixed(trainer, of, 1e-3)
    trainings.check_repeats(trainer, StackedTrainer(of, "fp32", torch.device("cuda")), of)
