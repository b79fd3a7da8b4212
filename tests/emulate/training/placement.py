"""Every tensor of a batched training lies on the training device: with fake ones, as CI has no GPU.

Run as a program of its own by test_vectorised. A fake tensor has a device and a shape but no numbers, and
refuses an operator that mixes devices. The device here stands for any that is not the CPU: a torch built
without CUDA has no autograd for fakes of it.
"""

import numpy as np
import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PLAIN, PULLED, problem
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    FakeTensorMode,
)
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from sedge_emulate.training import vectorised
from sedge_emulate.training.blocks import Block, Ends, Resident
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.wire.messages import Training


class Noted(Ends):
    """Where the results of each step lie; fake tensors have no numbers to read off."""

    devices: set[torch.device]

    def add(self, values: Tensor, losses: Tensor, gradients: Tensor | None) -> None:
        found = [values, losses] if gradients is None else [values, losses, gradients]
        Noted.devices |= {tensor.device for tensor in found}
        self._losses.append(losses)


def opened(of: Problem, device: torch.device) -> VectorisedTrainer:
    """A trainer for the device. Its modules' own parameters, which no step uses, stay on the CPU."""
    trainer = VectorisedTrainer(of, "fp32", torch.device("cpu"), 4)
    trainer._device, trainer._resident = device, Resident(device)
    return trainer


def trains_there(name: str, training: Training, there: torch.device) -> None:
    of = problem(name)
    trainer = opened(of, there)
    tasks = trainings.devices(of, training)
    parts = [(task.examples, list(of.batches(task))) for task in tasks]
    Noted.devices = set()
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        block = Block.of(parts, 4, trainer._resident)
        assert block.x.device == there
        trainer._run(tasks, block)
    assert Noted.devices == {there}, Noted.devices


def evaluates_there(there: torch.device) -> None:
    """Up to where the numbers are read, which fake tensors do not have."""
    of = problem("batchnorm")
    trainer = opened(of, there)
    models = [(of.network.theta, trainings.examples(of.input.shape, 9, 0))]
    # autocast and deterministic kernels are the real device's.
    trainer._fitting = lambda work: work()  # type: ignore[method-assign]
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        torch.no_grad(),
        pytest.raises(DataDependentOutputException),
    ):
        trainer.evaluate(models)


def rows_lie_with_their_data(there: torch.device) -> None:
    data = trainings.examples((2, 3, 3), 9, 0)
    with FakeTensorMode(allow_non_fake_inputs=True):
        x, y = Resident(there).rows(data, np.array([3, 1]))
        assert {x.device, y.device} == {there}


def main() -> None:
    # Before autograd first runs: it asks once which devices there are.
    _setup_privateuseone_for_python_backend("elsewhere")
    there = torch.device("elsewhere", 0)
    setattr(vectorised, "Ends", Noted)  # noqa: B010
    for name in ("cnn", "groupnorm", "batchnorm"):
        for training in (PLAIN, PULLED):
            trains_there(name, training, there)
    evaluates_there(there)
    rows_lie_with_their_data(there)


if __name__ == "__main__":
    main()
