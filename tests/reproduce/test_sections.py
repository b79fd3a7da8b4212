"""The tables below a table."""

import msgspec
import pytest
from tests.reproduce.outcomes import checkpoint, outcome, point, size
from tools.reproduce.cells import TABLES
from tools.reproduce.outcome import Outcome
from tools.reproduce.sections import Section, first_rounds, sections
from tools.reproduce.tables import markdown

LOGS, LONG, PURIN, SIZED, BEYOND = (
    TABLES[name]
    for name in (
        "logs-dir01",
        "fedpurin-dir05",
        "purin-bytes-dir05",
        "subflot-dir01",
        "beyond-dir01",
    )
)


def only(found: list[Section]) -> Section:
    assert len(found) == 1
    return found[0]


def test_rounds_that_are_known_singly_are_shown_once() -> None:
    points = (point(1, 0.2619, 0.8627), point(2, 0.0935, 0.885))
    found = outcome("logs-dir01", "fedobp-old", (checkpoint(2, 0.6),), points)
    (number, *values), _ = first_rounds(found)
    assert number == 1
    assert values == pytest.approx([26.19, 26.19, 86.27, 86.33])
    text = markdown([outcome("logs-dir01", "fedobp-old", (), points, rounds=2), found])
    assert text.count("| 2 | 9.35 | 9.76 | 88.50 | 88.57 |") == 1
    other = outcome("logs-dir01", "fedobp-old", (checkpoint(2, 0.6),), points, seed=1)
    assert not list(first_rounds(other))


def test_bytes_as_counted_on_both_sides_of_beta() -> None:
    mib = 2.0**20
    points = tuple(
        msgspec.structs.replace(
            point(number, 0.5, 0.6),
            accounted_up=up * mib,
            accounted_down=down * mib,
            bytes_up=round(2 * mib),  # of two devices
            bytes_down=round(4 * mib),
        )
        for number, (up, down) in enumerate([(2.4, 4.0)] * 10 + [(1.8, 0.5)] * 2, start=1)
    )
    found = outcome("purin-bytes-dir05", "exact", (checkpoint(12, 0.9),), points, rounds=12)
    lines = only(list(sections(PURIN, [found]))).lines
    assert lines == (
        ("up, before beta", "2.40", "2.38", "1.00", "2.38"),
        ("up, after", "1.80", "1.76", "1.00", "1.76"),
        ("down, before beta", "4.00", "4.34", "2.00", "2.17"),
        ("down, after", "0.50", "0.69", "2.00", "0.34"),
        ("up and down, before beta", "6.40", "6.72", "3.00", "2.24"),
        ("up and down, after", "2.30", "2.45", "3.00", "0.82"),
    )


def test_a_run_that_never_came_to_beta_has_nothing_after_it() -> None:
    points = (msgspec.structs.replace(point(1, 0.5, 0.6), accounted_up=1.0, accounted_down=1.0),)
    found = outcome("fedpurin-dir05", "fedpurin", (checkpoint(1, 0.9),), points, rounds=1)
    assert only(list(sections(LONG, [found]))).lines[1] == ("up, after", "-", "1.76", "-", "-")


def test_the_widths_of_a_run() -> None:
    found = msgspec.structs.replace(
        outcome("subflot-dir01", "heterofl", (checkpoint(30, 0.9),)),
        sizes=(size(0.0, 1000, 4_000_000), size(0.5, 250, 1_000_000)),
    )
    lines = only(list(sections(SIZED, [found]))).lines
    assert [line[:5] for line in lines] == [
        ("0", "5", "1,000", "4.00 M", "1.00"),
        ("0.5", "5", "250", "1.00 M", "0.25"),
    ]
    assert lines[1][5:] == ("1.00 kB", "2.00 kB", "50.00", "75.00")


def ended(cell: str, seed: int, before: float, after: float, rounds: int = 40) -> Outcome:
    return outcome(
        BEYOND.name, cell, (checkpoint(rounds, before, after),), seed=seed, rounds=rounds
    )


def test_methods_are_compared_seed_by_seed() -> None:
    found = [
        ended("fedobp", 1, 0.80, 0.90),
        ended("fedobp", 2, 0.70, 0.92),
        ended("energy", 1, 0.85, 0.89),
        ended("energy", 2, 0.73, 0.92),
        ended("energy", 3, 0.10, 0.10),  # nothing to compare it with
        ended("soft", 3, 0.10, 0.10),
        ended("soft", 1, 0.10, 0.10, rounds=20),
    ]
    assert only(list(sections(BEYOND, found))).lines == (
        ("fedobp", "2", "75.00", "-", "91.00", "-", "37.50"),
        (
            "energy",
            "2",
            "79.00",
            "+4.00 (+3.00 to +5.00)",
            "90.50",
            "-0.50 (-1.00 to +0.00)",
            "39.50",
        ),
    )


def test_runs_with_another_trainer_stand_for_themselves() -> None:
    other = msgspec.structs.replace(ended("energy", 1, 0.1, 0.1), backend="autograd")
    assert not list(sections(BEYOND, [ended("fedobp", 1, 0.8, 0.9), other]))
    assert "| energy, autograd | 1 | 40 | 10.00 |" in markdown([other])


def test_one_method_alone_is_compared_with_nothing() -> None:
    assert not list(sections(BEYOND, [ended("fedobp", 1, 0.8, 0.9)]))
    assert not list(sections(LOGS, [outcome(LOGS.name, "local", (checkpoint(100, 0.9),))]))
