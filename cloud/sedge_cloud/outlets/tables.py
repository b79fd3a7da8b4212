"""Formats text tables for the terminal, no wider than their contents. Programs read ``--json`` instead."""

import shutil
import sys
from collections.abc import Collection, Iterator, Sequence


def terminal_width() -> int | None:
    """Return the width of the terminal, or None for a file or a pipe, where nothing is shortened."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    rows: Sequence[Sequence[str]], right: Collection[int] = (), width: int | None = None
) -> Iterator[str]:
    """Yield the lines of a table. The first of ``rows`` holds the headings.

    ``right`` holds the indices of number columns. The last cell of each row is text of any length. If it
    does not fit in ``width``, it is printed in full on its own line. If the other cells do not fit, the
    widest are shortened in the middle, because ids often differ only at the end.
    """
    widths = [max(map(len, cells)) for cells in zip(*(row[:-1] for row in rows), strict=True)]
    room = None if width is None else max(width - len(widths) + 1, 4 * len(widths))
    while room is not None and sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    for *cells, text in rows:
        shown = [_shortened(cell, size) for cell, size in zip(cells, widths, strict=True)]
        line = " ".join(
            cell.rjust(size) if column in right else cell.ljust(size)
            for column, (cell, size) in enumerate(zip(shown, widths, strict=True))
        )
        if width is None or len(line) + 2 + len(text) <= width:
            yield f"{line}  {text}".rstrip()
        else:
            yield line.rstrip()
            yield f"    {text}"


def _shortened(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
