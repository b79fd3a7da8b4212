"""A device's own programs as a fleet trainer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.emulate.training import trainings
from tests.emulate.training.trainings import BATCH, CLASSES, PULLED, problem

from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.programs import OnnxFleet
from sedge_emulate.training.tasks import Unsupported
from sedge_export import export
from sedge_protocol.wire.bundle import Bundle, load


def bundle_of(of: Problem, folder: Path) -> Bundle:
    sample = torch.randn(BATCH, *of.input.shape)
    export(of.module, sample, batch_size=BATCH, name="it", num_classes=CLASSES, folder=folder)
    return load(folder)[0]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Problem, Bundle]:
    of = problem("cnn")
    return of, bundle_of(of, tmp_path_factory.mktemp("cnn"))


def test_it_is_a_device(exported: tuple[Problem, Bundle]) -> None:
    of, bundle = exported
    trainer = OnnxFleet(of, "fp32", bundle)
    trainings.check_like_torch(trainer, of, PULLED, 2e-4)
    trainings.check_evaluation(trainer, of)
    trainings.check_divergence(trainer, of)


def test_the_batched_trainers_agree_with_it(exported: tuple[Problem, Bundle]) -> None:
    of, bundle = exported
    tasks = trainings.devices(of, PULLED)
    batched = AutogradTrainer(of, "fp32", torch.device("cpu"))
    devices = trainings.trained(OnnxFleet(of, "fp32", bundle), tasks)
    for end, device in zip(trainings.trained(batched, tasks), devices, strict=True):
        np.testing.assert_allclose(end.theta, device.theta, rtol=0, atol=1e-6)
        assert end.loss == pytest.approx(device.loss, rel=1e-5)
        assert end.steps == device.steps


def test_a_recurrent_layer(tmp_path: Path) -> None:
    of = problem("recurrent")
    trainer = OnnxFleet(of, "fp32", bundle_of(of, tmp_path))
    trainings.check_like_torch(trainer, of, PULLED, 2e-4)
    trainings.check_evaluation(trainer, of)


def test_frozen_anchored_gradient_and_mixed(tmp_path: Path) -> None:
    of = problem("batchnorm")
    bundle = bundle_of(of, tmp_path)
    trainer = OnnxFleet(of, "fp32", bundle)
    trainings.check_frozen_and_anchored(trainer, of, 3e-4)
    trainings.check_gradient(trainer, of, 3e-4)
    trainings.check_mixed(trainer, of, 3e-4)
    trainings.check_mean(trainer, of, 3e-4)


def none(seed: int, num_examples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    return iter(())


def test_what_programs_cannot_do(exported: tuple[Problem, Bundle]) -> None:
    of, bundle = exported
    with pytest.raises(Unsupported, match="no bundle"):
        OnnxFleet(of, "fp32", None)
    with pytest.raises(Unsupported, match="compute only in fp32"):
        OnnxFleet(of, "bf16", bundle)
    with pytest.raises(Unsupported, match="shuffle as devices do"):
        OnnxFleet(replace(of, shuffles=none), "fp32", bundle)
    with pytest.raises(Unsupported, match="belongs to another model"):
        OnnxFleet(problem("mlp"), "fp32", bundle)
    with pytest.raises(Unsupported, match="batch size 8, expected 4"):
        OnnxFleet(replace(of, batch_size=4), "fp32", bundle)
