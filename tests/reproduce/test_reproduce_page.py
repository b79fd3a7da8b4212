"""The page of reproduced tables."""

from tests.reproduce.outcomes import checkpoint, outcome
from tools.reproduce.page import page


def test_a_table_and_its_plots() -> None:
    cells = ("logs-dir01", "fedavg"), ("logs-dir01", "local"), ("fedobp-dir01", "fedobp")
    found = page([outcome(*cell, (checkpoint(100, 0.9),)) for cell in cells])
    assert (found.count("<svg"), found.count("<table")) == (2 * 3, 2)
    assert "84.89" in found and "fedavg, seed 42" in found
    assert "<script" not in found


def test_nothing_reproduced_is_an_empty_page() -> None:
    assert "<h1>" in page([])
