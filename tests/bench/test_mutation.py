"""The mutants of a toy, and which of them its tests let live."""

import json
from pathlib import Path

import pytest
from tools.bench.mutation import failure_of, main, mutants_of, stages_of

MODULE = Path("cloud/sedge_cloud/runs/gate.py")
SOURCE = '''\
"""A gate."""

from dataclasses import dataclass
from typing import Annotated


@dataclass(frozen=True)
class Gate:
    """Open from a number on."""

    least: Annotated[int, range(9)] = 3

    def waits(self, number: int) -> int:
        """How many turns until it opens."""
        turns = max(0, self.least - number)
        return turns


def check(number: int, note: list[int]) -> bool:
    """Whether a number may pass; it is noted."""
    if number < 0:
        raise ValueError(f"found {number + 1 - 1}")
    note.append(number)
    return number >= Gate().least and not number % 2
'''
MIRRORED = """\
from sedge_cloud.runs.gate import Gate

def test_gate():
    assert Gate().waits(1) == 2 and Gate(1).waits(1) == 0
"""
WIDER = """\
import pytest
from sedge_cloud.runs.gate import check

def test_check():
    assert check(4, []) and not check(5, []) and not check(2, [])
    with pytest.raises(ValueError):
        check(-2, [])
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        str(MODULE): SOURCE,
        "cloud/sedge_cloud/__init__.py": "",
        "cloud/sedge_cloud/runs/__init__.py": "",
        "tests/cloud/runs/test_gate.py": MIRRORED,
        "tests/cloud/test_check.py": WIDER,
        "pytest.ini": "[pytest]\nmarkers =\n    slow\n    gpu\n    fleet\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_mutants_are_small_and_of_what_runs(root: Path) -> None:
    found = mutants_of(root, MODULE)
    changes = [tuple(line[1:].strip() for line in m.diff().splitlines()[2:4]) for m in found]
    assert [after for before, after in changes if before.startswith("least")] == [
        "least: Annotated[int, range(10)] = 3",
        "least: Annotated[int, range(9)] = 4",
    ]
    assert len(set(changes)) == len(changes) == 15
    assert ('raise ValueError(f"found {number + 1 - 1}")', "pass") in changes
    for mutant in found:
        compile(mutant.after, "mutant", "exec")
        assert "frozen=True" in mutant.after and "1 + " not in mutant.after


def test_tests_run_nearest_first(root: Path) -> None:
    nearest = ["tests/cloud/runs/test_gate.py"], ["tests/cloud/runs"], ["tests/cloud"]
    assert [list(stage) for stage in stages_of(root, MODULE)] == list(nearest)


@pytest.mark.slow
def test_what_survives_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number may be noted or not: no test asks for the note."""
    assert main(["--sample", "2", "--seed", "124", str(MODULE)], root) == 0
    *said, last = capsys.readouterr().out.splitlines()
    row = json.loads(last)
    assert row | {"seconds": 0} == {
        "sample": 2, "killed": 1, "survivors": [f"{MODULE}:23"], "seconds": 0, "seed": 124,
    }  # fmt: skip
    killed = [line for line in said if line.startswith("killed")]
    assert len(killed) == 1 and killed[0].endswith(("::test_check", "::test_gate"))
    assert f"SURVIVED {MODULE}:23" in said and "-    note.append(number)" in said
    assert (root / MODULE).read_text() == SOURCE


def test_fleets_run_only_as_a_modules_own_tests(root: Path) -> None:
    check = root / "tests/cloud/test_check.py"
    check.write_text("import pytest\n\n@pytest.mark.fleet\ndef test_check(): assert False")
    assert "FAILED tests/cloud/test_check.py::test_check" in failure_of(root, [str(check)], 60)
    check.rename(root / "tests/cloud/runs/test_check.py")
    (root / "tests/cloud/runs/test_gate.py").unlink()
    assert failure_of(root, ["tests/cloud/runs"], 60) == ""  # where none is left, none fails


def test_a_mutant_that_hangs_is_killed(root: Path) -> None:
    check = root / "tests/cloud/test_check.py"
    check.write_text("import time\n\ndef test_check(): time.sleep(600)")
    assert failure_of(root, [str(check)], 0.5) == "not finished after 0.5 s"


@pytest.mark.slow
def test_without_a_mutant_the_tests_must_pass(root: Path) -> None:
    (root / "tests/cloud/test_check.py").write_text("def test_check(): assert False")
    with pytest.raises(
        SystemExit,
        match=r"tests/cloud fail even without a mutant:[^$]+def test_check\(\): assert False",
    ):
        main(["--sample", "1", str(MODULE)], root)
