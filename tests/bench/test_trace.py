"""The coordinator's way for each kind of message is counted, and does not grow with a cohort."""

from pathlib import Path

from tools.bench.trace import STEPS, trace


def test_every_step_is_counted(tmp_path: Path) -> None:
    steps = trace(tmp_path, 2)
    assert set(steps) == set(STEPS)
    assert all(row["calls"] > 0 for row in steps.values())
    assert steps["last chunk"]["commits"] == steps["open"]["commits"] == 1
