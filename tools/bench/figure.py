"""One figure of a benchmark, and how its result is read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One line of a table; ``met`` are the targets in words, and whether each is met."""

    what: str
    measured: str
    met: tuple[tuple[str, bool], ...] = ()


def loaded(path: Path) -> Any:
    """The JSON line that a benchmark ended with."""
    return json.loads(path.read_text())


def mid(rows: Sequence[Any], key: str) -> float:
    """The median over the rows. Raises ``ValueError`` when there are none."""
    return float(median(row[key] for row in rows))
