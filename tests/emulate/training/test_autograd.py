"""One device after another by autograd."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from msgspec import structs
from numpy.typing import NDArray
from tests.emulate.training import trainings
from tests.emulate.training.trainings import BATCH, PLAIN, problem

from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import check, references
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.wire.training import Training

CPU = torch.device("cpu")


def opened(of: TrainingProblem) -> AutogradTrainer:
    return AutogradTrainer(of, "fp32", CPU)


def test_somebody_elses_shuffles() -> None:
    """A replay of a published run brings its own permutations."""
    asked: list[tuple[int, int, int]] = []

    def backwards(seed: int, num_examples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
        asked.append((seed, num_examples, epochs))
        return iter([np.arange(num_examples)[::-1]] * epochs)

    of = problem("mlp")
    other = replace(of, shuffles=backwards)
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
    check(trainer, of, "fp32", references(of))
    trainings.check_agreement(trainer, opened(of), of, 1e-3)
