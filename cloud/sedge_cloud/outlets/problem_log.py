"""Logs when problems begin and end, so that the journal shows them even if there is no page.

A line's level, which is its priority in the journal, is the problem's severity; the end of a problem is
logged as information. A fleet that loses its network must not flood the log. Problems beyond ``MOST`` in
one reading are therefore only counted by code, and a problem that comes and goes is logged at most once
every ``QUIET_S``.
"""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from sedge_cloud.facts.records import Fleet, Problem
from sedge_cloud.outlets.onsets import Key, Onsets

MOST = 20
QUIET_S = 600.0
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING}
_log = logging.getLogger("sedge.problems")

Line: TypeAlias = tuple[int, str]


class ProblemLog:
    """Logs the beginning and the end of each problem."""

    def __init__(self) -> None:
        self._onsets = Onsets(QUIET_S)
        self._open: dict[Key, Problem] = {}

    def __call__(self, facts: Fleet) -> None:
        """Log the problems that have begun or ended as of this reading of the facts."""
        for level, text in self.lines(facts.problems, time.monotonic()):
            _log.log(level, "%s", text)

    def lines(self, problems: Iterable[Problem], now: float) -> list[Line]:
        """Return the new lines with their levels; ``now`` is in seconds."""
        seen: dict[Key, Problem] = {(p.code, p.subject): p for p in problems}
        begun = self._onsets.new({key: seen[key] for key in seen if key not in self._open}, now)
        ended = [self._open.pop(key) for key in self._open.keys() - seen.keys()]
        self._open.update(((p.code, p.subject), p) for p in begun)
        return [*_begun(begun), *_ended(ended)]


def _begun(problems: Sequence[Problem]) -> Iterator[Line]:
    for it in problems[:MOST]:
        run = f", run {it.run}" if it.run and it.run != it.subject else ""
        yield _LEVELS[it.severity], f"{it.subject}: {it.text} ({it.code}{run})"
    rest = problems[MOST:]
    yield from _more(rest, max((_LEVELS[it.severity] for it in rest), default=0), "begun")


def _ended(problems: Sequence[Problem]) -> Iterator[Line]:
    for it in problems[:MOST]:
        yield logging.INFO, f"{it.subject}: no longer {it.code}"
    yield from _more(problems[MOST:], logging.INFO, "ended")


def _more(problems: Sequence[Problem], level: int, what: str) -> Iterator[Line]:
    """Yield a single line that counts the problems for which no separate line is logged."""
    counts = sorted(Counter(p.code for p in problems).items())
    if counts:
        text = ", ".join(f"{code} {count}" for code, count in counts)
        yield level, f"{len(problems)} more problems have {what}: {text}"
