"""The setting for several widths, played on less: every device has the form that it was dealt."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tools.reproduce.cells import TABLES
from tools.reproduce.outcome import Outcome
from tools.reproduce.play import Trial, play
from tools.reproduce.sized import DROPPED, SizedSetting

from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import Dataset, digits
from sedge_emulate.data.split import Indices
from sedge_emulate.progress import Progress

TABLE = TABLES["subflot-dir01"]


class OnDigits(SizedSetting):
    """Digits, and a network of two layers."""

    checkpoint = 2
    model = ModelConfig(batch_size=16, widths=DROPPED)

    def dataset(self) -> Dataset:
        return digits()

    def parts(self, targets: Indices, seed: int) -> list[tuple[Indices, Indices]]:
        order = np.random.default_rng(seed).permutation(len(targets))[:800].reshape(-1, 40)
        return [(mine[:30], mine[30:]) for mine in order]


def test_everyone_has_a_share_of_the_images() -> None:
    targets = np.random.default_rng(0).integers(0, 10, 70_000)
    parts = SizedSetting(0.5).parts(targets, 1)
    assert len(parts) == SizedSetting.devices
    everything = np.concatenate([np.concatenate(part) for part in parts])
    assert len(np.unique(everything)) == len(everything) == 20_000


@pytest.mark.fleet
def test_narrower_models_cost_fewer_bytes(tmp_path: Path) -> None:
    table = replace(TABLE, setting=OnDigits(0.1))
    cells = {cell.name: cell for cell in table.cells}
    quiet, found = Progress(Console(quiet=True)), dict[str, Outcome]()
    for name in ("whole", "smallest", "subflot-assign"):
        found[name] = play(Trial(table, cells[name], 1, 2, "autograd"), tmp_path / name, 1, quiet)
    up = {name: outcome.bytes_up for name, outcome in found.items()}
    assert up["smallest"] < 0.5 * up["whole"]
    assert up["smallest"] < up["subflot-assign"] < up["whole"]
    for outcome in found.values():
        assert outcome.participants == SizedSetting.devices
        assert outcome.checkpoints[-1].after > 0.3
