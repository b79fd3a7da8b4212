"""The end of an emulation: the table in the terminal."""

import io
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from tests.emulate.sample import SAMPLE

from sedge_emulate.report.terminal import print_table
from sedge_emulate.result import Result


def printed(
    width: int = 40, result: Result = SAMPLE, report: str = "runs/demo/report.html"
) -> list[str]:
    file = io.StringIO()
    print_table(result, Console(file=file, width=width), Path(report))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    rows = [" ".join(line.split()) for line in printed(80)]
    assert "local 85.1 % 85.1 % 31.0 % 90.0 % 90.0 % 90.0 % 30.0 kB 3.00 MB 1:15" in rows
    assert "fedavg 70.8 % 70.8 % 25.0 % 93.0 % 93.0 % 60.0 % 30.0 kB 3.00 MB 1:15" in rows
    assert "fedobp 89.9 % 90.0 % 35.0 % 94.2 % 94.2 % 80.0 % 30.0 kB 3.00 MB 1:15" in rows


def test_the_first_strategy_stands_against_the_others() -> None:
    lines = printed()
    before = "before +14.3 pooled, +14.3 ± 6.7 mean (better on 11, worse on 1)"
    after = "after -3.0 pooled, -3.0 ± 3.0 mean (better on 1, worse on 11)"
    assert f"local - fedavg: {before}; {after}" in lines
    assert any("(300 test examples or more each)" in line for line in lines)


def test_the_worst_devices_and_the_reports_place_are_named() -> None:
    lines = printed()
    assert "worst under local: dev-03, 31.0 % -> 90.0 %" in lines
    assert "worst under fedavg: dev-07, 25.0 % -> 60.0 %" in lines
    assert "worst under fedobp: dev-11, 35.0 % -> 95.5 %" in lines
    first = "37.9 % of dense both ways; a device's first round 20.0 kB up, 2.00 MB down"
    assert f"local: {first}; the coordinator 2.00 MB up, 60.0 kB down per round" in lines
    assert lines[-1] == "report: runs/demo/report.html"


def test_virtual_time_and_what_did_not_go_well() -> None:
    [first, *rest] = SAMPLE.strategies
    calm = [replace(r, late_devices=[], resent_bytes=0) for r in first.rounds]
    lines = printed(result=replace(SAMPLE, strategies=[replace(first, rounds=calm), *rest]))
    assert "local: 5:10 of virtual time" in lines
    expected = "5:10 of virtual time, 1 of 5 updates not in time and 10.5 kB sent again"
    assert f"fedavg: {expected}" in lines
    assert f"fedobp: {expected}" in lines


def test_a_broker_has_no_virtual_time() -> None:
    assert "virtual" not in "".join(printed(result=replace(SAMPLE, link="mosquitto")))


def test_names_are_not_markup() -> None:
    sly = replace(SAMPLE, strategies=[replace(SAMPLE.strategies[0], name="[red]x[/y]")])
    said = "\n".join(printed(100, sly, "[b].html"))
    assert "[red]x[/y]" in said and "report: [b].html" in said
