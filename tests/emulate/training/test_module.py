"""Any model by autograd, its tensors views of one vector."""

import numpy as np
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import CLASSES, PLAIN, PULLED, problem
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainRequest
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Task
from sedge_protocol.wire.bundle import TensorSpec

CPU = torch.device("cpu")


class Partial(nn.Module):
    """Two tied layers, a frozen one, and a parameter that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.fixed = nn.Linear(64, 64).requires_grad_(False)
        self.spare = nn.Parameter(torch.ones(3))
        self.last = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(torch.tanh(self.first(x.flatten(1)))))
        found: Tensor = self.last(torch.tanh(self.fixed(x)))
        return found


def partial() -> Problem:
    torch.manual_seed(4)
    return Problem(Partial(), CLASSIFICATION, 8, TensorSpec("float32", (1, 8, 8)))


def test_tied_frozen_and_unused_parameters() -> None:
    of = partial()
    assert of.network.frozen is not None
    assert set(of.network.frozen.by_name) == {"fixed.weight", "fixed.bias"}
    trainer = AutogradTrainer(of, "fp32", CPU)
    for training in (PLAIN, PULLED):
        tasks = trainings.devices(of, training)
        for end, task in zip(trainings.trained(trainer, tasks), tasks, strict=True):
            wanted = trainings.in_torch(of, task)
            np.testing.assert_allclose(end.theta, wanted, rtol=0, atol=2e-6)


def test_the_users_model_stays_as_it_is() -> None:
    of = problem("batchnorm")
    before = {name: value.clone() for name, value in of.module.state_dict().items()}
    trainer = AutogradTrainer(of, "fp32", CPU)
    trainings.trained(trainer, trainings.devices(of, PLAIN))
    for name, value in of.module.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_a_group_norm_whose_input_needs_no_gradient() -> None:
    """In channels-last order torch's kernel crashes there; the first layer, or behind frozen ones."""
    torch.manual_seed(6)
    model = nn.Sequential(nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(),
                          nn.Linear(144, CLASSES))  # fmt: skip
    of = Problem(model, CLASSIFICATION, 8, TensorSpec("float32", (4, 8, 8)))
    trainer = AutogradTrainer(of, "fp32", CPU)
    trainings.check_like_torch(trainer, of, PLAIN, 3e-4)
    trainings.check_frozen_and_anchored(trainer, of, 3e-4)


def test_tokens() -> None:
    """Inputs of whole numbers."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(24, CLASSES))
    of = Problem(model, CLASSIFICATION, 8, TensorSpec("int64", (4,)))
    rng = np.random.default_rng(0)
    data = Examples(rng.integers(0, 9, (20, 4)), rng.integers(0, CLASSES, 20))
    task = Task(TrainRequest(of.network.theta, PULLED, 3), data)
    (end,) = trainings.trained(AutogradTrainer(of, "fp32", CPU), [task])
    np.testing.assert_allclose(end.theta, trainings.in_torch(of, task), rtol=0, atol=1e-6)
