"""The coordinator's way for each kind of message is counted, and does not grow with a cohort."""

from pathlib import Path

from tools.bench.trace import STEPS, trace


def test_steps_take_one_commit_and_as_many_statements_for_any_cohort(tmp_path: Path) -> None:
    few, many = trace(tmp_path / "few", 2), trace(tmp_path / "many", 7)
    assert set(few) == set(STEPS)
    assert all(counts.calls > 0 for counts in few.values())
    assert few["last chunk"].commits == few["close"].commits == few["open"].commits == 1
    for step, most in {"close": 14, "plan": 6, "open": 5}.items():
        assert few[step].statements == many[step].statements <= most, step
    assert few["close"].calls <= 435, few["close"].functions.most_common(40)
    assert few["close"].functions["cloud/rounds/closing.py aggregate_and_close"] > 100
