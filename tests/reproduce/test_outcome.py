"""The files of reproduced cells."""

import json
from pathlib import Path

import pytest
from tests.reproduce.outcomes import checkpoint, outcome, point
from tools.reproduce.outcome import read, write

from sedge_protocol.errors import StorageError


def test_an_outcome_comes_back_as_it_was(tmp_path: Path) -> None:
    wanted = outcome("t", "c", (checkpoint(100, 0.9),), (point(1, 0.2, 0.4, sparse=0.3),))
    path = write(wanted, tmp_path / "new")
    assert path.name == "t-c-seed42-100.json"
    assert read(path) == wanted
    assert [child.name for child in path.parent.iterdir()] == [path.name]


def test_a_file_is_json_with_a_line_for_each_round(tmp_path: Path) -> None:
    text = write(outcome("t", "c", (checkpoint(100, 0.9),)), tmp_path).read_text()
    assert json.loads(text)["points"][1]["before"] == 0.7
    assert '\n    {"round":2,"before":0.7,' in text


def test_no_file_is_no_outcome_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert read(path) is None
    path.write_text('{"table": 1}')
    with pytest.raises(StorageError, match=r"x\.json.*delete it"):
        read(path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="file"):
        write(outcome("t", "c", ()), tmp_path / "file")
