"""A device's own programs as a fleet trainer."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.emulate.training import trainings
from tests.emulate.training.trainings import BATCH, CLASSES, problem

from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import check, references
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.programs import OnnxFleet
from sedge_emulate.training.tasks import Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_export import export
from sedge_protocol.wire.bundle import Bundle, load

CPU = torch.device("cpu")


def bundle_of(of: TrainingProblem, folder: Path) -> Bundle:
    sample = torch.randn(BATCH, *of.input.shape)
    export(of.module, sample, batch_size=BATCH, name="it", num_classes=CLASSES, folder=folder)
    return load(folder)[0]


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_it_is_a_device_and_the_batched_trainers_agree_with_it(tmp_path: Path, model: str) -> None:
    of = problem(model)
    device = OnnxFleet(of, "fp32", bundle_of(of, tmp_path))
    check(device, of, "fp32", references(of))
    trainings.check_agreement(AutogradTrainer(of, "fp32", CPU), device, of)
    trainings.check_agreement(VectorisedTrainer(of, "fp32", CPU, 2), device, of)
    trainings.check_agreement(device, device, of)


def test_a_recurrent_layer(tmp_path: Path) -> None:
    of = problem("recurrent")
    check(OnnxFleet(of, "fp32", bundle_of(of, tmp_path)), of, "fp32", references(of))


def none(seed: int, num_examples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    return iter(())


def test_what_programs_cannot_do(tmp_path: Path) -> None:
    bundle = bundle_of(of := problem("cnn"), tmp_path)
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
