"""Verification: a small fault of a program is seen; batches are replaced only where a kink is proven."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_export import export
from sedge_export.lowering.target import TARGETS
from sedge_export.programs import Program
from sedge_export.subject.batches import PaddedBatch
from sedge_export.subject.network import Network
from sedge_export.verification import kinks
from sedge_export.verification.eager import Eager
from sedge_export.verification.verify import MAX_RETRIES, STEPS
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.bundle import ONNXRUNTIME, BundleManifest
from sedge_protocol.wire.programs import Signature

Outputs: TypeAlias = dict[str, NDArray[np.float32]]
Spoil: TypeAlias = Callable[[Layout, Outputs], None]

BATCH = 4
IMAGES = torch.randn(6, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def smooth() -> nn.Module:
    """A network without a kink."""
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh())
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(64, 3))


class Undecided(nn.Module):
    """A ReLU of what is 0 in exact arithmetic: only rounding says whether it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, 3) of x (B, 1, 6, 6)."""
        flat = 1.1 * x.flatten(1)
        logits: Tensor = self.last(flat)
        difference = logits.cumsum(1)[:, 2:] - logits.flip(1).cumsum(1)[:, 2:]
        return logits + torch.relu(difference)


Spoiled = Callable[[Spoil, nn.Module], None]


@pytest.fixture
def spoiled(monkeypatch: pytest.MonkeyPatch) -> Spoiled:
    """Change what each ``gradient`` program returns."""

    def use(spoil: Spoil, model: nn.Module) -> None:
        layout = Network(model, CLASSIFICATION).layout
        right = TARGETS[ONNXRUNTIME].load

        def load(data: bytes, signature: Signature) -> Program:
            program = right(data, signature)

            def run(feed: Outputs) -> Outputs:
                found = program(feed)
                spoil(layout, found)
                return found

            return run if signature.program == "gradient" else program  # type: ignore[return-value]

        monkeypatch.setattr(TARGETS[ONNXRUNTIME], "load", load)

    return use


def made(model: nn.Module, folder: Path) -> BundleManifest:
    return export(model, IMAGES, batch_size=BATCH, name="m", num_classes=3, folder=folder / "b")


def scaled(tensor: str, factor: float, layout: Layout, found: Outputs) -> None:
    """Multiply the gradient of one tensor."""
    found["gradient"][layout.by_name[tensor].slice] *= factor


def moved(layout: Layout, found: Outputs) -> None:
    """One element of one tensor's gradient in the place of the next."""
    part = found["gradient"][layout.by_name["0.weight"].slice]
    part[:2] = part[1::-1]


def mistaken(key: str, _layout: Layout, found: Outputs) -> None:
    """A result off by a thousandth."""
    found[key] = found[key] * np.float32(1.001)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (partial(scaled, "0.weight", 0.0), "gradient of '0.weight' is zero"),
        (partial(scaled, "4.bias", 1.001), "gradient of '4.bias' is wrong"),
        (moved, "gradient of '0.weight' is wrong"),
        (partial(mistaken, "loss"), "the loss is wrong"),
        (partial(mistaken, "statistics"), "the statistic '1.running_"),
    ],
    ids=["lost", "thousandth", "moved", "loss", "statistic"],
)
def test_a_fault_is_seen(spoil: Spoil, message: str, spoiled: Spoiled, tmp_path: Path) -> None:
    model = smooth()
    spoiled(spoil, model)
    with pytest.raises(ExportError, match=f"program 'gradient' disagrees with torch: .*{message}"):
        made(model, tmp_path)
    assert not (tmp_path / "b").exists()


def once(tensor: str, calls: list[int], layout: Layout, found: Outputs) -> None:
    """Wrong on the first batch, and right on all others."""
    calls.append(1)
    if len(calls) == 1:
        scaled(tensor, 3.0, layout, found)


def test_a_batch_is_replaced_where_a_kink_is_proven(spoiled: Spoiled, tmp_path: Path) -> None:
    calls: list[int] = []
    spoiled(partial(once, "last.weight", calls), Undecided())
    checked = made(Undecided(), tmp_path).verification
    assert checked is not None
    assert checked.kinks[0] == "relu"
    assert STEPS < len(calls) <= STEPS + MAX_RETRIES


def test_no_batch_is_replaced_without_one(spoiled: Spoiled, tmp_path: Path) -> None:
    model = smooth()
    spoiled(partial(once, "4.weight", []), model)
    with pytest.raises(ExportError, match=r"gradient of '4\.weight' is wrong"):
        made(model, tmp_path)


def pooled(pool: nn.Module) -> nn.Module:
    """Pools of numbers that are equal but for rounding."""

    class Close(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.full((1,), 1.3))
            self.last = nn.Linear(9, 3)

        def forward(self, x: Tensor) -> Tensor:
            near = (x * 0 + 0.7) * self.scale * (1 + 1e-9 * x)
            output: Tensor = self.last(pool(near).flatten(1))
            return output

    return Close()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (smooth(), None),
        (Undecided(), "relu"),
        (pooled(nn.MaxPool2d(2)), "max_pool2d_with_indices"),
        (pooled(nn.AvgPool2d(2)), None),
    ],
    ids=["none", "relu", "maximum", "mean"],
)
def test_kinks_are_proven(model: nn.Module, expected: str | None) -> None:
    layout = Network(model, CLASSIFICATION).layout
    batch = PaddedBatch(IMAGES, torch.arange(6) % 3, torch.ones(6), 6)
    exact = Eager(model, layout, CLASSIFICATION, kind=torch.float64)
    assert kinks.found(exact, Eager(model, layout, CLASSIFICATION), batch) == expected
