"""The mutants of a toy, the tests that reach its lines, and which mutants these tests let live."""

import json
from pathlib import Path

import pytest
from tools.bench.mutation.__main__ import Trees, main, pytest_in
from tools.bench.mutation.mutants import Mutant, mutants_of

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
OWN = """\
from sedge_cloud.runs.gate import Gate

def test_gate():
    assert Gate().waits(1) == 2 and Gate(1).waits(1) == 0
"""
FLEET = """\
import pytest
from sedge_cloud.runs.gate import Gate

@pytest.mark.fleet
def test_field():
    assert Gate().least == 3
"""
OTHER = """\
import pytest
from sedge_cloud.runs.gate import check

assert check(4, [])

def test_check():
    assert check(4, []) and not check(5, []) and not check(2, [])

def test_raises():
    with pytest.raises(ValueError):
        check(-2, [])

def test_failing():
    assert check(4, []) is None
"""
FLAKY = """\
from pathlib import Path
from sedge_cloud.runs.gate import check

def test_flaky():
    check(4, [])
    if Path({fails!r}).exists():
        Path({fails!r}).unlink()
        raise AssertionError
"""
TESTS = (
    "tests/cloud/runs/test_gate.py",
    "tests/cloud/runs/test_gate_fleet.py",
    "tests/cloud/test_check.py",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, text in {
        str(MODULE): SOURCE,
        "cloud/sedge_cloud/__init__.py": "",
        "cloud/sedge_cloud/runs/__init__.py": "",
        **dict(zip(TESTS, (OWN, FLEET, OTHER), strict=True)),
        "pytest.ini": "[pytest]\nmarkers =\n    slow\n    gpu\n    fleet\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("copies")


def mutant(before: str, after: str) -> Mutant:
    line = SOURCE[: SOURCE.index(before)].count("\n") + 1
    return Mutant(MODULE, line, SOURCE, SOURCE.replace(before, after))


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


def test_the_tests_that_reach_a_line_run_on_its_mutants(root: Path, copies: Path) -> None:
    trees = Trees(root, copies, 1)
    own, fleet, other = TESTS
    assert trees.reached.failed == [f"{other}::test_failing"]
    assert trees.tests(mutant("turns = max(0", "turns = max(1")) == [f"{own}::test_gate"]
    raising = mutant('raise ValueError(f"found {number + 1 - 1}")', "pass")
    assert trees.tests(raising) == [f"{other}::test_raises"]
    assert trees.killer(raising) == f"{other}::test_raises"
    field = mutant("] = 3", "] = 4")  # runs as the module is imported
    own_files, reaching = trees.tests(field)[:2], set(trees.tests(field)[2:])
    assert own_files == [own, fleet]
    assert reaching == {f"{own}::test_gate", f"{other}::test_check", f"{other}::test_raises"}
    assert trees.killer(field) in (f"{own}::test_gate", f"{fleet}::test_field")
    closed = mutant("return number >= Gate()", "return number < Gate()")
    assert trees.killer(closed) == other  # which cannot be collected
    unnoted = mutant("note.append(number)", "pass")
    assert trees.killer(unnoted) == ""
    assert (copies / "0" / MODULE).read_text() == SOURCE


def test_a_test_that_fails_once_kills_nothing(root: Path, copies: Path) -> None:
    fails = copies / "fails"
    (root / "tests/cloud/test_flaky.py").write_text(FLAKY.format(fails=str(fails)))
    trees = Trees(root, copies, 1)
    fails.touch()
    assert trees.killer(mutant("note.append(number)", "pass")) == ""
    assert not fails.exists()


@pytest.mark.slow
def test_what_survives_is_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number may be noted or not: no test asks for the note."""
    assert main(["--sample", "2", "--seed", "124", str(MODULE)], root) == 0
    *said, last = capsys.readouterr().out.splitlines()
    row = json.loads(last)
    assert row | {"seconds": 0} == {
        "sample": 2, "killed": 1, "survivors": [f"{MODULE}:23"], "seconds": 0, "seed": 124,
    }  # fmt: skip
    assert f"{TESTS[2]}::test_failing fails without a mutant" in said
    killed = [line for line in said if line.startswith("killed")]
    assert len(killed) == 1 and killed[0].endswith((TESTS[2], "::test_check", "::test_gate"))
    assert f"SURVIVED {MODULE}:23" in said and "-    note.append(number)" in said
    assert (root / MODULE).read_text() == SOURCE


def test_a_mutant_that_hangs_is_killed(root: Path) -> None:
    (root / TESTS[2]).write_text("import time\n\ndef test_check(): time.sleep(600)")
    assert pytest_in(root, [], [TESTS[2]], 0.6) == "not finished after 1 s"


def test_tests_that_do_not_run_at_all_end_it(root: Path, copies: Path) -> None:
    (root / "pytest.ini").write_text("[pytest]\naddopts = --none-such\n")
    with pytest.raises(SystemExit, match=r"do not run even without a mutant:[^$]+--none-such"):
        Trees(root, copies, 1)
