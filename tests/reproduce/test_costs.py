"""What a width costs."""

from pathlib import Path

import pytest
from rich.console import Console
from tests.reproduce.tiny import TINY
from tools.reproduce.cells import Cell
from tools.reproduce.costs import multiply_adds
from tools.reproduce.play import Trial, play

from sedge_emulate.config import ModelConfig
from sedge_emulate.model import ModelSource
from sedge_emulate.progress import Progress


@pytest.mark.slow
def test_each_width_has_its_devices_and_its_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(TINY.setting), "model", ModelConfig(batch_size=16, widths=(0.0, 0.5)))
    cell = Cell("heterofl", "heterofl", {"dropped": [0.0, 0.5]})
    found = play(Trial(TINY, cell, 42, 1), tmp_path, 1, Progress(Console(quiet=True)))
    whole, half = found.sizes
    assert (whole.dropped, half.dropped) == (0.0, 0.5)
    assert (whole.devices, half.devices) == (2, 2)
    assert whole.multiply_adds == 64 * 200 + 200 * 10
    assert half.multiply_adds == 64 * 100 + 100 * 10
    assert whole.parameters == 64 * 200 + 200 + 200 * 10 + 10
    assert half.parameters == 64 * 100 + 100 + 100 * 10 + 10
    assert half.bytes_up < 0.6 * whole.bytes_up
    assert 0 < half.before < 1


def test_multiplications_of_a_convolution() -> None:
    source = ModelSource("avgcnn", "", Path(), (1, 28, 28), 10, "class", ModelConfig())
    first, second = 24 * 24 * 32 * 25, 8 * 8 * 64 * 32 * 25
    assert multiply_adds(source, 0.0) == first + second + 1024 * 512 + 512 * 10
