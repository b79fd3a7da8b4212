"""Three hosts: what its checks find, and a short run of it with one host and real servers."""

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.fleet import failing
from tools.bench.three_hosts import __main__, checks, network
from tools.bench.three_hosts.checks import Course
from tools.bench.three_hosts.network import Network
from tools.bench.three_hosts.watch import Update, Watch

from sedge_cloud.store.records import DeviceSummary, Summary

ROOT = Path(__file__).parents[2]


def closed(number: int, *devices: str, late: tuple[str, ...] = ()) -> Summary:
    """A closed round."""
    parts = tuple(DeviceSummary(device, 1, 0.0, 0.0, 10) for device in devices)
    return Summary("a", number, "train", 2, 0, parts, 0.0, 0.0, 0.0, 20, {}, late=late)


def course(*summaries: Summary, models: list[bytes] | None = None) -> Course:
    """A run with a row for every update of its rounds."""
    rows = {("a", s.round, d.device) for s in summaries for d in s.devices}
    return Course(models or [], list(summaries), rows)


def test_an_update_with_a_receipt_must_be_a_row_and_count() -> None:
    given: Counter[Update] = Counter([("a", 1, "x"), ("a", 1, "y"), ("a", 2, "x"), ("b", 1, "x")])
    whole = course(closed(1, "x", "y"))
    assert checks.lost(given, "a", whole) == [("a", 2, "x")]
    left_out = Course([], [closed(1, "x")], {("a", 1, "x"), ("a", 1, "y"), ("a", 2, "x")})
    assert checks.lost(given, "a", left_out) == [("a", 1, "y")]


def test_an_update_counts_once() -> None:
    assert checks.twice(course(closed(1, "x", "y"), closed(2, "x"))) == []
    assert checks.twice(course(closed(1, "x", "x"))) == ["round 1: x"]
    assert checks.twice(course(closed(2, "x", late=("y",)))) == ["round 2: y late"]


def test_other_bytes_are_found() -> None:
    undisturbed = course(closed(1, "x"), closed(2, "x"), models=[b"a", b"b", b"c"])
    assert checks.differs(course(closed(1, "x"), models=[b"a", b"b"]), undisturbed) == ""
    assert checks.differs(course(models=[b"a", b"B"]), undisturbed) == "models, number 2"
    assert checks.differs(course(closed(1, "y"), models=[b"a"]), undisturbed) == "rounds, number 1"
    assert "increase --rounds" in checks.differs(course(models=[b"a"] * 4), undisturbed)


def test_devices_report_receipts(tmp_path: Path) -> None:
    log = tmp_path / "agents.log"
    log.write_text(
        "10.0 sedge.edge.d-1 run a, round 3: train\n"
        "12.5 sedge.edge.d-1 run a, round 3: update stored by the coordinator\n"
        "13.0 sedge.edge.d-1 connected to mqtt://broker:1883\n"
        "13.0 sedge.edge.d-2 run a, round 3: update rejected: stale round is over\n"
    )
    assert checks.receipts(log) == {("a", 3, "d-1"): 1}
    assert checks.refusals(log) == ["d-2: run a, round 3: update rejected: stale round is over"]
    assert checks.longest_silence(log, 10.0, 14.0) == 3.0  # d-2's, from the beginning
    assert checks.longest_silence(log, 11.0, 16.0) == 3.5  # d-1's, until the end


def test_an_update_that_is_seen_at_once_came_before_the_fault() -> None:
    watch = Watch.__new__(Watch)
    watch.accepted = {("a", 1, "x"): 10.05, ("a", 1, "y"): 12.0}
    assert watch.after(10.0, {"x", "y"}) == 2.0 and watch.after(10.0, {"x"}) is None


def test_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert network.missing() == "the three hosts are network namespaces: run this as root"


def test_what_cannot_be_played_is_a_row_and_leaves_its_log(tmp_path: Path) -> None:
    options = argparse.Namespace(hosts=3, devices=8)
    given = Network.__new__(Network), tmp_path, options, tmp_path
    with failing(__main__, "open_servers", RuntimeError("no PostgreSQL\nto start")):
        row = __main__.attempted(*given, "leader-killed", 3, {})
    assert not row.good and row.wrong == "RuntimeError: no PostgreSQL to start"
    assert "no PostgreSQL" in (tmp_path / "error.log").read_text()


def test_a_table_says_how_soon_each_fault_is_over() -> None:
    def row(fault: str, seconds: float | None, lost: int = 0) -> __main__.Row:
        return __main__.Row(fault, 0, 90, lost, 0, True, seconds, 5)

    given = [row("a", 1.0), row("a", 4.0), row("b", None, lost=2), row("a", 2.0), row("b", None)]
    lines = [line.split() for line in __main__.by_fault(given)]
    assert lines[1:] == [
        ["a", "3", "0", "0", "0", "2.0", "4.0"],
        ["b", "2", "2", "2", "0", "-", "-"],
        ["all", "5", "2", "2", "0", "2.0", "4.0"],
    ]


@pytest.mark.slow
@pytest.mark.skipif(network.missing() is not None, reason="needs root and network namespaces")
@pytest.mark.parametrize("hosts", ["1", "3"])
def test_a_short_run(hosts: str) -> None:
    words = ["--hosts", hosts, "--devices", "8", "--rounds", "40"]
    faults = [word for fault in ("leader-killed", "all-at-once") for word in ("--fault", fault)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench", "three_hosts", *words, *faults],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert [(row["lost"], row["twice"], row["same_bytes"], row["wrong"]) for row in rows] == [
        (0, 0, True, "")
    ] * 2, done.stdout + done.stderr
    assert not list(Path("/run/netns").glob("host-*"))
