"""One device after another, with explicit layers, minimal filtering, or autograd."""

import numpy as np
import pytest
import torch
from tests.emulate import trainings
from tests.emulate.trainings import MODELS, PLAIN, PULLED, problem

from sedge_edge.training.batches import Permutations
from sedge_emulate.training.chain import Chain
from sedge_emulate.training.module import Module
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.sequential import SequentialTrainer, open_sequential
from sedge_emulate.training.tasks import Precision, Unsupported
from sedge_protocol.wire.messages import LastBatch, Training

CPU = torch.device("cpu")
PAIRS = [
    *((name, "sequential") for name in MODELS),
    *((name, "autograd") for name in MODELS),
    ("wide_cnn", "winograd"),
    ("avgcnn", "winograd"),
]


def opened(name: str, of: Problem, precision: Precision = "fp32") -> SequentialTrainer:
    return open_sequential(name, of, precision, CPU)


@pytest.mark.parametrize(("model", "name"), PAIRS)
@pytest.mark.parametrize("training", [PLAIN, PULLED], ids=["plain", "pulled"])
def test_the_numbers_are_torchs(model: str, name: str, training: Training) -> None:
    of = problem(model)
    trainings.check_like_torch(opened(name, of), of, training, 2e-4)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
@pytest.mark.parametrize("last_batch", ["pad", "fill", "drop"])
def test_the_last_batch(model: str, last_batch: LastBatch) -> None:
    of = problem(model)
    training = Training(local_epochs=2, learning_rate=0.05, last_batch=last_batch)
    trainings.check_like_torch(opened("sequential", of), of, training, 2e-4)


@pytest.mark.parametrize("model", ["mlp", "avgcnn", "groupnorm"])
@pytest.mark.parametrize("name", ["sequential", "autograd"])
def test_bf16_is_near(model: str, name: str) -> None:
    of = problem(model)
    trainings.check_like_torch(opened(name, of, "bf16"), of, PLAIN, 0.3)
    exact, rounded = (
        trainings.trained(opened(name, of, precision), trainings.devices(of, PLAIN))[0].theta
        for precision in ("fp32", "bf16")
    )
    assert (exact != rounded).any()


@pytest.mark.parametrize(("model", "name"), PAIRS)
def test_evaluation(model: str, name: str) -> None:
    of = problem(model)
    trainings.check_evaluation(opened(name, of), of)


def test_evaluation_in_bf16() -> None:
    of = problem("avgcnn")
    trainings.check_evaluation(opened("sequential", of, "bf16"), of, 2e-2)


@pytest.mark.parametrize(("model", "name"), [("cnn", "sequential"), ("wide_cnn", "winograd"),
                                             ("batchnorm", "autograd")])  # fmt: skip
def test_bits_repeat_and_divergence_stays_alone(model: str, name: str) -> None:
    of = problem(model)
    trainer = opened(name, of)
    trainings.check_repeats(trainer, opened(name, of), of)
    trainings.check_divergence(trainer, of)


def test_which_engine() -> None:
    assert isinstance(opened("sequential", problem("avgcnn"))._engine, Chain)
    assert isinstance(opened("sequential", problem("groupnorm"))._engine, Module)
    assert isinstance(opened("autograd", problem("avgcnn"))._engine, Module)
    with pytest.raises(Unsupported, match="GroupNorm"):
        opened("winograd", problem("groupnorm"))
    with pytest.raises(Unsupported, match="for the CPU"):
        open_sequential("winograd", problem("avgcnn"), "fp32", torch.device("meta"))


def test_somebody_elses_shuffles() -> None:
    """A replay of a published run brings its own permutations."""
    asked: list[tuple[int, int, int]] = []

    def backwards(seed: int, num_examples: int, epochs: int):  # type: ignore[no-untyped-def]
        asked.append((seed, num_examples, epochs))
        return iter([np.arange(num_examples)[::-1]] * epochs)

    shuffles: Permutations = backwards
    of = problem("mlp")
    other = Problem(of.module, of.loss, True, of.batch_size, of.input, shuffles)
    trainings.check_like_torch(opened("sequential", other), other, PLAIN, 2e-4)
    (task, *_) = trainings.devices(of, PLAIN)
    own, others = (trainings.trained(opened("sequential", p), [task])[0] for p in (of, other))
    assert (own.theta != others.theta).any()
    assert (task.seed, 20, 1) in asked


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    of = problem("batchnorm")
    trainer = open_sequential("sequential", of, "fp32", torch.device("cuda"))
    trainings.check_like_torch(trainer, of, PULLED, 1e-3)
    trainings.check_evaluation(trainer, of, 1e-4)
