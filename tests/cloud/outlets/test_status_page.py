"""The page: a stranger's questions, from its text; and in a real browser, wide and narrow.

Screenshots go to $SEDGE_SHOTS.
"""

import html
import os
import re
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import CONFIG, FLEET, a_hello, random_theta, report_for
from tests.cloud.outlets.browser import Browser

from sedge_cloud.config import CloudConfig, RobustConfig
from sedge_cloud.facts.records import RolloutFacts
from sedge_cloud.facts.selection import DeviceSelection
from sedge_cloud.outlets.page.actions import find
from sedge_cloud.outlets.page.html import device_page, status_page
from sedge_cloud.outlets.page.server import StatusServer
from sedge_cloud.outlets.settings import HttpConfig
from sedge_cloud.outlets.sidecars import snapshot_of
from sedge_cloud.store.rows import CoordinatorRow, DiskRow
from sedge_protocol.codec import SparseVector, encode
from sedge_protocol.wire.update import Metrics, encode_update

WIDTHS = (1200, 400)
LONG = "l" * 16  # as long as these tests can make one
NAMES = ("a", "b", "c", LONG)
HOSTILE, WORSE, GONE = "evil", "worse", "gone"
# Two groups, whose changes lie in different places, and who is not as the others.
LIVED = ("a1", "a2", "a3", WORSE, "b1", "b2", "b3", GONE, HOSTILE)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser may take its time: no sign of life comes meanwhile."""
    monkeypatch.setattr("sedge_cloud.facts.processes.SILENT_S", 3600.0)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@contextmanager
def served(seen: Seen) -> Generator[str]:
    cloud = CloudConfig(fleet=FLEET, state_dir=str(seen.state), http=HttpConfig("127.0.0.1:0"))
    snapshot = snapshot_of(cloud)
    server = StatusServer(cloud, snapshot)
    server.start()
    yield f"http://127.0.0.1:{server.port}/"
    server.close()
    snapshot.close()
    seen.cloud.store.close()


@pytest.fixture
def lived(tmp_path: Path) -> Seen:
    """A FedCAC run with a past: round 7 is open, one device has gone, one gets worse, one is hostile."""
    options = {"strategy": "fedcac", "num_rounds": 20, "robust": RobustConfig()}
    seen = Seen(tmp_path / "cloud", msgspec.structs.replace(CONFIG, **options), LIVED)
    for hours, used in ((2, 10**5), (1, 3 * 10**5)):
        row = DiskRow(seen.wall() - hours * 3600, used)
        seen.cloud.store.save_observations([], [], CoordinatorRow(), row)
    seen.cloud.hello(codecs=("remember",))
    for number in range(1, 7):
        for i, name in enumerate(LIVED):
            answer(seen, name, i, number)
        seen.cloud.poll()
        seen.record()
    seen.gone(GONE)
    return seen


def answer(seen: Seen, name: str, seed: int, number: int) -> None:
    """A device's update of a round: its group's half of the model changes."""
    delta = random_theta(seed) * np.float32(0.01)
    half = delta.size // 2
    delta[half:] *= name[0] != "a"
    delta[:half] *= name[0] == "a"
    if name == HOSTILE:
        delta = random_theta(seed) * np.float32(1e6)
    accuracy = 0.9 - 0.1 * number if name == WORSE else 0.6 + 0.03 * number
    order = seen.cloud.order(name)
    report = report_for(
        order, before=Metrics(0.5, accuracy, 10), after=Metrics(0.4, accuracy + 0.05, 10)
    )
    payload = encode(SparseVector(delta.size, None, delta)) if order.work.upload else b""
    seen.cloud.upload(name, encode_update(report, payload))


def assert_fits(browser: Browser) -> None:
    wide = browser.value("document.documentElement.scrollWidth - innerWidth")
    assert wide <= 0, f"{wide} pixels too wide at {browser.value('innerWidth')}"


def text_of(page: str, section: str) -> str:
    """The text of a section as a reader sees it, a row or paragraph a line."""
    part = page.partition(f'<section id="{section}">')[2].partition("</section>")[0]
    part = " ".join(part.split())
    for end in ("</tr>", "</p>", "</li>", "</div>", "</dd>"):
        part = part.replace(end, "\n")
    lines = html.unescape(re.sub(r"<[^>]*>", " ", part.replace("\u00a0", " "))).splitlines()
    return "\n".join(filter(None, (" ".join(line.split()) for line in lines)))


def test_a_strangers_questions_are_answered(lived: Seen) -> None:
    page = status_page(lived.facts())
    run = text_of(page, "run")
    # Who blocks round 7?
    assert "Round 7 (train), open for" in run and "0 of 9 updates" in run
    assert f"\n{GONE} is offline" in run
    # Which layers are personal?
    assert re.search(r"^body.weight \d[\d,]* \d+\.\d %$", run, re.M), run
    # How much disk next month?
    assert re.search(r"^In 30 days [\d.]+ MB used, [\d.]+ \w+ free", text_of(page, "disk"), re.M)
    # Which device gets worse?
    worst = f"{WORSE} is getting worse: 30 points less before training than it once had"
    assert worst in text_of(page, "problems")
    devices = text_of(page, "devices")
    assert re.search(rf"^{WORSE} is getting worse: 30 points .* online .* -30.0", devices, re.M)
    # Who sends what nobody else does, and who learns with whom?
    hostile = f"{HOSTILE} its update of round 6 was unlike the others and counted next to nothing"
    assert hostile in text_of(page, "problems")
    assert re.search(r"^3 a1 , a2 , a3$", run, re.M), run


def test_an_operators_questions_are_answered(lived: Seen) -> None:
    for name in ("b10", "new"):
        lived.cloud.enrol(name)
    lived.cloud.store.pause(["b2"], lived.wall() - 7200)
    facts = lived.facts()
    taken = RolloutFacts(
        number=1, bundle="night.toml", sha256="ab" * 32, state="aborted", created=facts.at, ended=facts.at,
        phase=1, phases=2, share=0.5, devices=3, succeeded=1, failed=1, waiting=1, where="site=lab",
        failures={"b3": "TooManyStarts"}, why="too many failed",
    )  # fmt: skip
    facts = msgspec.structs.replace(facts, settings=taken)
    page = status_page(facts)
    tiles = page.partition('<div class="tiles">')[2].partition("<section")[0]
    # Is all well, is it learning, and what did it cost?
    assert re.search(r"\d errors?</span>, <span class=.keep.>\d warnings?</span></b>", tiles)
    assert "▲ learns: +" in tiles and "in 5 rounds" in tiles
    assert " in 30 days" in tiles and "over " not in tiles
    # Who is new, and what happened last night?
    assert "new" not in text_of(page, "problems")  # it can hardly have been started
    day = text_of(page, "day")
    assert re.search(r"enrolled: a1, .* and \d+ more", day)
    assert "6 rounds closed" in day and f"{GONE} went offline" in day
    assert re.search(rf"run, round 6 : distrusted: {HOSTILE} \(and \d times? before\)", day)
    assert day.count(f"distrusted: {HOSTILE}") == 1 and "b2 was paused" in day
    # A run of this day counts all of its rounds, an older one those that are read.
    run = facts.runs[0]
    for created, told in (
        (run.created, "hours 6 rounds closed"),
        (None, "At least 2 rounds closed"),
    ):
        short = msgspec.structs.replace(run, rounds=run.rounds[-2:], created=created)
        page = status_page(msgspec.structs.replace(facts, runs=(short,)))
        assert f" {told}." in text_of(page, "day")
        assert (", over " in page) == (created is None)
    # What was rolled out where, and for how long is a device paused?
    devices = text_of(page, "devices")
    assert "50 % of those with site=lab: of 3 devices" in devices
    assert "b3 failed: TooManyStarts" in devices
    assert "rollout 1 of night.toml to settings is aborted: too many failed" in day
    assert re.search(r"^b2 paused 2 h", devices, re.M)
    # What runs where, and is it safe to upgrade?
    found = text_of(page, "versions")
    assert "bench : 9 (another version than the coordinator's)" in found
    assert "is safe after a backup" in found
    # What would happen if I stop this run?
    text = find("stop", "run", facts).text
    assert "6 of 21 rounds are closed" in text and "that have not answered: 9;" in text
    # Which device is slow, and why?
    device = next(d for d in facts.devices if d.device == "b3")
    slow = msgspec.structs.replace(device, seconds=8.0)
    text = html.unescape(device_page(facts, slow, {}))
    assert "8.0 s; 4.0 times as long: the fleet's median is 2.0 s; it has 1.0 times" in text
    # Names are in the order in which people count.
    by_name = status_page(facts, wanted=DeviceSelection(sort="device", search="b"))
    assert re.findall(r'<tr id="device-(b\d+)"', by_name) == ["b1", "b2", "b3", "b10"]


def test_many_problems_of_one_kind_are_one_row(tmp_path: Path) -> None:
    names = [f"pi-{i}" for i in range(1, 13)]
    seen = Seen(tmp_path / "cloud", CONFIG, names)
    seen.cloud.hello()
    for name in names[:9]:
        seen.gone(name)
    page = status_page(seen.facts())
    assert "9 errors, 1" not in page and "10 errors" in page, "each of them counts"
    problems = page.partition('<section id="problems">')[2].partition("</section>")[0]
    assert problems.count("<li") == 2 and "8 more like it</summary>" in problems
    assert all(f"device?name={name}" in problems for name in names[:9])


def test_groups_are_drawn_and_focus_and_what_is_typed_survive_a_refresh(
    lived: Seen, browser: Browser, tmp_path: Path
) -> None:
    lived.record()
    shots = Path(os.environ.get("SEDGE_SHOTS", str(tmp_path)))
    with served(lived) as url:
        browser.open(url, WIDTHS[0])
        browser.until("document.getElementById('live').textContent === 'live'")
        for one in ("[name=search]", "#devices tbody tr:nth-child(3) td a", "#rounds summary"):
            browser.value(f"document.querySelector('{one}').focus()")
            browser.value("document.querySelector('[name=search]').value = 'b'")
            browser.value("window.before = document.querySelector('main')")
            browser.value("swap().then(() => 0)")
            assert browser.value("document.querySelector('main') !== window.before")
            assert browser.value(f"document.activeElement === document.querySelector('{one}')")
            assert browser.value("document.querySelector('[name=search]').value") == "b"

        for width in WIDTHS:
            browser.open(url, width)
            browser.until("document.getElementById('live').textContent === 'live'")
            browser.until(
                "(document.querySelector('#rounds').open = true)"
                f" && document.querySelector('#rounds').innerText.includes('distrusted: {HOSTILE}')"
            )
            assert_fits(browser)
            assert "Who learns with whom" in browser.value(
                "document.querySelector('#run').innerText"
            )
            browser.picture(shots / f"groups-{width}.png")


def test_the_page_fits_tells_and_follows(browser: Browser, tmp_path: Path) -> None:
    """No horizontal overflow at either width; what is wrong is on top; it follows without a reload."""
    config = msgspec.structs.replace(
        CONFIG, strategy="fedobp", options={"quantile": 1.0}, num_rounds=9, quorum=0.5
    )
    seen = Seen(tmp_path / "cloud", config, NAMES)
    seen.cloud.hello()
    for _ in range(3):
        seen.round(*NAMES)
    why = "31 % battery " + "x" * 200  # nothing in it where a line could break
    seen.cloud.say("b", a_hello("b", waits=why))
    seen.gone(LONG)
    seen.record()
    shots = Path(os.environ.get("SEDGE_SHOTS", str(tmp_path)))
    with served(seen) as url:
        for width in WIDTHS:
            for scripts in (True, False):
                browser.open(url, width, scripts=scripts)
                if scripts:
                    browser.until("document.getElementById('live').textContent === 'live'")
                assert_fits(browser)
                found = browser.value("document.querySelector('#problems').innerText")
                assert "is offline; round 4 waits for it" in found
                assert "waits: 31 % battery" in found
                run = browser.value("document.querySelector('#run').innerText")
                assert run.count("no element is personal, as in FedAvg") == 1
            browser.picture(shots / f"status-{width}.png")
        browser.open(url, 1200)
        browser.until("document.getElementById('live').textContent === 'live'")
        seen.round("a", "c")  # the page learns of it by itself
        browser.until("document.querySelector('#run').innerText.includes('round 4 of')")
        browser.open(f"{url}confirm?verb=stop&name=run", 400)
        browser.value("setTimeout(() => document.querySelector('button').click()) && 0")
        browser.until("document.querySelector('#run .chip.stopped') !== null")


def test_a_page_whose_coordinator_is_gone_says_so(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hangs with its connections open, or is dead: a red bar over a faded page, until it is back."""
    monkeypatch.setattr("sedge_cloud.outlets.page.html.BEAT_S", 0.5)
    seen = Seen(tmp_path / "cloud", CONFIG, NAMES)
    seen.cloud.hello()
    seen.record()
    shots = Path(os.environ.get("SEDGE_SHOTS", str(tmp_path)))
    bar = "document.querySelector('#lost')"
    opacity = "getComputedStyle(document.querySelector('main')).opacity"
    well = f"document.getElementById('live').textContent === 'live' && {bar} === null && {opacity} == 1"
    gone = (
        f"({bar}?.innerText ?? '').startsWith('No answer from the coordinator since '"
        f" + last.toLocaleString()) && {opacity} < 0.5"
    )
    cloud = CloudConfig(fleet=FLEET, state_dir=str(seen.state), http=HttpConfig("127.0.0.1:0"))
    with closing(snapshot_of(cloud)) as snapshot:
        server = StatusServer(cloud, snapshot)
        server.start()
        browser.open(f"http://127.0.0.1:{server.port}/", WIDTHS[0])
        browser.until(well)
        with snapshot._lock:  # for which the server's thread waits
            browser.until(gone)
        browser.until(well)
        server.close()
        last = browser.value("last.getTime()")
        browser.until(gone)
        assert browser.value("last.getTime()") - last < 500  # at most the beat that was on its way
        for width in WIDTHS:
            browser.resize(width)
            assert_fits(browser)
            browser.picture(shots / f"lost-{width}.png")
