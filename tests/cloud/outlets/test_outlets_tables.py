"""The tables of the command line: as wide as their content, and never wider than a terminal."""

from collections.abc import Sequence

import pytest

from sedge_cloud.outlets.tables import table, terminal_width
from sedge_cloud.outlets.terminal import DEVICES, NUMBERS

LONGEST = "sensor-" + "x" * 37 + "-042"
WHAT = "waits: 31 % battery"


def rows(*devices: str) -> list[Sequence[str]]:
    cells = ("online", "12 min", "3 s", "0.2.0", "onnxruntime", "1234", "93.1 %", "94.0 %", "0")
    return [DEVICES, *((device, *cells, WHAT) for device in devices)]


def test_columns_are_as_wide_as_what_is_in_them() -> None:
    assert len(LONGEST) == 48
    head, first, second = table(rows("a", LONGEST), NUMBERS)
    assert head.index("state") == first.index("online") == second.index("online") == 49
    ends = {line.index(text) + len(text) for line, text in ((head, "updates"), (first, "1234"))}
    assert len(ends) == 1, "numbers stand below the end of their heading"
    assert [line.endswith(WHAT) for line in (head, first, second)] == [False, True, True]
    narrow = list(table(rows("a"), NUMBERS))
    assert narrow[0].startswith("device state") and narrow[1].startswith("a      online")


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_terminal_is_wide_enough(width: int) -> None:
    lines = list(table(rows("a", LONGEST, "pi-1"), NUMBERS, width))
    assert max(map(len, lines)) <= width
    assert sum(WHAT in line for line in lines) == 3, "the reason is never shortened"
    (named,) = (line.split()[0] for line in lines if line.startswith("s"))
    start, _, end = named.partition("…")
    assert LONGEST.startswith(start) and LONGEST.endswith(end)
    assert width < 160 or named == LONGEST
    assert sum(line.split()[0] == "pi-1" for line in lines) == 1


def test_a_file_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert terminal_width() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert terminal_width() == 80
