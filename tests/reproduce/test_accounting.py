"""FedPURIN's own byte count, taken from a coordinator's store."""

from pathlib import Path

import pytest
from rich.console import Console
from tests.reproduce.tiny import TinySetting
from tools.reproduce.cells import Cell, Table
from tools.reproduce.play import Trial, play
from tools.reproduce.tables import markdown, tables

from sedge_emulate.progress import Progress


@pytest.mark.slow
def test_half_of_the_elements_and_a_bit_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = {"up": (1.0, 2.0), "down": (3.0, 4.0)}
    cell = Cell("purin", "fedpurin", {"beta": 1}, best=50.0, accounted=published)
    table = Table("t", "T", "nowhere", TinySetting(1.0), 3, (cell,), 1.0, best_of="after")
    outcome = play(Trial(table, cell, 1, 3), tmp_path / "a", 1, Progress(Console(quiet=True)))
    n = outcome.parameters
    first, second, last = outcome.points
    assert first.accounted_up == pytest.approx(4 * n / 2 + n / 8, rel=0.01)
    assert first.accounted_down is not None and second.accounted_down is not None
    # Pixels that are always 0 are critical for nobody; after beta a device knows half of what is left.
    assert 2 * n < first.accounted_down <= 4 * n
    assert second.accounted_down < 0.7 * first.accounted_down
    assert last.accounted_down is not None  # the evaluation is planned as well
    assert all(point.sparse is not None for point in outcome.points)
    monkeypatch.setattr("tools.reproduce.tables.TABLES", {"t": table})
    assert [found.name for found, _ in tables([outcome])] == ["t"]
    lines = [line for line in markdown([outcome]).splitlines() if "before beta" in line]
    assert first.accounted_up is not None
    counted = first.accounted_up / 2**20
    wire = first.bytes_up / 4 / 2**20
    assert lines[0] == f"| up, before beta | {counted:.2f} | 1.00 | {wire:.2f} | {1 / wire:.2f} |"
