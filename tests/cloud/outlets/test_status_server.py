"""The status page's server over real sockets: who gets in, what changes something, what is told when."""

import base64
import http.client
import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args
from urllib.parse import urlencode

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import CONFIG, FLEET, RUN, fetch_model, make_bundle
from tests.cloud.rounds.test_rollouts import PLAN, new_version
from tests.cloud.stores import on_both

from sedge_cloud.admin.rollouts import start_rollout
from sedge_cloud.admin.run_report import run_report
from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.config import BrokerConfig, CloudConfig
from sedge_cloud.facts.records import Code
from sedge_cloud.outlets.metrics import exposition
from sedge_cloud.outlets.page.server import StatusServer
from sedge_cloud.outlets.settings import HttpConfig
from sedge_cloud.outlets.sidecars import snapshot_of
from sedge_cloud.store.joins import tags_coded
from sedge_cloud.store.rows import JoinRow, TokenRow
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Decline

TOKEN = "0123456789abcdef" * 2
FORM = "application/x-www-form-urlencoded"


class Site:
    """A cloud with three devices, of which one is offline in an open round, and a server on its store."""

    def __init__(
        self, folder: Path, token: str | None = None, broker: BrokerConfig | None = None
    ) -> None:
        self.seen = Seen(folder)
        self.seen.cloud.hello("a", "b", "c")
        self.seen.gone("b")
        self.seen.record()
        path = folder / "token"
        path.write_text(token or "")
        http = HttpConfig("127.0.0.1:0", str(path) if token else None)
        broker = broker or BrokerConfig()
        cloud = CloudConfig(FLEET, str(self.seen.state), broker=broker, http=http)
        self.snapshot = snapshot_of(cloud)
        self.server = StatusServer(cloud, self.snapshot)
        self.server.start()

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, body: str | None = None
    ) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
        try:
            connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def post(self, *words: str, **given: str) -> int:
        """Act as a form of the page does; the status."""
        return self.act(*words, **given)[0]

    def act(
        self, verb: str, name: str, csrf: str | None = None, origin: str = "", said: str = ""
    ) -> tuple[int, str]:
        """The status and the page. By default with the token and origin of the page."""
        if csrf is None:
            _, text = self.ask(f"/confirm?verb={verb}&name={name}")
            csrf = text.partition('name="csrf" value="')[2].partition('"')[0]
        origin = origin or f"http://127.0.0.1:{self.server.port}"
        headers = {"Content-Type": FORM, "Origin": origin}
        fields = {"verb": verb, "name": name, "csrf": csrf, "said": said}
        return self.ask("/act", headers, urlencode(fields))

    def close(self) -> None:
        self.server.close()
        self.snapshot.close()
        self.seen.cloud.store.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Without a token, as on loopback."""
    site = Site(tmp_path)
    yield site
    site.close()


@on_both
def test_devices_come_in_pages_that_can_be_searched(site: Site) -> None:
    for number in range(130):
        site.seen.cloud.enrol(f"pi-{number:03}")
    site.snapshot.expire()

    def rows(query: str) -> list[str]:
        status, text = site.ask(f"/?{query}")
        assert status == 200
        return re.findall(r'<tr id="device-([^"]*)"', text)

    first = rows("")
    assert len(first) == 60 and first[0] == "b"  # who needs a look comes first
    assert "1 to 60 of 133 devices." in site.ask("/")[1]
    seen = [*first, *rows("offset=60"), *rows("offset=120")]
    assert len(seen) == len(set(seen)) == 133
    assert rows("search=pi-12") == [f"pi-12{i}" for i in range(10)]
    assert rows("state=offline") == ["b"]
    found = json.loads(site.ask("/api/devices?search=PI&offset=1&limit=2&state=never")[1])
    assert [device["device"] for device in found] == ["pi-001", "pi-002"]
    site.seen.cloud.store.tag({"pi-007", "pi-008"}, {"site": "lab"})
    site.seen.cloud.store.tag({"pi-008"}, {"floor": "2"})
    site.snapshot.expire()
    assert rows("where=site%3Dlab") == ["pi-007", "pi-008"]
    site.seen.cloud.store.tag({"a", "b", "c"}, {"site": "home"})
    site.snapshot.expire()
    assert rows("where=site%3Dhome")[0] == "b"
    assert rows("where=not+site%3Dlab&offset=60")[0] == "pi-059"
    assert rows("where=site%3Dlab+and+floor>1&state=never") == ["pi-008"]
    page = site.ask("/?search=pi-00&where=site%3Dlab")[1]
    assert ">site=lab </span>" in page and ">floor=2 site=lab </span>" in page
    found = json.loads(site.ask("/api/devices?where=not+site%3Dlab&search=pi-00")[1])
    assert [device["device"][-1] for device in found] == list("01234569")
    status, text = site.ask("/?where=room%3D1")
    assert status == 400 and text.startswith("where: found 'room'")
    for query in ("offset=-1", "limit=0", "state=bad", f"search={'x' * 65}", "offset=one"):
        status, text = site.ask(f"/api/devices?{query}")
        assert status == 400 and text.startswith("query: found ") and text.count("\n") == 1


def test_the_page_the_facts_and_the_metrics_say_the_same(site: Site, tmp_path: Path) -> None:
    start_rollout(site.seen.cloud.store, RUN, new_version(tmp_path / "new"), PLAN)
    site.snapshot.expire()
    status, text = site.ask("/")
    assert status == 200 and "is offline; round 1 waits for it" in text
    facts = json.loads(site.ask("/api/fleet")[1])
    assert [(w["device"], w["code"]) for w in facts["runs"][0]["open"]["waiting"]] == [
        ("a", "device_working"), ("b", "device_lost"), ("c", "device_working"),
    ]  # fmt: skip
    assert json.loads(site.ask(f"/api/runs/{RUN}")[1]) == facts["runs"][0]
    goes = facts["runs"][0]["rollout"]
    lines = list(run_report(site.seen.reader, RUN, as_json=True))
    assert json.loads(lines[-1])["rollout"] == goes
    assert (goes["bundle"], goes["state"], goes["phases"]) == ("version 2", "in_progress", 3)
    assert json.loads(site.ask("/api/devices")[1]) == facts["devices"]
    assert json.loads(site.ask("/api/problems")[1]) == facts["problems"]
    assert site.ask("/api/runs/none")[0] == 404
    families = {f.name: f for f in text_string_to_metric_families(site.ask("/metrics")[1])}
    problems = {s.labels["code"]: s.value for s in families["sedge_problems"].samples}
    assert problems["device_lost"] == 1 and problems["disk_full"] == 0
    assert families["sedge_round_devices_awaited"].samples[0].value == 3
    assert all("device" not in s.labels for f in families.values() for s in f.samples)


@pytest.mark.parametrize("name", ["sedge-grafana.json", "sedge-alerts.yml"])
def test_what_board_and_alerts_ask_for_is_there(site: Site, name: str) -> None:
    site.seen.cloud.hello("b")
    site.seen.round("a", "b", "c")  # with a closed round and an open one
    facts = site.seen.facts()
    grown = msgspec.structs.replace(facts.disk, daily=1e6)  # which takes an hour to know
    text = exposition(msgspec.structs.replace(facts, disk=grown))[0].decode()
    known = {s.name for f in text_string_to_metric_families(text) for s in f.samples}
    asked = (Path(__file__).parents[3] / "docs" / name).read_text()
    names = set(re.findall(r"\bsedge_\w+", asked))
    assert len(names) > 3 and names <= known
    for codes in re.findall(r'code=~\\?"([^"\\]*)', asked):
        assert set(codes.split("|")) <= set(get_args(Code))


@on_both
def test_the_metrics_count_bytes_and_events(tmp_path: Path) -> None:
    """Newcomers apart from devices that come again, a lost model, and the coordinator's own link."""
    config = msgspec.structs.replace(CONFIG, broadcast=BroadcastConfig())
    seen = Seen(tmp_path / "cloud", config, "ab")
    seen.cloud.hello("a", "b")
    seen.cloud.answer("a", "b")
    fetch_model(seen.cloud, "a")
    seen.cloud.answer("a", "b")
    facts = seen.facts()
    one, two = facts.runs[0].rounds
    assert (one.newcomers, two.newcomers, two.whole) == (("a", "b"), (), ("a",))
    found = {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(exposition(facts)[0].decode())
        for sample in family.samples
    }
    for way in ("up", "down"):
        rounds = [getattr(known, way) for known in (one, two)]
        link = sum(getattr(known, f"link_{way}") for known in (one, two))
        *of_devices, own = (
            found["sedge_bytes_total", frozenset((of, RUN, way))]
            for of in ("newcomers", "devices", "coordinator")
        )
        assert of_devices == rounds and own == link > 0
    assert found["sedge_whole_models_total", frozenset((RUN,))] == 1
    events = {
        next(iter(labels)): value
        for (name, labels), value in found.items()
        if name == "sedge_events_total"
    }
    assert events == seen.cloud.core.counters and events["whole_models"] == 1
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
    said = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    assert all(f"`{event}`" in said for event in events)


