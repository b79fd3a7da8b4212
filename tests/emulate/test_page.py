"""The HTML report: it loads nothing, hides nothing, and says what the result says."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from msgspec.structs import replace

from sedge_emulate.page import page
from sedge_emulate.result import Result, read_json

_VECTORS = Path(__file__).parents[1] / "vectors"
_SAMPLE = _VECTORS / "result_format_1.json"

_VOID = {"meta", "br"}


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
            self.cells[-1] += data


@cache
def usual_page() -> str:
    return page(the_usual())


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
    # before mean and worst tenth, after likewise; both ways, of dense, up, down; first round; time
    rows = {
        "local": "85.1 % 31.0 % 90.0 % 90.0 % 3.03 MB 37.9 % 30.0 kB 3.00 MB 20.0 kB 2.00 MB 1:15",
        "fedavg": "70.8 % 25.0 % 93.0 % 60.0 % 3.03 MB 37.9 % 30.0 kB 3.00 MB 20.0 kB 2.00 MB 1:15",
        "fedobp": "90.0 % 35.0 % 94.2 % 80.0 % 3.03 MB 37.9 % 30.0 kB 3.00 MB 20.0 kB 2.00 MB 1:15",
    }
    for name, expected in rows.items():
        at = cells.index(name)
        assert " ".join(cells[at + 1 : at + 12]) == expected


def test_the_best_of_each_column_is_marked() -> None:
    best = re.findall(r'<td class="best">([^<]*)', usual_page())
    assert best == ["90.0 %", "90.0 %", "35.0 %", "94.2 %"]
    assert 'class="best"' not in page(without_fedavg())


def test_every_device_is_there_and_the_worst_is_marked() -> None:
    html = usual_page()
    cells = outline(html).cells
    for i in range(12):
        at = cells.index(f"dev-{i:02}")
        assert cells[at + 1 : at + 4] == [f"{1000 + i:,}", str(300 + i), "3"]
    worst = re.findall(r"<tr><td>(dev-\d\d)</td>(?:(?!</tr>).)*class=\"group worst\">([^<]*)", html)
    assert worst == [("dev-03", "31.0 %"), ("dev-07", "25.0 %"), ("dev-11", "35.0 %")]
    assert "dev-03 under local, dev-07 under fedavg and dev-11 under fedobp" in html


def test_it_is_honest_about_fedavg() -> None:
    html = usual_page().replace("&nbsp;", " ")
    assert (
        "FedAvg followed by local training reaches 93.0 % here (60.0 % for the worst tenth)" in html
    )
    assert "a strong competitor" in html
    assert "This run has no FedAvg" in page(without_fedavg())


def test_the_lead_names_both_winners() -> None:
    html = usual_page().replace("&nbsp;", " ")
    assert re.search(r"as it arrives</em> comes from <strong>fedobp</strong> \(90\.0 % on", html)
    assert re.search(r"local training</em> from <strong>fedobp</strong> \(94\.2 % on", html)


def test_one_strategy_is_not_called_the_best() -> None:
    result = the_usual()
    html = page(replace(result, strategies=result.strategies[:1])).replace("&nbsp;", " ")
    assert re.search(r"As it arrives</em> the model is right in \d\d\.\d % on average, ", html)
    assert "comes from" not in html


def test_what_others_wrote_is_escaped() -> None:
    result = the_usual()
    sly = replace(result.strategies[0], name="<b>sly</b> & co", options={"</dd><script>": '"&'})
    result = replace(result, strategies=[sly], dataset="<i>mine</i>")
    html = page(result)
    assert "<b>sly" not in html
    assert "&lt;b&gt;sly&lt;/b&gt; &amp; co" in html
    assert "<script" not in html
    assert "<i>" not in html
    assert "--devices 12 &lt;quoted &amp; odd&gt;" in html
    assert outline(html).wrong == []


def test_a_section_without_content_is_left_out() -> None:
    assert "Where the personal parameters sit" in usual_page()
    assert "Where the personal parameters sit" not in page(without_fedavg())
    unmeasured = [replace(strategy, personal=[]) for strategy in the_usual().strategies]
    assert "parameters per device, by round" in page(replace(the_usual(), strategies=unmeasured))
    assert "No strategy has run." in page(replace(the_usual(), strategies=[]))


def test_virtual_time_is_named_as_such() -> None:
    assert "The clock is virtual time" in usual_page()
    assert "The last round closed after 5:10." in usual_page()
    assert "round by round" in usual_page()
    assert "The clock is the one on the wall" in page(replace(the_usual(), link="mosquitto"))


def test_a_result_of_before_virtual_time_has_its_old_page() -> None:
    html = page(read_json(_VECTORS / "result_format_1_first.json"))
    for words in ("Rounds over time", "Sent by one device", "<dt>Link</dt>", "workers"):
        assert words in usual_page()
        assert words not in html
    assert outline(html).wrong == []


def test_what_the_host_did() -> None:
    words = (
        "2 rounds; local_epochs 5, learning_rate 0.01, codec int8, feedback True; "
        "17 jobs by the sequential trainer in 1:15 with 2 workers, 20.0 % of their time outside of "
        "training; 400 MB of memory at most"
    )
    assert usual_page().count(words) == 3


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
    html = page(replace(result, strategies=[strategy] * 6, devices=1000))
    assert len(html) < 600_000
    assert outline(html).wrong == []


def test_the_same_result_gives_the_same_page() -> None:
    assert page(the_usual()) == usual_page()
