"""The HTML report: it loads nothing, hides nothing, and says what the result says."""

import re
from collections.abc import Callable
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace
from tests.emulate.sample import SAMPLE

from sedge_emulate.report.page import ENDS, MAX_ROWS, page, write_report
from sedge_emulate.result import Result, StrategyResult, class_results
from sedge_protocol.errors import StorageError

LOCAL, FEDAVG, FEDOBP = SAMPLE.strategies


def of(*strategies: StrategyResult, **changes: Any) -> Result:
    """The sample with these strategies, and other values in these fields."""
    return replace(SAMPLE, strategies=list(strategies), **changes)


def without_fedavg() -> Result:
    """FedOBP alone, without personal parameters."""
    rounds = [replace(r, personal={}) for r in FEDOBP.rounds]
    return of(replace(FEDOBP, personal=[], rounds=rounds))


class Outline(HTMLParser):
    """The tags, and those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def spaced(result: Result) -> str:
    """The page, with plain spaces."""
    return page(result).replace("\N{NO-BREAK SPACE}", " ")


USUAL = spaced(SAMPLE)


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
    html = USUAL
    found = outline(html)
    assert (found.wrong, found.open) == ([], [])
    assert not found.tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form"}
    assert not re.search(r"https?:|//[a-z]|@import|\bon[a-z]+=|javascript:", html)
    assert all(target.startswith("#") for target in re.findall(r'(?:href|src)="([^"]*)', html))
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", html))


def test_the_table_says_what_the_result_says() -> None:
    # before pooled, mean, worst tenth, after likewise; both ways, of dense, up, down; first round; time
    moved = "3.03 MB 37.9 % 30.0 kB 3.00 MB 20.0 kB 2.00 MB 1:15"
    assert [" ".join(row) for row in rows(USUAL, "<table")] == [
        f"local 85.1 % 85.1 % 31.0 % 90.0 % 90.0 % 90.0 % {moved}",
        f"fedavg 70.8 % 70.8 % 25.0 % 93.0 % 93.0 % 60.0 % {moved}",
        f"fedobp 89.9 % 90.0 % 35.0 % 94.2 % 94.2 % 80.0 % {moved}",
    ]


def test_the_first_strategy_stands_against_the_others_device_by_device() -> None:
    html = spaced(of(LOCAL, FEDAVG))
    # 0.15 on ten devices, 0.65 on one and -0.44 on the one where local training alone fails.
    before = ["+14.3", "+14.3 ± 6.7", "11", "1", "0.028"]
    after = ["-3.0", "-3.0 ± 3.0", "1", "11", "0.033"]
    assert rows(html, "local minus") == [["fedavg", *before, *after]]
    assert "The device with the fewest has 300 test examples." in html
    assert "local minus" not in spaced(of(LOCAL))


def the_usual() -> Result:
    return SAMPLE


def each(**changes: Any) -> Result:
    """The sample, with other values in these fields of every strategy."""
    return of(*(replace(strategy, **changes) for strategy in SAMPLE.strategies))


# A result, a pattern that its page has or, after "no ", has not.
SAID: list[tuple[Callable[[], Result], str]] = [
    (the_usual, r"FedAvg followed by local training reaches 93\.0 % here \(60\.0 % for the worst tenth\)"),
    (the_usual, "both are strong competitors"),
    (without_fedavg, "This run has no FedAvg"),
    (the_usual, r"as it arrives</em> comes from <strong>fedobp</strong> \(89\.9 % over"),
    (the_usual, r"local training</em> from <strong>fedobp</strong> \(94\.2 % over"),
    (lambda: of(LOCAL), r"As it arrives</em> the model is right in \d\d\.\d % over all test examples, "),
    (lambda: of(LOCAL), "no comes from"),
    (without_fedavg, 'no class="best"'),
    (the_usual, "On the same examples"),
    (the_usual, "on 500 examples that no device has"),
    (lambda: each(central=None), "no On the same examples"),
    (lambda: replace(SAMPLE, settings={}), "no All settings"),
    (the_usual, "Where the personal parameters sit"),
    (without_fedavg, "no Where the personal parameters sit"),
    (lambda: each(personal=[]), "parameters of a device, by round"),
    (lambda: of(), r"No strategy has run\."),
    (the_usual, "Times are virtual"),
    (the_usual, r"The last round closed after 5:10\."),
    (the_usual, "round by round"),
    (lambda: replace(SAMPLE, link="mosquitto"), "Times are wall-clock times"),
    *((the_usual, words) for words in ("Rounds over time", "Sent by one device", "<dt>Link</dt>")),
    (lambda: each(rounds=[replace(r, closed_s=0.0) for r in LOCAL.rounds]),
     "no Rounds over time"),
    (the_usual, "2 rounds; local_epochs 5, learning_rate 0.01, codec int8, feedback True; 17 jobs by the "
     "sequential trainer in 1:15 with 2 workers, 20.0 % of their time outside of training; 400 MB"),
    (the_usual, "What the bytes bought"),
    (lambda: of(LOCAL), "no What the bytes bought"),
    (lambda: large(400), "A stroke leads from"),
    (lambda: large(401), "the band the middle half"),
]  # fmt: skip


@pytest.mark.parametrize(("result", "pattern"), SAID)
def test_what_the_page_says(result: Callable[[], Result], pattern: str) -> None:
    html = USUAL if result is the_usual else spaced(result())
    found = re.search(pattern.removeprefix("no "), html)
    assert (found is None) is pattern.startswith("no ")


def test_every_setting_is_there() -> None:
    cells = dict(rows(USUAL, "All settings"))
    assert (cells["devices"], cells["data.alpha"]) == ("12", "0.1")
    assert cells["strategies[fedobp].options.quantile"] == "0.99"


def test_the_best_of_each_column_is_marked() -> None:
    best = re.findall(r'<td class="best">([^<]*)', USUAL)
    assert best == ["90.0 %", "89.9 %", "90.0 %", "35.0 %", "94.2 %", "94.2 %"]


def test_drawings_stand_alone() -> None:
    found = re.findall(r"<svg.*?</svg>", USUAL, re.DOTALL)
    assert len(found) == 2 + 5 + 3 + 2 + 2 + 1
    for svg in found:
        ElementTree.fromstring(svg)
    assert not re.search(r"#[0-9a-f]{6}", "".join(found))  # every colour is the style sheet's


def test_what_others_wrote_is_text() -> None:
    name = '</td><script>alert(1)</script> & "co"'
    devices = [replace(LOCAL.devices[3], device=name, class_name="<b>"), *LOCAL.devices[:3]]
    late = [replace(r, late_devices=[name], personal={"<u>": 1.0}) for r in LOCAL.rounds]
    sly = replace(
        LOCAL, name="<b>sly</b> & co", options={"</dd><script>": '"&'}, devices=devices, rounds=late,
        classes=[],
    )  # fmt: skip
    html = page(of(sly, dataset="<i>mine</i>"))
    assert "&lt;b&gt;sly&lt;/b&gt; &amp; co" in html
    assert not re.search(r"<(script|i>mine|b>|u>)", html)
    assert html.count("&lt;script&gt;alert") >= 4  # the plot's, both tables', the caption's
    assert "--devices 12 &lt;quoted &amp; odd&gt;" in html
    assert outline(html).wrong == []


def test_the_page_of_a_large_fleet_is_small() -> None:
    """1,000 devices and 100 rounds under six strategies, with a tenth of the cohort late each time."""
    one = LOCAL.devices[0]
    devices = [
        replace(one, device=f"device-{i:03}", before=i / 1000, class_name=f"kind {i % 3}")
        for i in range(1000)
    ]
    rounds = [
        replace(
            LOCAL.rounds[0], round=number, opened_s=60.0 * number, closed_s=60.0 * number + 50,
            late_devices=[f"device-{i:03}" for i in range(number, number + 10)],
        )
        for number in range(1, 101)
    ]  # fmt: skip
    strategy = replace(LOCAL, devices=devices, rounds=rounds)
    html = spaced(of(*[strategy] * 6, devices=1000))
    assert len(html) < 400_000
    assert outline(html).wrong == []


def test_the_report_is_the_page(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "report.html"
    write_report(SAMPLE, path)
    assert path.read_text("utf-8") == page(SAMPLE)
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    with pytest.raises(StorageError):
        write_report(SAMPLE, path / "below-a-file.html")


# Bytes.


def test_totals_and_the_coordinators_rounds() -> None:
    found = rows(USUAL, "One coded update")
    usual = ["19.5 kB", "0.5 %", "130 kB", "14.0 MB", "2.00 MB", "60.0 kB", "5.00 MB", "130 kB"]
    assert found == [[name, *usual] for name in ("local", "fedavg", "fedobp")]


def test_a_single_round_says_nothing_of_later_ones() -> None:
    first = of(*(replace(s, rounds=s.rounds[:1]) for s in SAMPLE.strategies))
    [row, *_] = rows(spaced(first), "Per device and round")
    assert row[7:] == ["", "", "", "", "20.0 kB", "2.00 MB", "1:15"]


def test_kinds_by_class() -> None:
    found = rows(USUAL, "Sent by one device")
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
    devices = [replace(device, class_name="Pi 5") for device in LOCAL.devices]
    html = spaced(of(replace(LOCAL, devices=devices, classes=[])))
    assert [row[0] for row in rows(html, "Sent by one device")] == ["local"]


# Devices.


def calm(strategy: StrategyResult) -> StrategyResult:
    """Nothing late, nothing sent again, nothing cut."""
    rounds = [replace(r, late=0, late_devices=[], resent_bytes=0) for r in strategy.rounds]
    devices = [replace(d, reboots=0, cuts=0) for d in strategy.devices]
    return replace(strategy, rounds=rounds, devices=devices, classes=[])


def large(number: int) -> Result:
    """Under the first strategy device 0 is worst, under the second device 1 is an exception."""
    usual, middle = LOCAL.devices[0], number // 2
    first = [
        replace(usual, device=f"device-{i:05}", before=0.1 + 0.8 * i / number)
        for i in range(number)
    ]
    second = [*first[:middle], replace(first[middle], before=0.0), *first[middle + 1 :]]
    one, two = replace(LOCAL, name="one", devices=first), replace(FEDAVG, devices=second)
    return of(one, two)


def test_a_small_fleet_is_there_as_a_whole() -> None:
    found = rows(USUAL, "All 12 devices")
    assert [row[0] for row in found] == [f"dev-{i:02}" for i in range(12)]
    assert found[3] == [
        "dev-03", "1,003", "303", "3", "31.0 %", "90.0 %", "75.0 %", "96.0 %", "95.0 %", "95.5 %",
    ]  # fmt: skip


def test_of_a_large_fleet_the_ends_are_there_and_every_strategys_worst() -> None:
    assert len(rows(spaced(large(MAX_ROWS)), f"All {MAX_ROWS} devices")) == MAX_ROWS
    html = spaced(large(MAX_ROWS + 1))
    found = [row[0] for row in rows(html, f"The {ENDS} worst and the {ENDS} best of 201 devices")]
    numbers = [int(name.removeprefix("device-")) for name in found]
    assert sorted(numbers) == [*range(20), 100, *range(181, 201)]
    assert (numbers[0], numbers[-1]) == (0, 200)
    assert re.search(r'device-00100</td>(?:(?!</tr>).)*class="group worst">0\.0 %', html)


def test_nothing_wrong_is_no_section() -> None:
    assert "Who was late" not in spaced(of(*map(calm, SAMPLE.strategies)))
    assert "Who was late" not in spaced(of())
    # Any one of these makes it a section.
    strategy = calm(LOCAL)
    first, *rest = strategy.rounds
    device, *others = strategy.devices
    for change in (
        replace(strategy, rounds=[replace(first, late=1), *rest]),
        replace(strategy, rounds=[replace(first, late_devices=["dev-00"]), *rest]),
        replace(strategy, rounds=[replace(first, resent_bytes=1), *rest]),
        replace(strategy, devices=[replace(device, reboots=1), *others]),
        replace(strategy, classes=class_results([replace(device, cuts=1)])),
    ):
        assert "Who was late" in spaced(of(change))


def test_who_was_late_by_strategy_and_class() -> None:
    found = rows(USUAL, "strategy, class")
    assert len(found) == 9
    # In time, not in time, of all, came later; reboots, cuts; bytes again, of all.
    assert found[:3] == [
        ["local", "4", "1", "20.0 %", "1", "3", "3", "10.5 kB", "0.1 %"],
        ["Pi 5", "", "1", "", "", "0", "2", "2.50 kB", "0.0 %"],
        ["solar node", "", "0", "", "", "3", "1", "8.00 kB", "0.2 %"],
    ]


def test_devices_that_were_away_at_the_end_count() -> None:
    classes = class_results(LOCAL.devices[:1], LOCAL.devices[1:])
    strategy = replace(LOCAL, devices=LOCAL.devices[:1], classes=classes)
    found = rows(spaced(of(strategy)), "strategy, class")
    assert [row[5:7] for row in found] == [["3", "3"], ["0", "2"], ["3", "1"]]


def test_the_devices_that_were_late_most_often() -> None:
    found = rows(USUAL, "Every device that was late")
    assert found == [["dev-03", "Pi 5", *["1", "0", "2", "2.50 kB"] * 3]]


def test_of_many_late_devices_the_worst_are_there() -> None:
    # Device i of 50 is late in i rounds; most of them are gone before the final evaluation.
    names, one = [f"dev-{i:02}" for i in range(51)], LOCAL.rounds[0]
    late = [replace(one, round=i, late_devices=names[i:]) for i in range(1, 51)]
    found = rows(spaced(of(replace(LOCAL, rounds=late))), f"The {ENDS} of 50 late devices")
    assert [row[0] for row in found] == [f"dev-{i}" for i in range(50, 30, -1)]
    assert found[0] == ["dev-50", "", "50", "", "", ""]
