"""Published figures beside reproduced ones."""

from tests.reproduce.outcomes import checkpoint, outcome, point
from tools.reproduce.cells import TABLES
from tools.reproduce.tables import best, markdown, rows, tables

LOGS, PRINTED, PURIN = (TABLES[name] for name in ("logs-dir01", "fedobp-dir01", "fedpurin-dir05"))


def test_a_checkpoint_stands_beside_what_was_published_of_it() -> None:
    found = outcome("logs-dir01", "fedavg", (checkpoint(100, 0.8489), checkpoint(200, 0.90)))
    first, second = rows(LOGS, [found])
    assert first.texts[:5] == ("fedavg", "42", "100", "84.89", "84.89")
    assert second.texts[2:5] == ("200", "90.00", "85.24")
    assert not first.differs
    assert second.differs
    assert (first.texts[8:], second.texts[8:]) == (("-",) * 3, ("1.00 MB", "2.00 MB", "1:01"))


def test_what_was_printed_as_a_maximum_is_one_here_too() -> None:
    found = outcome(
        "fedobp-dir01",
        "fedobp",
        (checkpoint(100, 0.95), checkpoint(200, 0.968), checkpoint(300, 0.9)),
        rounds=400,
    )
    assert best(PRINTED, found) == 0.968
    last = list(rows(PRINTED, [found]))[-1]
    assert last.texts[2:5] == ("best", "96.80", "96.89")
    assert not last.differs


def test_a_shorter_run_has_no_maximum_to_compare() -> None:
    found = outcome("fedobp-dir01", "fedobp", (checkpoint(10, 0.7),), rounds=10)
    assert [row.texts[2] for row in rows(PRINTED, [found])] == ["10"]


def test_a_maximum_over_rounds_after_training() -> None:
    found = outcome(
        "fedpurin-dir05",
        "fedpurin",
        (checkpoint(50, 0.9),),
        (point(1, 0.1, 0.925, 0.5),),
        rounds=200,
    )
    last = list(rows(PURIN, [found]))[-1]
    assert last.texts[2:7] == ("best", "-", "-", "92.50", "92.15")


def test_what_was_dropped_is_shown_and_its_command_is_not() -> None:
    table = TABLES["beyond-dir01"]
    assert table.dropped and not {cell.name for cell in table.cells} & set(table.dropped)
    ideas = ("fedobp", "energy", table.dropped[0])
    found = [outcome(table.name, name, (checkpoint(20, 0.9),), seed=1, rounds=20) for name in ideas]
    assert [row.texts[0] for row in rows(table, found)] == list(ideas)
    text = markdown(found)
    assert "--only energy" in text and f"--only {table.dropped[0]}" not in text
    assert f"no longer in the code: {', '.join(table.dropped)}." in text
    assert [line.split(" | ")[0] for line in text.splitlines() if " | 1 | 90.00 | " in line] == [
        f"| {name}" for name in ideas
    ]


def test_tables_and_cells_keep_their_order() -> None:
    outcomes = [
        outcome("fedobp-dir01", "fedobp", (checkpoint(100, 0.9),)),
        outcome("logs-dir01", "fedper", (checkpoint(100, 0.9),), seed=2),
        outcome("logs-dir01", "fedper", (checkpoint(100, 0.9),), seed=1),
        outcome("logs-dir01", "local", (checkpoint(100, 0.9),)),
        outcome("gone", "x", ()),
    ]
    found = [(table.name, [(o.cell, o.seed) for o in mine]) for table, mine in tables(outcomes)]
    assert found == [
        ("logs-dir01", [("local", 42), ("fedper", 1), ("fedper", 2)]),
        ("fedobp-dir01", [("fedobp", 42)]),
    ]


def test_markdown_marks_what_is_too_far_off() -> None:
    text = markdown([outcome("logs-dir01", "fedavg", (checkpoint(100, 0.90),))])
    assert "| fedavg | 42 | 100 | **90.00** | 84.89 |" in text
    assert "    python -m tools.reproduce logs-dir01 --only fedavg --seed 42 --rounds 100" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1
