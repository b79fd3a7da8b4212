"""The HTML report: it loads nothing, hides nothing, and says what the result says."""

import re
from collections.abc import Callable
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from sedge_emulate.report.page import ENDS, MAX_ROWS, page, write_report
from sedge_emulate.result import DeviceResult, Result, StrategyResult, class_results, read_json
from sedge_protocol.errors import StorageError

_SAMPLE = Path(__file__).parents[2] / "vectors" / "result_format_1.json"

_VOID = {"meta"}


def the_usual() -> Result:
    """Three strategies on twelve devices; the worst are dev-03, dev-07 and dev-11."""
    return read_json(_SAMPLE)


def without_fedavg() -> Result:
    """FedOBP alone, without personal parameters."""
    result = the_usual()
    found = result.strategies[2]
    rounds = [replace(r, personal={}) for r in found.rounds]
    return replace(result, strategies=[replace(found, personal=[], rounds=rounds)])


class Outline(HTMLParser):
    """Tags that are not closed in order, and the text of every table cell."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: set[str] = set()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells[-1] += data.replace("\N{NO-BREAK SPACE}", " ")


@cache
def usual_page() -> str:
    return spaced(the_usual())


def spaced(result: Result) -> str:
    """The page, with plain spaces."""
    return page(result).replace("\N{NO-BREAK SPACE}", " ")


def rows(html: str, header: str) -> list[list[str]]:
    """The cells of the rows of the table below these words."""
    body = html[html.index(header) :].partition("<tbody>")[2].partition("</tbody>")[0]
    return [
        [unescape(cell).strip() for cell in re.findall(r"<td[^>]*>([^<]*)</td>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    ]


def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    found.close()
    return found


def test_it_is_sound_html_and_needs_nothing() -> None:
    html = usual_page()
    found = outline(html)
    assert (found.wrong, found.open) == ([], [])
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"https?:|//[a-z]|@import|\bon[a-z]+=|javascript:", html)
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)', html))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", html))


def test_the_table_says_what_the_result_says() -> None:
    cells = outline(usual_page()).cells
    # before pooled, mean, worst tenth, after likewise; both ways, of dense, up, down; first round; time
    rows = {
        "local": "85.1 % 85.1 % 31.0 % 90.0 % 90.0 % 90.0 %",
        "fedavg": "70.8 % 70.8 % 25.0 % 93.0 % 93.0 % 60.0 %",
        "fedobp": "89.9 % 90.0 % 35.0 % 94.2 % 94.2 % 80.0 %",
    }
    moved = "3.03 MB 37.9 % 30.0 kB 3.00 MB 20.0 kB 2.00 MB 1:15"
    for name, expected in rows.items():
        at = cells.index(name)
        assert " ".join(cells[at + 1 : at + 14]) == f"{expected} {moved}"


def test_the_first_strategy_stands_against_the_others_device_by_device() -> None:
    result = the_usual()
    first, second, _ = result.strategies
    html = spaced(replace(result, strategies=[first, second]))
    # 0.15 on ten devices, 0.65 on one and -0.44 on the one where local training alone fails.
    assert rows(html, "local minus") == [
        [
            "fedavg",
            "+14.3",
            "+14.3 ± 6.7",
            "11",
            "1",
            "0.028",
            "-3.0",
            "-3.0 ± 3.0",
            "1",
            "11",
            "0.033",
        ]
    ]
    assert "The device with the fewest has 300 test examples." in html
    assert "local minus" not in spaced(replace(result, strategies=[first]))


def each(**changes: Any) -> Result:
    """The usual, with other values in these fields of every strategy."""
    return replace(the_usual(), strategies=[replace(s, **changes) for s in the_usual().strategies])


def some(count: int) -> Result:
    """The usual with so many of its strategies."""
    return replace(the_usual(), strategies=the_usual().strategies[:count])


# A result, a pattern that its page has or, after "no ", has not.
SAID: list[tuple[Callable[[], Result], str]] = [
    (the_usual, r"FedAvg followed by local training reaches 93\.0 % here \(60\.0 % for the worst tenth\)"),
    (the_usual, "both are strong competitors"),
    (without_fedavg, "This run has no FedAvg"),
    (the_usual, r"as it arrives</em> comes from <strong>fedobp</strong> \(89\.9 % over"),
    (the_usual, r"local training</em> from <strong>fedobp</strong> \(94\.2 % over"),
    (lambda: some(1), r"As it arrives</em> the model is right in \d\d\.\d % over all test examples, "),
    (lambda: some(1), "no comes from"),
    (without_fedavg, 'no class="best"'),
    (the_usual, "On the same examples"),
    (the_usual, "on 500 examples that no device has"),
    (lambda: each(central=None), "no On the same examples"),
    (lambda: replace(the_usual(), settings={}), "no All settings"),
    (the_usual, "Where the personal parameters sit"),
    (without_fedavg, "no Where the personal parameters sit"),
    (lambda: each(personal=[]), "parameters of a device, by round"),
    (lambda: some(0), r"No strategy has run\."),
    (the_usual, "Times are virtual"),
    (the_usual, r"The last round closed after 5:10\."),
    (the_usual, "round by round"),
    (lambda: replace(the_usual(), link="mosquitto"), "Times are wall-clock times"),
    *((the_usual, words) for words in ("Rounds over time", "Sent by one device", "<dt>Link</dt>")),
    (lambda: each(rounds=[replace(r, closed_s=0.0) for r in the_usual().strategies[0].rounds]),
     "no Rounds over time"),
    (the_usual, "2 rounds; local_epochs 5, learning_rate 0.01, codec int8, feedback True; 17 jobs by the "
     "sequential trainer in 1:15 with 2 workers, 20.0 % of their time outside of training; 400 MB"),
    (the_usual, "What the bytes bought"),
    (lambda: some(1), "no What the bytes bought"),
    (lambda: large(400), "A stroke leads from"),
    (lambda: large(401), "the band the middle half"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "pattern"), SAID)
def test_what_the_page_says(result: Callable[[], Result], pattern: str) -> None:
    html = usual_page() if result is the_usual else spaced(result())
    found = re.search(pattern.removeprefix("no "), html)
    assert (found is None) is pattern.startswith("no ")


def test_every_setting_is_there() -> None:
    cells = dict(rows(usual_page(), "All settings"))
    assert (cells["devices"], cells["data.alpha"]) == ("12", "0.1")
    assert cells["strategies[fedobp].options.quantile"] == "0.99"


def test_the_best_of_each_column_is_marked() -> None:
    best = re.findall(r'<td class="best">([^<]*)', usual_page())
    assert best == ["90.0 %", "89.9 %", "90.0 %", "35.0 %", "94.2 %", "94.2 %"]


def test_drawings_stand_alone() -> None:
    found = re.findall(r"<svg.*?</svg>", usual_page(), re.DOTALL)
    assert len(found) == 2 + 5 + 3 + 2 + 2 + 1
    for svg in found:
        ElementTree.fromstring(svg)
    assert not re.search(r"#[0-9a-f]{6}", "".join(found))  # every colour is the style sheet's


def test_what_others_wrote_is_text() -> None:
    result = the_usual()
    first = result.strategies[0]
    name = '</td><script>alert(1)</script> & "co"'
    devices = [replace(first.devices[3], device=name, class_name="<b>"), *first.devices[:3]]
    late = [replace(r, late_devices=[name], personal={"<u>": 1.0}) for r in first.rounds]
    sly = replace(
        first, name="<b>sly</b> & co", options={"</dd><script>": '"&'}, devices=devices, rounds=late,
        classes=[],
    )  # fmt: skip
    html = page(replace(result, strategies=[sly], dataset="<i>mine</i>"))
    assert "&lt;b&gt;sly&lt;/b&gt; &amp; co" in html
    assert not re.search(r"<(script|i>mine|b>|u>)", html)
    assert html.count("&lt;script&gt;alert") >= 4  # the plot's, both tables', the caption's
    assert "--devices 12 &lt;quoted &amp; odd&gt;" in html
    assert outline(html).wrong == []


def test_the_page_of_a_large_fleet_is_small() -> None:
    """1,000 devices and 100 rounds under six strategies, with a tenth of the cohort late each time."""
    result = the_usual()
    usual = result.strategies[0]
    devices = [
        replace(
            usual.devices[0], device=f"device-{i:03}", before=i / 1000, class_name=f"kind {i % 3}"
        )
        for i in range(1000)
    ]
    rounds = [
        replace(
            usual.rounds[0], round=number, opened_s=60.0 * number, closed_s=60.0 * number + 50,
            late_devices=[f"device-{i:03}" for i in range(number, number + 10)],
        )
        for number in range(1, 101)
    ]  # fmt: skip
    strategy = replace(usual, devices=devices, rounds=rounds)
    html = spaced(replace(result, strategies=[strategy] * 6, devices=1000))
    assert len(html) < 400_000
    assert outline(html).wrong == []


def test_the_report_is_the_page(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "report.html"
    write_report(the_usual(), path)
    assert path.read_text("utf-8") == page(the_usual())
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(StorageError):
        write_report(the_usual(), path / "below-a-file.html")


# Bytes.


def test_totals_and_the_coordinators_rounds() -> None:
    found = rows(usual_page(), "One coded update")
    usual = ["19.5 kB", "0.5 %", "130 kB", "14.0 MB", "2.00 MB", "60.0 kB", "5.00 MB", "130 kB"]
    assert found == [[name, *usual] for name in ("local", "fedavg", "fedobp")]


def test_a_single_round_says_nothing_of_later_ones() -> None:
    result = the_usual()
    first = [replace(s, rounds=s.rounds[:1]) for s in result.strategies]
    [row, *_] = rows(spaced(replace(result, strategies=first)), "Per device and round")
    assert row[7:] == ["", "", "", "", "20.0 kB", "2.00 MB", "1:15"]


def test_kinds_by_class() -> None:
    found = rows(usual_page(), "Sent by one device")
    assert [row[0] for row in found] == ["local", "Pi 5", "solar node"] + [
        name for strategy in ("fedavg", "fedobp") for name in (strategy, "Pi 5", "solar node")
    ]
    whole, pi, solar = found[:3]
    # Devices; accuracies; payload, overhead, again: up, then down.
    ways = ["8.12 kB", "2.50 kB", "208 B", "1.15 MB", "16.0 kB", "667 B"]
    assert whole[1:] == ["12", "85.1 %", "90.0 %", *ways]
    assert pi[1] == "8"
    assert pi[4:7] == ["12.2 kB", "2.50 kB", "312 B"]
    assert solar[1] == "4"
    assert solar[4:] == ["0 B", "2.50 kB", "0 B", "1.15 MB", "16.0 kB", "2.00 kB"]


def test_one_class_has_no_rows_of_its_own() -> None:
    result = the_usual()
    strategy = result.strategies[0]
    devices = [replace(device, class_name="Pi 5") for device in strategy.devices]
    html = spaced(replace(result, strategies=[replace(strategy, devices=devices, classes=[])]))
    assert [row[0] for row in rows(html, "Sent by one device")] == ["local"]


# Devices.


def calm(strategy: StrategyResult) -> StrategyResult:
    """Nothing late, nothing sent again, nothing cut."""
    rounds = [replace(r, late=0, late_devices=[], resent_bytes=0) for r in strategy.rounds]
    devices = [replace(d, reboots=0, cuts=0) for d in strategy.devices]
    return replace(strategy, rounds=rounds, devices=devices, classes=[])


def large(number: int) -> Result:
    """Under the first strategy device 0 is worst, under the second device 1 is an exception."""
    result = the_usual()
    usual = result.strategies[0].devices[0]

    def device(i: int) -> DeviceResult:
        return replace(usual, device=f"device-{i:05}", before=0.1 + 0.8 * i / number)

    first = [device(i) for i in range(number)]
    middle = number // 2
    second = [replace(d, before=0.0) if i == middle else d for i, d in enumerate(first)]
    strategies = [
        replace(strategy, name=name, devices=devices)
        for strategy, name, devices in zip(
            result.strategies, ("one", "two"), (first, second), strict=False
        )
    ]
    return replace(result, strategies=strategies)


def test_a_small_fleet_is_there_as_a_whole() -> None:
    found = rows(spaced(the_usual()), "All 12 devices")
    assert [row[0] for row in found] == [f"dev-{i:02}" for i in range(12)]
    assert found[3] == [
        "dev-03", "1,003", "303", "3", "31.0 %", "90.0 %", "75.0 %", "96.0 %", "95.0 %", "95.5 %",
    ]  # fmt: skip


def test_of_a_large_fleet_the_ends_are_there_and_every_strategys_worst() -> None:
    assert len(rows(spaced(large(MAX_ROWS)), f"All {MAX_ROWS} devices")) == MAX_ROWS
    html = spaced(large(MAX_ROWS + 1))
    found = [row[0] for row in rows(html, f"The {ENDS} worst and the {ENDS} best of 201 devices")]
    numbers = [int(name.removeprefix("device-")) for name in found]
    middle = 100
    assert sorted(numbers) == sorted([*range(20), middle, *range(181, 201)])
    assert numbers[0] == 0
    assert numbers[-1] == 200
    assert re.search(r'device-00100</td>(?:(?!</tr>).)*class="group worst">0\.0 %', html)


def test_nothing_wrong_is_no_section() -> None:
    result = the_usual()
    result = replace(result, strategies=[calm(strategy) for strategy in result.strategies])
    assert "Who was late" not in spaced(result)
    assert "Who was late" not in spaced(replace(result, strategies=[]))
    # Any one of these makes it a section.
    strategy = result.strategies[0]
    first, *rest = strategy.rounds
    device, *others = strategy.devices
    for change in (
        replace(strategy, rounds=[replace(first, late=1), *rest]),
        replace(strategy, rounds=[replace(first, late_devices=["dev-00"]), *rest]),
        replace(strategy, rounds=[replace(first, resent_bytes=1), *rest]),
        replace(strategy, devices=[replace(device, reboots=1), *others]),
        replace(strategy, classes=class_results([replace(device, cuts=1)])),
    ):
        assert "Who was late" in spaced(replace(result, strategies=[change]))


def test_who_was_late_by_strategy_and_class() -> None:
    html = spaced(the_usual())
    found = rows(html, "strategy, class")
    assert len(found) == 9
    # In time, not in time, of all, came later; reboots, cuts; bytes again, of all.
    assert found[:3] == [
        ["local", "4", "1", "20.0 %", "1", "3", "3", "10.5 kB", "0.1 %"],
        ["Pi 5", "", "1", "", "", "0", "2", "2.50 kB", "0.0 %"],
        ["solar node", "", "0", "", "", "3", "1", "8.00 kB", "0.2 %"],
    ]


def test_devices_that_were_away_at_the_end_count() -> None:
    result = the_usual()
    strategy = result.strategies[0]
    classes = class_results(strategy.devices[:1], strategy.devices[1:])
    strategy = replace(strategy, devices=strategy.devices[:1], classes=classes)
    found = rows(spaced(replace(result, strategies=[strategy])), "strategy, class")
    assert [row[5:7] for row in found] == [["3", "3"], ["0", "2"], ["3", "1"]]


def test_the_devices_that_were_late_most_often() -> None:
    found = rows(spaced(the_usual()), "Every device that was late")
    assert found == [["dev-03", "Pi 5", *["1", "0", "2", "2.50 kB"] * 3]]


def test_of_many_late_devices_the_worst_are_there() -> None:
    result = the_usual()
    strategy = result.strategies[0]
    # Device i of 50 is late in i rounds; most of them are gone before the final evaluation.
    rounds = [
        replace(
            strategy.rounds[0],
            round=number,
            late_devices=[f"dev-{i:02}" for i in range(number, 51)],
        )
        for number in range(1, 51)
    ]
    html = spaced(replace(result, strategies=[replace(strategy, rounds=rounds)]))
    found = rows(html, f"The {ENDS} of 50 late devices")
    assert [row[0] for row in found] == [f"dev-{i}" for i in range(50, 30, -1)]
    assert found[0] == ["dev-50", "", "50", "", "", ""]