def test_every_alert_has_a_severity_and_a_runbook_that_exists() -> None:
    docs = Path(__file__).parents[3] / "docs"
    rules = (docs / "sedge-alerts.yml").read_text().split("- alert: ")[1:]
    assert len(rules) > 5
    headings = re.findall(r"^#+ (.+)$", (docs / "operating.md").read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for rule in rules:
        assert re.search(r"labels: \{ severity: (critical|warning) \}$", rule, re.MULTILINE), rule
        link = re.search(
            r'runbook_url: "\{\{ \$externalLabels.docs_url \}\}/operating.html#(.+)"', rule
        )
        assert link is not None and link[1] in anchors, rule


def test_the_openapi_document_describes_what_is_served(site: Site) -> None:
    document = json.loads(site.ask("/api/openapi.json")[1])
    schemas = document["components"]["schemas"]
    facts = json.loads(site.ask("/api/fleet")[1])
    assert set(schemas["Fleet"]["properties"]) == set(facts)
    assert set(schemas["DeviceFacts"]["properties"]) == set(facts["devices"][0])
    for path in document["paths"]:
        assert site.ask(path.replace("{run}", RUN))[0] == 200


def test_health_follows_the_service(site: Site) -> None:
    assert site.ask("/healthz") == (200, "ok\n")
    site.seen.recorder.close(site.seen.cloud.now)
    site.snapshot.expire()
    assert site.ask("/healthz", {"Host": "balancer"}) == (503, "silent\n")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "["])
