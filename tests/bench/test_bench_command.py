"""One command runs every benchmark: options, figures, the line of JSON, the exit status, what is kept."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from tools.bench import __main__ as command
from tools.bench import harness
from tools.bench.harness import Figure, Result, at_most, bench, chosen


def figures(found: Result) -> list[Figure]:
    return [Figure("the largest", f"{max(found['numbers'])}", (at_most(4, max(found["numbers"])),))]


@bench("A title", figures)
def measure(*names: str, numbers: Sequence[int] = (1, 2), out: Path | None = None) -> Result:
    """Take what is given."""
    return {"names": chosen(names, ("a", "b")), "numbers": numbers, "out": out and str(out)}


THIS = harness.BENCHMARKS[measure.__module__]


@pytest.mark.parametrize(
    ("words", "status", "line", "found"),
    [
        ([], 0, "the largest: 2; at most 4: met", (["a", "b"], [1, 2], None)),
        (
            ["b", "--numbers", "3", "5", "--out", "there"], 1,
            "the largest: 5; at most 4: **missed**", (["b"], [3, 5], "there"),
        ),
    ],
)  # fmt: skip
def test_a_benchmark_says_its_figures_and_ends_with_its_result(
    words: list[str],
    status: int,
    line: str,
    found: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert THIS.run(words) == status
    first, last = capsys.readouterr().out.splitlines()
    assert first == line
    assert tuple(json.loads(last).values()) == found


@pytest.mark.parametrize(
    ("word", "said"),
    [("c", "found 'c', expected one of a, b"), ("--numbers=x", "invalid int value: 'x'")],
)
def test_bad_options_are_refused(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        THIS.run([word])
    assert said in capsys.readouterr().err


def test_the_list_has_every_benchmark_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    names = [line.partition(" ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {*harness.PAGE, *command.KEPT, "pages", "mutation"} <= set(names)


def test_what_is_no_command_is_refused_with_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["nothing"]) == 2
    assert "python -m tools.bench --list" in capsys.readouterr().err


def test_a_result_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert command.main(["--keep", "machine"]) == 0
    assert json.loads((tmp_path / "machine.json").read_text())["cores"]
    assert command.main(["--keep", "machine", "--wrong"]) == 2
    assert json.loads((tmp_path / "machine.json").read_text())["cores"]
