"""Which tensors of a model are in theta, which in frozen, and that programs take both."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_export.exporter import export
from sedge_export.subject.network import Network
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Role
from sedge_protocol.wire.bundle import load

BODY = ["body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"]
STATISTICS = ["body.1.running_mean", "body.1.running_var"]
HEAD = ["head.weight", "head.bias"]


class Tuned(nn.Module):
    """A body with a BatchNorm, which ``still`` keeps in evaluation mode, and a head."""

    def __init__(self, still: bool = False) -> None:
        super().__init__()
        self.still = still
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head = nn.Linear(8, 3)

    def train(self, mode: bool = True) -> "Tuned":
        """As every module, but for the body."""
        super().train(mode)
        if self.still:
            self.body.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.body(x))
        return found


def names(network: Network) -> tuple[list[str], list[str]]:
    """Those in theta, and those in frozen."""
    frozen = () if network.frozen is None else network.frozen.tensors
    return [t.name for t in network.layout.tensors], [t.name for t in frozen]


def network(model: nn.Module) -> Network:
    return Network(model, CLASSIFICATION)


def test_a_frozen_body_in_training_mode_still_counts_statistics() -> None:
    model = Tuned()
    assert names(network(model)) == ([*BODY, *STATISTICS, *HEAD], [])
    model.body.requires_grad_(False)
    found = network(model.eval())  # what counts is what model.train() makes of it
    assert names(found) == ([*STATISTICS, *HEAD], BODY)
    assert found.uses_batch_statistics


def test_a_body_that_stays_in_evaluation_mode_is_frozen_with_its_statistics() -> None:
    model = Tuned(still=True)
    assert names(network(model)) == ([*BODY, *HEAD], STATISTICS)
    model.body.requires_grad_(False)
    found = network(model)
    assert names(found) == (HEAD, [*BODY, *STATISTICS])
    assert not found.uses_batch_statistics
    assert found.frozen is not None
    assert found.frozen.by_name[STATISTICS[0]].role is Role.STATISTIC


def test_a_model_without_anything_to_train() -> None:
    with pytest.raises(ExportError, match="no parameter requires a gradient"):
        network(Tuned().requires_grad_(False))


@pytest.mark.parametrize("still", [False, True])
def test_a_bundle_and_its_narrower_form_have_the_values(tmp_path: Path, still: bool) -> None:
    """The head's hidden layer is narrowed; what is frozen is not, and fixes what it touches."""
    torch.manual_seed(1)
    model = Tuned(still)
    model.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    model.body.requires_grad_(False)
    for dropped in (0.0, 0.5):
        export(
            model, torch.randn(8, 6), batch_size=8, name="t", num_classes=3,
            folder=tmp_path / str(dropped), dropped=dropped,
        )  # fmt: skip
    (whole, _), (half, _) = (load(tmp_path / str(dropped)) for dropped in (0.0, 0.5))
    assert whole.manifest.frozen == half.manifest.frozen is not None
    assert whole.frozen is not None
    values = [p.detach().numpy().ravel() for p in model.body.parameters()]
    np.testing.assert_array_equal(whole.frozen[: 48 + 8 + 16], np.concatenate(values))
    assert whole.manifest.layout.by_name["head.0.weight"].shape == (8, 8)
    assert half.manifest.layout.by_name["head.0.weight"].shape == (4, 8)
