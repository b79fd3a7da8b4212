"""The user's own code by name, and what becomes of the import path."""

import sys
from pathlib import Path

import pytest

from sedge_protocol.errors import ConfigError
from sedge_protocol.host.user_code import importable, imported


def test_a_function_of_a_module_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "own_code_here.py").write_text("def answer():\n    return 42\n")
    path = list(sys.path)
    assert imported("own_code_here:answer", tmp_path, "key")() == 42
    assert sys.path == path


def test_the_path_is_restored_after_an_error(tmp_path: Path) -> None:
    path = list(sys.path)
    with pytest.raises(ValueError), importable(tmp_path):
        assert sys.path[0] == str(tmp_path)
        raise ValueError
    assert sys.path == path


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("x = 1", "has no 'answer'"),
        ("answer = 1", "a function, not a int"),
    ],
)
def test_what_cannot_be_imported_is_named(source: str, why: str, tmp_path: Path) -> None:
    name = f"own_code_{abs(hash(source))}"
    (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(ConfigError, match=f"^key: found '{name}:answer', expected .*{why}"):
        imported(f"{name}:answer", tmp_path, "key")
