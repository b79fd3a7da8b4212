"""``python -m tools.reproduce`` from its words to its files."""

import argparse
from pathlib import Path

import msgspec
import pytest
from tests.reproduce.outcomes import outcome
from tests.reproduce.tiny import TINY
from tools.reproduce import command, tables
from tools.reproduce.__main__ import main, parser
from tools.reproduce.cells import SHORT, TABLES
from tools.reproduce.command import chosen_trials
from tools.reproduce.outcome import read

from sedge_protocol.errors import ConfigError

pytestmark = pytest.mark.fleet


def parsed(*words: str) -> argparse.Namespace:
    return parser().parse_args(words)


def test_a_table_is_all_its_cells_and_seeds() -> None:
    trials = list(chosen_trials(parsed("fedpurin-dir05")))
    table = TABLES["fedpurin-dir05"]
    assert len(trials) == len(table.cells) * 3
    assert {trial.seed for trial in trials} == {1, 2, 3}
    assert {trial.rounds for trial in trials} == {200}


def test_words_narrow_it_down_and_the_outcomes_command_says_so() -> None:
    asked = ("logs-dir01", "--only", "fedavg", "--seed", "7", "--rounds", "3")
    (trial,) = chosen_trials(parsed(*asked))
    assert trial.file == "logs-dir01-fedavg-seed7-3.json"
    found = outcome("logs-dir01", "fedavg", (), seed=7, rounds=3)
    assert found.command.split() == ["python", "-m", "tools.reproduce", *asked]


def test_another_backend_is_named_in_the_command_and_in_the_file() -> None:
    words = ("logs-dir01", "--only", "fedavg", "--rounds", "3", "--backend", "autograd")
    (trial,) = chosen_trials(parsed(*words))
    assert trial.file == "logs-dir01-fedavg-seed42-3-autograd.json"
    found = msgspec.structs.replace(outcome("t", "c", (), rounds=3), backend="autograd")
    assert found.command.endswith(" --rounds 3 --backend autograd")


def test_the_short_form() -> None:
    trials = list(chosen_trials(parsed("--short")))
    assert [(trial.table.name, trial.cell.name) for trial in trials] == list(SHORT)
    assert {trial.rounds for trial in trials} == {10}


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["nothing"], "table"),
        ([], "reproduce"),
        (["--short", "logs-dir01"], "reproduce"),
        (["logs-dir01", "--only", "fedx"], "--only"),
        (["logs-dir01", "--rounds", "0"], "--rounds"),
        (["logs-dir01", "--seed", "-1"], "--seed"),
        (["logs-dir01", "--seed", str(2**32)], "--seed"),
        (["logs-dir01", "--workers", "-1"], "--workers"),
        (["logs-dir01", "--backend", "../elsewhere"], "--backend"),
        (["--short", "--only", "lg-fedavg"], "--only"),
    ],
)
def test_words_that_make_no_sense(words: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        list(chosen_trials(parsed(*words)))
    assert caught.value.key == key


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "fedobp-old" in capsys.readouterr().out


def test_a_cell_is_played_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (command, tables):
        monkeypatch.setattr(module, "TABLES", {TINY.name: TINY})
    words = [
        "tiny", "--workers", "1", "--backend", "autograd",
        "--out", str(tmp_path), "--results", str(tmp_path / "results"),
    ]  # fmt: skip
    assert main(words) == 0
    (path,) = (tmp_path / "results").iterdir()
    found = read(path)
    assert found is not None
    assert found.file == path.name == "tiny-fedavg-seed42-3-autograd.json"
    assert (found.trainer, found.backend) == ("autograd", "autograd")
    assert [point.round for point in found.checkpoints] == [2, 3]
    assert [point.round for point in found.points] == [1, 2, 3]
    assert found.points[0].before < found.checkpoints[-1].before <= 1
    assert found.bytes_up > sum(point.bytes_up for point in found.points) > 0
    assert not list((tmp_path / "state").iterdir())
    assert (tmp_path / "reproduced.html").exists()
    written = path.stat().st_mtime_ns
    assert main(words) == 0  # nothing is played again
    assert path.stat().st_mtime_ns == written
    assert "fedavg" in capsys.readouterr().out
