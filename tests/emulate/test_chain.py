"""Which chains are taken, and which of their convolutions are filtered minimally."""

import pytest
import torch
from tests.emulate.trainings import PLAIN, problem
from torch import nn

from sedge_emulate.training.chain import Chain, Plan
from sedge_emulate.training.layers import HalvingPool, MaxPool
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Precision, Unsupported
from sedge_export import cross_entropy
from sedge_protocol.wire.bundle import TensorSpec


def of(model: nn.Module, shape: tuple[int, ...], dtype: str = "float32") -> Problem:
    return Problem(model, cross_entropy, True, 4, TensorSpec(dtype, shape))


def test_what_is_filtered_minimally() -> None:
    plan = Plan(problem("wide_cnn"), minimal=True)
    assert plan._minimal == {"2.weight", "4.weight"}, "not the first, whose two channels are few"
    assert Plan(problem("wide_cnn"), minimal=False)._minimal == set()
    assert plan.orders["2.weight"].stored == (5, 20, 5, 16)
    assert plan.orders["0.weight"].stored == (16, 3, 3, 2)
    assert plan.orders["8.weight"].stored == (5, 4, 3, 16)


def test_the_first_layer_with_parameters() -> None:
    pooled = nn.Sequential(nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3))
    chain = Chain(of(pooled, (1, 4, 4)), "fp32", minimal=False)
    chain.start(chain.storage.read(chain.values), PLAIN)
    assert chain._first == 3


@pytest.mark.parametrize(
    ("pool", "precision", "layer"),
    [
        (nn.MaxPool2d(2), "bf16", HalvingPool),
        (nn.MaxPool2d(2), "fp32", MaxPool),
        (nn.MaxPool2d(2, ceil_mode=True), "bf16", MaxPool),
        (nn.MaxPool2d(2, 1), "bf16", MaxPool),
        (nn.MaxPool2d(2, padding=1), "bf16", MaxPool),
        (nn.MaxPool2d(2, dilation=2), "bf16", MaxPool),
        (nn.MaxPool2d((2, 3), 2), "bf16", MaxPool),
    ],
)
def test_what_pools(pool: nn.Module, precision: Precision, layer: type) -> None:
    model = nn.Sequential(pool, nn.Flatten(), nn.LazyLinear(3))
    model(torch.zeros(1, 1, 6, 6))
    chain = Chain(of(model, (1, 6, 6)), precision, minimal=False)
    assert type(chain._layers[0]) is layer


def test_start_forgets_the_training_before() -> None:
    torch.manual_seed(0)
    chain = Chain(problem("mlp"), "fp32", False)
    theta = problem("mlp").network.theta
    with torch.no_grad():
        ends: list[bytes] = []
        for _ in range(2):
            chain.start(theta, PLAIN)
            for step in range(3):
                x = torch.full((4, 1, 8, 8), 0.1 * step)
                chain.differentiate(x, torch.tensor([0, 1, 2, 3]))
                chain.descend()
            ends.append(chain.storage.read(chain.values).tobytes())
    assert ends[0] == ends[1]
    assert ends[0] != theta.tobytes()


class Tied(nn.Module):
    """One layer, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.one(torch.relu(self.one(x)))
        return found


class Spare(Tied):
    """A parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.one(x)
        return found


WIDE = nn.Conv2d(16, 16, 3)


@pytest.mark.parametrize(
    ("which", "minimal", "reason"),
    [
        (of(Tied(), (4,)), False, "used twice"),
        (of(Spare(), (4,)), False, "parameters that none uses"),
        (of(nn.Sequential(nn.Linear(4, 2)), (4,), "int64"), False, "inputs are int64"),
        (of(nn.Sequential(nn.Linear(4, 2)), (3, 4)), False, "linear over 2 axes"),
        (of(nn.Sequential(nn.Linear(4, 2)), (5,)), False, r"Linear.* on \(1, 5\)"),
        (of(nn.Sequential(nn.Conv2d(1, 2, 3)), (1, 8, 8)), False, r"\(2, 6, 6\) a row"),
        (of(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), (1, 8, 8)), False, "a linear layer's"),
        (problem("mlp"), True, "no convolution"),
        (problem("cnn"), True, "no convolution"),
        (of(nn.Sequential(WIDE, nn.Flatten(), nn.Linear(16, 2)), (16, 3, 3)), True,
         "no convolution"),
    ],
)  # fmt: skip
def test_other_models_are_refused(which: Problem, minimal: bool, reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        Chain(which, "fp32", minimal)


def test_minimal_filtering_is_for_fp32() -> None:
    with pytest.raises(Unsupported, match="too many digits"):
        Chain(problem("wide_cnn"), "bf16", True)
