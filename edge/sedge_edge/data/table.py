"""Reads examples from a text table of numbers, one example per line.

The first line may name the columns. The target is the column ``label``, ``target`` or ``y``, otherwise the
last one. A column ``group`` names the owner of each example. All other columns together are x, in float32.
The targets are labels if all of them are written as integers, and numbers otherwise. Fields are separated
by commas, semicolons or tabs. If commas do not separate them, a comma may be the decimal point.

Class names are refused, because every device would number its classes differently.
"""

import csv
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import DataError

# The possible separators for each file extension. The first one that occurs in the first line is used.
DELIMITERS = {".csv": ";\t,", ".tsv": "\t"}
_TARGETS = ("label", "target", "y")
_GROUP = "group"


@dataclass(frozen=True)
class Table:
    """The contents of a table: x (N, K), and y (N,) and each row's group if there are such columns.

    ``notes`` describe the reader's decisions. ``lines`` (N,) are the rows' line numbers in the file.
    """

    x: NDArray[np.float64]
    y: NDArray[np.float64] | NDArray[np.int64] | None
    group: NDArray[np.str_] | None
    notes: tuple[str, ...]
    lines: NDArray[np.int64]


def read_table(path: Path, inputs: int = 0) -> Table:
    """Read the examples in a file.

    A file that has exactly ``inputs`` columns is taken to be for predictions, without a target. Raises a
    ``DataError`` that names the line and the column.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(file, path, inputs)
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    except (UnicodeDecodeError, csv.Error) as exc:
        raise DataError(f"{path}: not UTF-8 text, expected a table saved as CSV UTF-8") from exc


@dataclass
class _Columns:
    """The columns of a table: their number, their names if it has any, and which are target and group.

    ``inputs`` is the number of input columns in a file that may lack a target. ``target`` is then None.
    """

    path: Path
    names: list[str]
    count: int
    inputs: int
    target: int | None = field(init=False)
    group: int | None = field(init=False)
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.target, self.group = None if self.count == self.inputs else self.count - 1, None
        if not self.names:
            return
        for place, name in enumerate(self.names):
            if not name or name.startswith("unnamed:"):
                raise DataError(
                    f"{self.path}: column {place + 1} has no name; if it holds row numbers, leave it out, "
                    "as to_csv(index=False) does"
                )
        targets = [place for place, name in enumerate(self.names) if name in _TARGETS]
        if len(targets) > 1:
            found = ", ".join(self.names[place] for place in targets)
            raise DataError(f"{self.path}: columns {found}, expected one target: rename the others")
        self.group = self.names.index(_GROUP) if _GROUP in self.names else None
        if targets:
            self.target = targets[0]
            return
        unnamed = [place for place in range(self.count) if place != self.group]
        self.target = None if len(unnamed) == self.inputs else unnamed[-1]
        if self.target is None:
            return
        self.notes = (
            f"the target is the last column, {self.names[self.target]}; no column is called "
            f"{', '.join(_TARGETS[:-1])} or {_TARGETS[-1]}",
        )

    def called(self, place: int) -> str:
        """Describe a column, for messages."""
        name = f" ({self.names[place]})" if self.names else ""
        return f"column {place + 1}{name}"


def _read(file: TextIO, path: Path, inputs: int) -> Table:
    delimiter = _delimiter(file, path)
    decimal_comma = delimiter != ","
    reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True)
    rows = (row for row in reader if row)
    first = [text.strip() for text in next(rows)]
    if len(first) < 2 and inputs != 1:
        raise DataError(
            f"{path}: one column, expected the inputs and the target in separate columns"
        )
    names = (
        [text.lstrip("# ").lower() for text in first] if _is_header(first, decimal_comma) else []
    )
    columns = _Columns(path, names, len(first), inputs)
    values, lines, groups, whole = array("d"), array("q"), list[str](), True
    for row in _data(first, rows, named=bool(names)):
        place = f"{path}, line {reader.line_num}"
        if len(row) != columns.count:
            raise DataError(
                f"{place}: {len(row)} fields, expected {columns.count} as in the first line"
            )
        if columns.group is not None:
            groups.append(row[columns.group].strip())
            row[columns.group] = "0"
        values.extend(_numbers(row, decimal_comma, columns, place))
        lines.append(reader.line_num)
        if columns.target is not None:
            whole = whole and row[columns.target].strip().lstrip("+-").isdecimal()
    table = np.frombuffer(values, np.float64).reshape(-1, columns.count)
    if not len(table):
        raise DataError(f"{path}: no examples below the column names")
    target = None if columns.target is None else table[:, columns.target]
    others = [c for c in range(columns.count) if c not in (columns.target, columns.group)]
    if not others:
        raise DataError(f"{path}: no column but the target, expected inputs")
    return Table(
        table[:, others],
        target.astype(np.int64) if whole and target is not None else target,
        None if columns.group is None else np.array(groups),
        columns.notes,
        np.frombuffer(lines, np.int64),
    )


def _data(first: list[str], rows: Iterator[list[str]], named: bool) -> Iterator[list[str]]:
    if not named:
        yield first
    yield from rows


def _delimiter(file: TextIO, path: Path) -> str:
    """Return the delimiter that occurs in the first line. Rewinds the file."""
    line = next((line for line in file if line.strip()), "")
    if not line:
        raise DataError(f"{path}: empty, expected a table")
    file.seek(0)
    allowed = DELIMITERS[path.suffix.lower()]
    return next((delimiter for delimiter in allowed if delimiter in line), allowed[-1])


def _is_header(first: Sequence[str], decimal_comma: bool) -> bool:
    """Return True if the line contains column names.

    Numeric fields are allowed only if each is its own column's number, counted from 0, as pandas writes
    them.
    """
    numbers = [
        (place, text)
        for place, text in enumerate(first)
        if _number(text, decimal_comma) is not None
    ]
    counted = all(text == str(place) for place, text in numbers)
    return counted and (len(numbers) < len(first) or len(first) > 2)


def _numbers(
    row: Sequence[str], decimal_comma: bool, columns: _Columns, place: str
) -> Sequence[float]:
    try:
        numbers = [float(text) for text in row]
        if math.isfinite(math.fsum(map(abs, numbers))):
            return numbers
    except (ValueError, OverflowError):
        pass
    return [_checked(text, decimal_comma, f"{place}, {columns.called(c)}", c == columns.target)
            for c, text in enumerate(row)]  # fmt: skip


def _checked(text: str, decimal_comma: bool, place: str, is_target: bool) -> float:
    number = _number(text, decimal_comma)
    if number is not None and math.isfinite(number):
        return number
    if not text.strip():
        raise DataError(f"{place}: empty, expected a number: fill it in or leave the line out")
    hint = ": number the classes, in the same way on every device" if is_target else ""
    raise DataError(f"{place}: {text.strip()[:40]!r}, expected a number{hint}")


def _number(text: str, decimal_comma: bool) -> float | None:
    if decimal_comma and "." not in text:
        text = text.replace(",", ".")
    try:
        return float(text)
    except ValueError:
        return None
