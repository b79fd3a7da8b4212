"""Writes REPRODUCED.md (published tables next to our results) and the table in docs/reproduced.md.

The results come from ``make reproduce`` and from ``python -m tools.reproduce TABLE --results
tools/bench/results/reproduce``; no figure on the page is typed by hand.
"""

from collections.abc import Iterable
from pathlib import Path

from tools.reproduce.outcome import Outcome, read
from tools.reproduce.sections import NONE
from tools.reproduce.tables import HEADS, markdown, rows, tables

GUIDE = Path(__file__).parents[2] / "docs" / "reproduced.md"
# The columns in docs/reproduced.md: from the method to the published accuracy after training.
SHOWN = slice(7)
HEAD = """\
# Published tables, reproduced

Written by `python -m tools.bench pages` from the JSON files that `python -m tools.reproduce` leaves in
`tools/bench/results/reproduce`: every cell is a run of the whole engine, agents, codec and coordinator in
virtual time. Accuracies are per cent of all test examples of all devices, before and after local training;
"worst 10 %" is the mean over the tenth of the devices that do worst before it; bytes are the total of all
devices over the whole run. A "best" after training covers only rounds that trained; a checkpoint's accuracy
after training is one training later. A figure in bold is further from the published one than the table's
tolerance.
"""


def outcomes(folder: Path) -> list[Outcome]:
    """Return every outcome in the folder, sorted by file name."""
    found = (read(path) for path in sorted(folder.glob("*.json")))
    return [outcome for outcome in found if outcome is not None]


def page(found: list[Outcome]) -> str:
    """Return the text of REPRODUCED.md."""
    return f"{HEAD}\n{markdown(found)}".rstrip() + "\n"


def published(found: list[Outcome]) -> Iterable[str]:
    """Yield the lines of one table that has all our results next to the published ones."""
    yield f"| of | {' | '.join(HEADS[SHOWN])} |"
    yield f"| --- |{' --- |' * len(HEADS[SHOWN])}"
    for table, mine in tables(found):
        for row in rows(table, mine):
            if row.compares:
                texts = ("" if text == NONE else text for text in row.texts[SHOWN])
                yield f"| {table.title} | {' | '.join(texts)} |"
