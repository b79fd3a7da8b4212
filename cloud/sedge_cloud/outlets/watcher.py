"""``sedge-cloud run watch``: shows the fleet on the terminal, and updates it whenever something changes."""

import time
from collections.abc import Callable

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sedge_cloud.facts.reader import Reader
from sedge_cloud.facts.records import ChangeKey, Fleet, RunFacts, change_key
from sedge_cloud.figures.numbers import age
from sedge_cloud.outlets.terminal import (
    headline,
    problem_lines,
    process_lines,
    run_lines,
    value_text,
)
from sedge_protocol.host.console import json_text

EVERY_S = 1.0
# The maximum number of closed rounds shown for a run.
ROUNDS = 8
_STYLES = {"error": "red", "warning": "yellow"}


def watch(reader: Reader, name: str | None) -> None:
    """Show the fleet, or a single run, until no run is running."""
    with Live(Text("…"), refresh_per_second=4) as screen:
        follow(reader, name, lambda facts: screen.update(picture(facts, name)))


def follow(reader: Reader, name: str | None, show: Callable[[Fleet], object]) -> None:
    """Call ``show`` with the facts every second until no run, or no run called ``name``, is running."""
    while True:
        facts = reader.read()
        show(facts)
        shown = [run for run in facts.runs if name in (None, run.run)]
        if all(run.status != "running" for run in shown):
            return
        time.sleep(EVERY_S)


def as_json(reader: Reader, name: str | None) -> None:
    """Print the facts as a line of JSON whenever anything but ages and counters changes."""
    last: ChangeKey | None = None

    def show(facts: Fleet) -> None:
        nonlocal last
        now, before = change_key(facts, last), last
        last = now
        if now != before:
            print(json_text(facts), flush=True)

    follow(reader, name, show)


def picture(facts: Fleet, name: str | None = None) -> Group:
    """Render the facts for the terminal. Texts are not parsed, so names cannot inject markup."""
    parts: list[Text | Table] = [Text(headline(facts), style="bold")]
    parts += (Text(line, style="dim") for line in process_lines(facts))
    parts += (
        Text(line, style=_STYLES.get(line.split()[0], "dim"))
        for line in problem_lines(facts.problems, facts.at)
    )
    for run in facts.runs:
        if name == run.run or (name is None and run.status == "running"):
            parts += [Text(), *_run(run, facts)]
    return Group(*parts)


def _run(run: RunFacts, facts: Fleet) -> list[Text | Table]:
    title = f"run {run.run}: {run.strategy}, {run.progress} rounds"
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for head in ("round", "updates", "before", "worst 10 %", "after", "worst 10 %", "closed"):
        table.add_column(head, justify="right", style="dim" if head == "closed" else "")
    for it in run.rounds[-ROUNDS:]:
        values = (it.before, it.before_worst, it.after, it.after_worst)
        table.add_row(
            str(it.round),
            f"{it.updates}/{it.cohort}",
            *(value_text(value, it.metric) for value in values),
            f"{age(it.closed, facts.at)} ago" if it.closed else "",
        )
    return [Text(title, style="bold"), table, *map(Text, run_lines(run, facts.at))]
