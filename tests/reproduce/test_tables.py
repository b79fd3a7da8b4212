"""Tables of outcomes unlike those that are stored: tests/bench/test_bench_pages.py compares theirs."""

import msgspec
import pytest
from tests.reproduce.outcomes import checkpoint, outcome, point
from tools.reproduce.cells import TABLES
from tools.reproduce.outcome import Outcome
from tools.reproduce.sections import sections
from tools.reproduce.tables import markdown

PURIN, BEYOND = TABLES["fedpurin-dir05"], TABLES["beyond-dir01"]
FIRST = msgspec.structs.replace(point(1, 0.5, 0.8), accounted_up=1.0, accounted_down=1.0)


@pytest.mark.parametrize(
    ("table", "cell", "line"),
    [
        ("fedobp-dir01", "fedobp", "| fedobp | 42 | best | **90.00** | 96.89 | - | - |"),
        ("fedpurin-dir05", "fedpurin", "| fedpurin | 42 | best | - | - | **80.00** | 92.15 |"),
    ],
)
def test_a_maximum_that_is_too_far_off_is_bold(table: str, cell: str, line: str) -> None:
    found = outcome(table, cell, (checkpoint(400, 0.9),), (FIRST,), rounds=400)
    assert line in markdown([found])


def test_outcomes_of_a_table_or_a_cell_that_is_gone_are_left_out() -> None:
    gone = [outcome("gone", "fedavg", (checkpoint(100, 0.9),)), outcome(BEYOND.name, "gone", ())]
    assert markdown(gone) == ""


def test_a_run_that_never_came_to_beta_has_nothing_after_it() -> None:
    found = outcome(PURIN.name, "fedpurin", (checkpoint(1, 0.9),), (FIRST,), rounds=1)
    (section,) = sections(PURIN, [found])
    assert section.lines[1] == ("up, after", "-", "1.76", "-", "-")


def ended(cell: str, seed: int, before: float, after: float, rounds: int = 40) -> Outcome:
    last = checkpoint(rounds, before, after)
    return outcome(BEYOND.name, cell, (last,), seed=seed, rounds=rounds)


def test_only_runs_of_equal_seed_and_length_are_compared() -> None:
    found = [
        ended("fedobp", 1, 0.80, 0.90),
        ended("energy", 1, 0.85, 0.89),
        ended("energy", 3, 0.10, 0.10),
        ended("soft", 3, 0.10, 0.10),
        ended("soft", 1, 0.10, 0.10, rounds=20),
    ]
    (section,) = sections(BEYOND, found)
    assert section.lines == (
        ("fedobp", "1", "80.00", "-", "90.00", "-", "40.00"),
        ("energy", "1", "85.00", "+5.00", "89.00", "-1.00", "42.50"),
    )


def test_runs_with_another_trainer_stand_for_themselves() -> None:
    other = msgspec.structs.replace(ended("energy", 1, 0.1, 0.1), backend="autograd")
    assert not list(sections(BEYOND, [ended("fedobp", 1, 0.8, 0.9), other]))
    assert "| energy, autograd | 1 | 40 | 10.00 |" in markdown([other])
