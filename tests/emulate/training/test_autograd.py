"""One device after another by autograd."""

import numpy as np
import pytest
import torch
from msgspec import structs
from tests.emulate.training import trainings
from tests.emulate.training.trainings import BATCH, MODELS, PLAIN, PULLED, problem

from sedge_edge.training.batches import Permutations
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Precision
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.wire.training import LastBatch, Training

CPU = torch.device("cpu")


def opened(of: Problem, precision: Precision = "fp32") -> AutogradTrainer:
    return AutogradTrainer(of, precision, CPU)


@pytest.mark.parametrize("model", MODELS)
def test_the_numbers_are_torchs(model: str) -> None:
    of = problem(model)
    trainings.check_like_torch(opened(of), of, PULLED, 2e-4)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_frozen_and_anchored_and_the_last_gradient(model: str) -> None:
    of = problem(model)
    trainings.check_frozen_and_anchored(opened(of), of, 3e-4)
    trainings.check_gradient(opened(of), of, 3e-4)


@pytest.mark.parametrize(
    ("model", "last_batch"), [("cnn", "fill"), ("batchnorm", "fill"), ("batchnorm", "drop")]
)
def test_the_last_batch(model: str, last_batch: LastBatch) -> None:
    of = problem(model)
    training = Training(local_epochs=2, learning_rate=0.05, last_batch=last_batch)
    trainings.check_like_torch(opened(of), of, training, 2e-4)


def test_bf16_is_near() -> None:
    of = problem("avgcnn")
    trainings.check_like_torch(opened(of, "bf16"), of, PLAIN, 0.3)
    trainings.check_evaluation(opened(of, "bf16"), of, 2e-2)
    exact, rounded = (
        trainings.trained(opened(of, precision), trainings.devices(of, PLAIN))[0].theta
        for precision in ("fp32", "bf16")
    )
    assert (exact != rounded).any()


@pytest.mark.parametrize("model", ["cnn", "batchnorm", "recurrent"])
def test_evaluation(model: str) -> None:
    of = problem(model)
    trainings.check_evaluation(opened(of), of)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_bits_repeat_and_divergence_stays_alone(model: str) -> None:
    of = problem(model)
    trainings.check_repeats(opened(of), opened(of), of)
    trainings.check_divergence(opened(of), of)


def test_somebody_elses_shuffles() -> None:
    """A replay of a published run brings its own permutations."""
    asked: list[tuple[int, int, int]] = []

    def backwards(seed: int, num_examples: int, epochs: int):  # type: ignore[no-untyped-def]
        asked.append((seed, num_examples, epochs))
        return iter([np.arange(num_examples)[::-1]] * epochs)

    shuffles: Permutations = backwards
    of = problem("mlp")
    other = Problem(of.module, of.objective, of.batch_size, of.input, shuffles=shuffles)
    trainings.check_like_torch(opened(other), other, PLAIN, 2e-4)
    (task, *_) = trainings.devices(of, PLAIN)
    own, others = (trainings.trained(opened(p), [task])[0] for p in (of, other))
    assert (own.theta != others.theta).any()
    assert (task.request.seed, 20, 1) in asked


def test_an_optimizer_goes_on_where_the_last_round_ended() -> None:
    """As on a device: two rounds of one batch are two epochs of it."""
    of = problem("cnn")
    two = Training(2, 0.01, optimizer="adam", optimizer_state="keep")
    (task,) = trainings.devices(of, two, (BATCH,))
    for trainer in (opened(of), VectorisedTrainer(of, "fp32", torch.device("cpu"))):
        (whole,) = trainings.trained(trainer, [task])
        single = trainings.with_(task, training=structs.replace(two, local_epochs=1))
        (first,) = trainings.trained(trainer, [single])
        following = trainings.with_(single, theta=first.theta, moments=first.moments)
        (second,) = trainings.trained(trainer, [following])
        np.testing.assert_allclose(second.theta, whole.theta, atol=1e-5)
        assert second.moments is not None and second.moments.steps == 2


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    of = problem("batchnorm")
    trainer = AutogradTrainer(of, "fp32", torch.device("cuda"))
    trainings.check_like_torch(trainer, of, PULLED, 1e-3)
    trainings.check_evaluation(trainer, of, 1e-4)