def test_a_name_that_somebody_else_points_here_is_refused(site: Site, host: str) -> None:
    assert site.ask("/", {"Host": host})[0] == 421


def test_a_token_opens_everything_but_health(tmp_path: Path) -> None:
    site = Site(tmp_path, TOKEN)
    basic = base64.b64encode(f"me:{TOKEN}".encode()).decode()
    for path in ("/", "/api/fleet", "/metrics", "/events", "/confirm", "/live.js"):
        assert site.ask(path)[0] == 401
        assert site.ask(path, {"Authorization": "Bearer wrong"})[0] == 401
        assert site.ask(path, {"Authorization": "Basic !"})[0] == 401
    assert site.ask("/act", {}, "verb=stop&name=run")[0] == 401
    assert site.ask("/healthz")[0] == 200
    for header in (f"Bearer {TOKEN}", f"Basic {basic}"):
        assert site.ask("/api/fleet", {"Authorization": header, "Host": "any.example"})[0] == 200
    site.close()


@on_both
def test_an_action_needs_the_pages_own_form(site: Site) -> None:
    assert site.ask("/act")[0] == 405
    assert site.post("stop", RUN, csrf="guessed") == 403
    assert site.post("stop", RUN, origin="http://evil.example") == 403
    assert site.ask("/act", {"Content-Type": FORM}, f"verb=stop&name={RUN}")[0] == 403
    assert site.ask("/act", {}, "x" * 5000)[0] == 400
    store = site.seen.cloud.second_store()
    assert store.runs()[0].status == "running"
    assert site.post("stop", RUN) == 303
    assert store.runs()[0].status == "stopped"
    assert site.post("revoke", "c") == 200
    assert [row.device for row in store.devices() if row.revoked] == ["c"]
    store.close()
    site.seen.cloud.load()  # the core notices, as it notices the command line
    assert site.seen.cloud.core.runs[RUN].status == "stopped"


