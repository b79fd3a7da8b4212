"""Any model by autograd, its tensors views of one vector."""

import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import CLASSES, PLAIN, problem
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import check, references
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.vectorised import VectorisedTrainer
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


def partial() -> TrainingProblem:
    torch.manual_seed(4)
    return TrainingProblem(Partial(), CLASSIFICATION, 8, TensorSpec("float32", (1, 8, 8)))


def test_tied_frozen_and_unused_parameters() -> None:
    of = partial()
    assert of.network.frozen is not None
    assert set(of.network.frozen.by_name) == {"fixed.weight", "fixed.bias"}
    check(AutogradTrainer(of, "fp32", CPU), of, "fp32", references(of))


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
    of = TrainingProblem(model, CLASSIFICATION, 8, TensorSpec("float32", (4, 8, 8)))
    trainer = AutogradTrainer(of, "fp32", CPU)
    check(trainer, of, "fp32", references(of))
    trainings.check_agreement(trainer, VectorisedTrainer(of, "fp32", CPU, 2), of)


def test_tokens() -> None:
    """Inputs of whole numbers."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(24, CLASSES))
    of = TrainingProblem(model, CLASSIFICATION, 8, TensorSpec("int64", (4,)))
    check(AutogradTrainer(of, "fp32", CPU), of, "fp32", references(of))
