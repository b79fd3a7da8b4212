"""Frozen tensors in fewer bits: what is rounded, what a bundle has, and what is refused."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sedge_export.__main__ import main
from sedge_export.exporter import export
from sedge_export.stages import Subject
from sedge_export.subject.objective import chosen
from sedge_export.subject.precision import in_precision, require_finite
from sedge_export.subject.subject import take
from sedge_protocol.errors import ExportError
from sedge_protocol.wire.bundle import FROZEN_NAME, load

ROWS, FEATURES, HIDDEN = 500, 8, 64


def model() -> nn.Sequential:
    """A head on a body that is not trained."""
    torch.manual_seed(0)
    first, second = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
    body = nn.Sequential(first, nn.Tanh(), second, nn.Tanh())
    return nn.Sequential(body.requires_grad_(False), nn.Linear(HIDDEN, 2))


def data(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Rows whose label is the sign of one feature."""
    x = torch.randn(rows, FEATURES, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


def subject(module: nn.Module, rows: int = ROWS) -> Subject:
    x, y = data(rows)
    choice = chosen(2, None, None, None)
    return take(module, x[:8], (x, y), batch_size=8, num_classes=2, choice=choice)


def blinded() -> nn.Sequential:
    """A body that sees the feature that counts by a weight far below the others."""
    module = model()
    weight = module.get_parameter("0.0.weight")
    with torch.no_grad():
        weight.zero_()
        weight[:, 0] = 0.2
        weight[0, 1] = 500.0
    return module


class Vanishing(nn.Module):
    """Finite as it is, NaN once the frozen .999 is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((1, 1), 0.999), requires_grad=False)
        self.head = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x) + 0 * torch.log(1 - self.factor)
        return output


@pytest.mark.parametrize(("precision", "bits"), [("float32", 29), ("bf16", 13), ("int8", 9)])
def test_a_bundle_in_each_precision(tmp_path: Path, precision: str, bits: int) -> None:
    module, (x, y) = model(), data()
    export(
        module, x[:8], batch_size=8, name="t", num_classes=2, folder=tmp_path, real_data=(x, y),
        frozen=precision,
    )  # fmt: skip
    bundle, _ = load(tmp_path)
    assert bundle.frozen is not None
    assert bundle.manifest.verification is not None
    assert 8 * (tmp_path / FROZEN_NAME).stat().st_size / bundle.frozen.size < bits
    exact = np.concatenate([p.detach().numpy().ravel() for p in module[0].parameters()])
    error = np.abs(bundle.frozen - exact).max() / np.abs(exact).max()
    assert error < {"float32": 1e-9, "bf16": 2**-8, "int8": 2**-4}[precision]
    said = bundle.manifest.verification.frozen
    assert said.startswith(f"{precision}: accuracy ") is (precision != "float32")
    assert ("on 250 held-out rows" in said) is (precision != "float32")


@pytest.mark.parametrize(
    ("module", "rows", "text"),
    [
        (blinded, ROWS, r"frozen in int8: accuracy 0\.\d+, (1|0\.9\d+) with the base in float32"),
        (lambda: nn.Linear(FEATURES, 2), ROWS, "frozen in int8: every parameter is trained, expec"),
        (model, 399, "frozen in int8: 399 rows, expected at least 400, half of them to measure on"),
    ],
    ids=["costs too much", "nothing to round", "too few rows"],
)
def test_what_is_refused(module: Callable[[], nn.Module], rows: int, text: str) -> None:
    with pytest.raises(ExportError, match=text):
        in_precision(subject(module(), rows), "int8", 0)


def test_a_metric_of_nan_is_a_loss() -> None:
    x, y = data()
    choice = chosen(2, None, None, "loss")
    taken = take(Vanishing(), x[:8], (x, y), batch_size=8, num_classes=2, choice=choice)
    with pytest.raises(ExportError, match=r"frozen in bf16: loss nan, .* loses more than"):
        in_precision(taken, "bf16", 0)


def test_an_unknown_token_is_refused_before_any_training(tmp_path: Path) -> None:
    tokens = torch.zeros(ROWS, 3, dtype=torch.int64)
    tokens[400, 1] = 50
    module = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 2))
    module[0].requires_grad_(False)
    with pytest.raises(ExportError, match=r"real_data: x.*400.*50"):
        export(
            module, tokens[:8], batch_size=8, name="t", num_classes=2, folder=tmp_path,
            real_data=(tokens, data()[1]), frozen="int8",
        )  # fmt: skip


def test_a_frozen_infinity() -> None:
    module = model()
    with torch.no_grad():
        module.get_parameter("0.0.bias")[3] = -torch.inf
    with pytest.raises(ExportError, match=r"'0\.0\.bias': frozen with NaN or inf, expected finite"):
        require_finite(subject(module))


def test_the_command_wants_rows(capsys: pytest.CaptureFixture[str]) -> None:
    words = "m:f --sample-shape 8 --batch-size 8 --num-classes 2 --name t --out t --frozen int8"
    with pytest.raises(SystemExit):
        main(list[str](words.split()))
    assert "--frozen int8 needs --data" in capsys.readouterr().err