@on_both
def test_devices_are_paused_tagged_and_let_in_from_the_page(site: Site) -> None:
    store = site.seen.cloud.second_store()
    assert site.post("pause", "a") == 303 and store.paused().keys() == {"a"}
    assert "confirm?verb=resume&amp;name=a" in site.ask("/device?name=a")[1]
    assert site.post("resume", "a") == 303 and store.paused() == {}
    assert site.post("tag", "a", said="site=lab floor=2") == 303
    assert store.tags_of(["a"]) == {"a": {"site": "lab", "floor": "2"}}
    assert "floor=2 site=lab" in site.ask("/device?name=a")[1]
    status, text = site.act("tag", "a", said="lab")
    assert status == 400 and text.startswith("tags: found 'lab', expected KEY=VALUE")
    token = TokenRow("join-1", bytes(32), "", tags_coded({}), 2, False, 0.0, time.time() + 99)
    store.add_token(token)
    for i, name in enumerate(("new", "bad")):
        row = JoinRow(bytes([i]) * 32, token.token, name, bytes(32), "pending", 0.0)
        store.ask_to_join(row, time.time())
    site.snapshot.expire()
    assert "confirm?verb=accept&amp;name=new" in site.ask("/")[1]
    assert site.post("accept", "new") == 303 and site.post("refuse", "bad") == 303
    assert store.device("new") is not None and store.device("bad") is None
    assert store.joins(["pending"]) == []
    store.close()


@on_both
def test_a_run_that_lies_ready_is_started_and_an_ended_one_goes_on(site: Site) -> None:
    folder = site.seen.state / "prepared" / "next"
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text('strategy = "fedavg"\nnum_rounds = 7\n')
    status, text = site.ask("/confirm?verb=start&name=next")
    assert status == 400 and "with run.toml and bundle/" in text
    make_bundle(folder / "bundle")
    site.snapshot.expire()
    assert "confirm?verb=start&amp;name=next" in site.ask("/")[1]
    assert "fedavg, 7 rounds of training" in site.ask("/confirm?verb=start&name=next")[1]
    assert site.post("start", "next") == 303
    store = site.seen.cloud.second_store()
    assert {row.run: row.status for row in store.runs()} == {RUN: "running", "next": "running"}
    assert "confirm?verb=start" not in site.ask("/")[1]
    assert site.post("stop", "next") == 303 and site.post("continue", "next") == 303
    assert store.runs()[-1].status == "running"
    for name in ("next", "none", "../next", "run"):
        assert site.ask(f"/confirm?verb=start&name={name}")[0] == 400
    store.close()


def test_devices_and_rounds_have_a_page_each(site: Site) -> None:
    site.seen.cloud.hello("b")
    site.seen.round("a", "b", "c")
    site.seen.record()
    site.snapshot.expire()
    assert "Updates</dt><dd>1" in site.ask("/device?name=a")[1]
    closed, opened = (site.ask(f"/round?run={RUN}&number={n}")[1] for n in (1, 2))
    assert "Updates</dt><dd>3 of 3 devices" in closed and "number=2" in closed
    assert "Round 2</a></strong> (train), open for" in opened
    assert "Is it learning?" in site.ask("/wall")[1]
    for path in ("/device?name=none", "/device", f"/round?run={RUN}&number=9", "/round"):
        assert site.ask(path)[0] == 404


