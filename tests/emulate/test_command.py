"""``sedge-emulate reproduce`` from its words to its files."""

import argparse
from pathlib import Path

import pytest
from tests.emulate.tiny import TINY

from sedge_emulate.__main__ import main
from sedge_emulate.reproduce import command, tables
from sedge_emulate.reproduce.arguments import add_arguments
from sedge_emulate.reproduce.cells import SHORT, TABLES
from sedge_emulate.reproduce.command import wanted
from sedge_emulate.reproduce.outcome import read
from sedge_protocol.errors import ConfigError


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_a_table_is_all_its_cells_and_seeds() -> None:
    wishes = list(wanted(parsed("fedpurin-dir05")))
    table = TABLES["fedpurin-dir05"]
    assert len(wishes) == len(table.cells) * 3
    assert {wish.seed for wish in wishes} == {1, 2, 3}
    assert {wish.rounds for wish in wishes} == {200}


def test_words_narrow_it_down_and_the_command_says_so() -> None:
    (wish,) = wanted(parsed("logs-dir01", "--only", "fedavg", "--seed", "7", "--rounds", "3"))
    assert wish.command == "sedge-emulate reproduce logs-dir01 --only fedavg --seed 7 --rounds 3"
    (again,) = wanted(parsed(*wish.command.split()[2:]))
    assert again == wish


def test_another_backend_is_named_in_the_command_and_in_the_file() -> None:
    words = ("logs-dir01", "--only", "fedavg", "--rounds", "3", "--backend", "autograd")
    (wish,) = wanted(parsed(*words))
    assert wish.command.endswith(" --rounds 3 --backend autograd")
    assert wish.file == "logs-dir01-fedavg-seed42-3-autograd.json"
    (again,) = wanted(parsed(*wish.command.split()[2:]))
    assert again == wish


def test_the_short_form() -> None:
    wishes = list(wanted(parsed("--short")))
    assert [(wish.table.name, wish.cell.name) for wish in wishes] == list(SHORT)
    assert {wish.rounds for wish in wishes} == {10}


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
        list(wanted(parsed(*words)))
    assert caught.value.key == key


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    assert "fedobp-old" in capsys.readouterr().out


def test_a_cell_is_played_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (command, tables):
        monkeypatch.setattr(module, "TABLES", {TINY.name: TINY})
    words = [
        "reproduce", "tiny", "--workers", "1",
        "--out", str(tmp_path), "--results", str(tmp_path / "results"),
    ]  # fmt: skip
    assert main(words) == 0
    (path,) = (tmp_path / "results").iterdir()
    found = read(path)
    assert found is not None
    assert found.file == path.name == "tiny-fedavg-seed42-3.json"
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
