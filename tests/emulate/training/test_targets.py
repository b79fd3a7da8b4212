"""What is no plain classifier passes the same checks in every trainer: numbers, many labels, the input."""

import pytest
import torch
from torch import nn

from sedge_edge.backends.rows import Objective, row_loss, row_metric
from sedge_emulate.training.checks import Wrong, check, references
from sedge_emulate.training.choice import open_trainer
from sedge_emulate.training.problem import TrainingProblem
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.objective import Loss, TargetKind, default_metric

ROW = TensorSpec("float32", (6,))
CASES: dict[str, tuple[TargetKind, str, int]] = {
    "regression": ("float", "huber", 1),
    "several labels": ("float", "bce_with_logits", 3),
    "autoencoder": ("none", "mse", 6),
    "a class for each of two": ("class", "cross_entropy", 6),
}


@pytest.mark.parametrize("name", ["autograd", "vectorised"])
@pytest.mark.parametrize("case", CASES)
def test_a_trainer_of_other_targets_passes_its_checks(case: str, name: str) -> None:
    torch.manual_seed(0)
    kind, named, outputs = CASES[case]
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, outputs))
    if kind == "class":
        model.append(nn.Unflatten(1, (2, outputs // 2)))
    loss = row_loss(Loss(named))
    assert loss is not None
    metric = row_metric(default_metric(kind, Loss(named)), loss)
    assert metric is not None
    objective = Objective(loss, metric)
    shaped = {"float": TensorSpec("float32", (outputs,)), "class": TensorSpec("int64", (2,))}
    target = shaped.get(kind)
    trainer = open_trainer(model, objective, 8, ROW, target, name=name)
    assert trainer.name == name

    # A trainer of another objective does not pass.
    def doubled(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 2 * loss(output, y)

    other = TrainingProblem(model, Objective(doubled, metric), 8, ROW, target)
    with pytest.raises(Wrong):
        check(trainer, other, "fp32", references(other))