def test_a_revocation_that_is_incomplete_says_what_to_do(tmp_path: Path) -> None:
    """As under the unit, which may not edit the broker's passwords."""
    (tmp_path / "passwords").mkdir()
    site = Site(tmp_path, broker=BrokerConfig(device_password_file=str(tmp_path / "passwords")))
    status, text = site.act("revoke", "c")
    assert status == 200 and "Device c is revoked" in text and "may still let it in" in text
    assert "Is a directory" in text and "sudo sedge-cloud device revoke c" in text
    (tmp_path / "passwords").rmdir()
    told = BrokerConfig(device_password_file="none", reload="true")
    site.server._cloud = msgspec.structs.replace(site.server._cloud, broker=told)
    assert site.post("revoke", "b") == 303  # nothing is left to do
    site.close()


def test_nobody_waits_for_a_slow_broker(tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = tmp_path / "reload.sh"
    script.write_text(f"until [ -e {go} ]; do sleep .02; done")
    broker = BrokerConfig(device_password_file=str(tmp_path / "none"), reload=f"sh {script}")
    site = Site(tmp_path, broker=broker)
    store = site.seen.cloud.second_store()
    answers: list[int] = []
    acting = threading.Thread(target=lambda: answers.append(site.post("revoke", "c")))
    acting.start()
    while not any(row.revoked for row in store.devices()):
        time.sleep(0.01)
    assert site.ask("/")[0] == 200 and not answers
    go.touch()
    acting.join()
    assert answers == [303]
    store.close()
    site.close()


@on_both
def test_a_run_that_has_ended_can_be_deleted(site: Site) -> None:
    site.post("stop", RUN)
    assert f"confirm?verb=delete&amp;name={RUN}" in site.ask("/")[1]
    assert site.post("delete", RUN) == 303
    assert site.seen.cloud.second_store().runs() == []
    status, text = site.ask("/")
    assert status == 200 and "None yet" in text


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        ("stop", "none"),
        ("revoke", "none"),
        ("delete", RUN),
        ("pause", "none"),
        ("tag", "none"),
        ("accept", "none"),
        ("refuse", "a"),
        ("", ""),
    ],
)
def test_what_there_is_not_cannot_be_asked_for(site: Site, verb: str, name: str) -> None:
    status, text = site.ask(f"/confirm?verb={verb}&name={name}")
    assert status == 400 and "expected" in text


@on_both
def test_a_stream_tells_when_a_round_closes(site: Site) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=20)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.getheader("content-type", "").startswith("text/event-stream")
    assert answer.readline() == b"retry: 3000\n"
    site.seen.cloud.hello("b")
    site.seen.round("a", "b", "c")
    for line in iter(answer.readline, b""):
        if line == b"event: round\n":
            break
    told = json.loads(answer.readline().removeprefix(b"data: "))
    assert told == {"run": RUN, "round": 1, "before": 0.25, "after": 0.75}
    connection.close()


@on_both
def test_many_readers_read_the_store_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.ask("/")
    monkeypatch.setattr("sedge_cloud.facts.snapshot.FRESH_S", 1e9)
    read = site.snapshot.facts()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(site.ask, ["/"] * 8))
    assert site.snapshot.facts() is read


def test_what_devices_say_is_text(site: Site) -> None:
    evil = "<script>alert(1)</script>"
    site.seen.cloud.say("c", Decline(RUN, 1, "TrainingDiverged", evil))
    site.seen.record()
    _, text = site.ask("/")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text and evil not in text
    _, refused = site.ask(f"/confirm?verb=stop&name={evil}")
    assert site.ask("/confirm?verb=stop&name=x")[1].startswith("name: found 'x'")
    assert evil in refused  # as text/plain with nosniff: see guard.py


def test_a_taken_port_is_one_line(site: Site) -> None:
    listen = HttpConfig(f"127.0.0.1:{site.server.port}")
    with pytest.raises(ConfigError, match=r"http\.listen: .* expected an address to bind"):
        StatusServer(CloudConfig(fleet=FLEET, http=listen), site.snapshot)
