"""The page of reproduced tables follows from the results beside it."""

from pathlib import Path

from tests.reproduce.outcomes import checkpoint, outcome
from tools.bench.reproduced import HEAD, outcomes, page, published
from tools.reproduce.outcome import write


def test_what_was_not_published_is_left_out() -> None:
    short = outcome("logs-dir01", "fedavg", (checkpoint(10, 0.7),), rounds=10)
    whole = outcome("logs-dir01", "fedavg", (checkpoint(100, 0.8489),))
    head, _, *lines = published([short, whole])
    assert head.startswith("| of | method | seed |")
    assert lines == [
        "| Released logs, Fashion-MNIST, Dir(0.1) | fedavg | 42 | 100 | 84.89 | 84.89 | 95.00 |  |"
    ]


def test_every_result_is_in_it(tmp_path: Path) -> None:
    write(outcome("logs-dir01", "local", (checkpoint(100, 0.9),)), tmp_path)
    write(outcome("logs-dir01", "fedavg", (checkpoint(100, 0.8),)), tmp_path)
    found = page(outcomes(tmp_path))
    assert found.startswith(HEAD)
    assert "| local | 42 | 100 | **90.00** | 94.78 |" in found
    assert "| fedavg | 42 | 100 | **80.00** | 84.89 |" in found
