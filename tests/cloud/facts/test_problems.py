"""Every situation that an operator must see, on a real core and store: code, subject, reason."""

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import CONFIG, FLEET, RUN, a_hello, random_theta, report_for, update
from tests.cloud.stores import on_both

from sedge_cloud.admin.backup import back_up, restore
from sedge_cloud.config import CloudConfig, RobustConfig
from sedge_cloud.facts.devices import change
from sedge_cloud.facts.disk import daily_growth
from sedge_cloud.facts.problems import DEPLOYED, problems
from sedge_cloud.facts.reader import Reader
from sedge_cloud.outlets.metrics import exposition
from sedge_cloud.outlets.terminal import closes
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import DevicePast
from sedge_cloud.store.rows import JoinRow, RunRow, TokenRow
from sedge_protocol.wire.messages import Decline, Get, Offer
from sedge_protocol.wire.transfer import describe, to_bitmap
from sedge_protocol.wire.update import encode_update

MANY = msgspec.structs.replace(CONFIG, num_rounds=5, min_updates=2, robust=RobustConfig())
Arrange = Callable[[Seen], float | None]


def silent(seen: Seen) -> float:
    seen.cloud.hello("a", "b")
    return DEPLOYED.total_seconds() + 1


def lost(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    seen.gone("b")


def declined(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    seen.cloud.say("c", Decline(RUN, 1, "DiskFull", "no room for 2 MB\x1b[2J"))


def rejected(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    report = report_for(seen.cloud.order("c"), train_loss=float("nan"))
    seen.cloud.offer("c", encode_update(report, b""))


def distrusted(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    for name, scale in (("a", 0.1), ("b", 0.1), ("c", 1e6)):
        delta = random_theta(ord(name)) * np.float32(scale)
        seen.cloud.upload(name, update(seen.cloud.order(name), delta))
    seen.cloud.poll()


def revoked(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    seen.cloud.second_store().revoke_device("c")
    seen.cloud.load()


def gone(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    seen.gone("a")
    seen.gone("b")


def gated(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    seen.cloud.say("b", a_hello("b", waits="31 % battery"))


def all_but_one_gated(seen: Seen) -> None:
    for name in "abc":
        waits = "" if name == "a" else "31 % battery"
        seen.cloud.say(name, a_hello(name, waits=waits))
    seen.cloud.poll()


def unable(seen: Seen) -> None:
    seen.cloud.hello("a", "b")
    seen.cloud.say("c", a_hello("c", backends=("executorch",)))


def wrong_clock(seen: Seen) -> None:
    """A start that it had long before: its frames are genuine, and old."""
    device = seen.cloud.devices["c"]
    old = device.peer.seal(a_hello("c"))
    fresh = type(device)("c", incarnation=900)
    seen.cloud.devices["c"] = fresh
    seen.cloud.hello("a", "b", "c")
    seen.gone("c")
    seen.record()
    seen.cloud.devices["c"] = device
    seen.cloud.give("c", old)


def forged(seen: Seen) -> None:
    seen.cloud.hello("a", "b")
    seen.cloud.give("c", bytes(100))


def slow(seen: Seen) -> float:
    seen.cloud.hello("a", "b", "c")
    seen.round("a", "b")
    return 60.0


def stuck(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    seen.round("a")
    seen.cloud.poll(CONFIG.deadline_s + 1)


def short(seen: Seen) -> None:
    seen.cloud.hello("a")


def paused(seen: Seen) -> None:
    store = seen.cloud.second_store()
    store.add_token(TokenRow("t-1", bytes(32), "", b"", 1, False, 0.0, 1.0))
    store.ask_to_join(JoinRow(b"k" * 65, "t-1", "d", bytes(32), "pending", 0.0), 0.0)
    store.pause(["b", "c"], 1.0)
    seen.cloud.load()
    seen.cloud.hello("a", "b", "c")


def failed(seen: Seen) -> None:
    seen.cloud.hello("a", "b", "c")
    for name in "abc":
        seen.cloud.say(name, Decline(RUN, 1, "TrainingDiverged", "NaN"))
    seen.cloud.poll()


def cut(seen: Seen) -> None:
    seen.record()
    seen.recorder.link(False, seen.cloud.now, "connection refused")


def full(seen: Seen) -> None:
    seen.record()
    seen.recorder.error("disk full: blobs/ab needs 4096 bytes", seen.cloud.now)


@pytest.mark.parametrize(
    ("arrange", "code", "subject", "words"),
    [
        (silent, "device_never", "c", "has never been heard"),
        (lost, "device_lost", "b", "is offline; round 1 waits for it"),
        (declined, "device_declined", "c", r"round 1: DiskFull: no room for 2 MB\x1b[2J"),
        (rejected, "device_rejected", "c", "rejected: malformed: update.train_loss: nan"),
        (distrusted, "device_distrusted", "c", "round 1 was unlike the others"),
        (revoked, "device_revoked", "c", "declined round 1: revoked"),
        (gone, "round_below_quorum", "run",
         "round 1 cannot reach its quorum of 3 updates: a is offline and b is offline. At "),
        (gated, "device_waits", "b", "waits: 31 % battery; round 1 continues without it"),
        (unable, "device_unable", "c", "lacks a backend of"),
        (wrong_clock, "device_unheard", "c", "start at 1970-01-01 00:00:01 UTC by its clock is before"),
        (forged, "device_unheard", "c", "is ignored"),
        (slow, "device_slow", "c", "the others trained in 2.0 s; it was asked; round 1 waits for it"),
        (stuck, "round_stuck", "run", "passed its deadline with fewer than 2 updates"),
        (short, "run_waits", "run", "needs 2 devices online, 1 is"),
        (all_but_one_gated, "run_waits", "run", "needs 2 devices online, 1 is; 2 more wait"),
        (paused, "run_waits", "run", "2 devices online, 1 is; 2 more are paused; 1 more asks to join"),
        (failed, "run_failed", "run", "3 declined"),
        (failed, "device_declined", "c", "declined round 1: TrainingDiverged: NaN"),
        (cut, "broker_down", "coordinator", "cannot reach its broker: connection refused"),
        (full, "coordinator_error", "coordinator", "disk full"),
    ],
)  # fmt: skip
def test_it_is_seen_with_its_reason(
    arrange: Arrange, code: str, subject: str, words: str, tmp_path: Path
) -> None:
    seen = Seen(tmp_path, MANY)
    later = arrange(seen) or 0.0
    found = seen.found(later)
    assert (code, subject) in found, found
    assert words in found[code, subject]


def test_a_distrusted_device_is_forgiven_once_three_updates_have_counted(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MANY)
    distrusted(seen)
    for _ in range(3):
        assert ("device_distrusted", "c") in seen.found()
        seen.round("a", "b", "c")
    assert ("device_distrusted", "c") not in seen.found()
    c, store = seen.facts().devices[2], seen.cloud.store
    assert (c.device, c.updates, c.strikes) == ("c", 4, 1)
    moved = [row for n in range(1, 5) for row in store.traffic(RUN, n) if row.device == "c"]
    assert (c.up, c.down) == (sum(row.up for row in moved), sum(row.down for row in moved))
    assert len(moved) == 4 and c.up > 0 < c.down


@on_both
def test_devices_that_are_not_yet_deployed_are_one_line(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MANY, [f"pi-{number}" for number in range(50)])
    seen.cloud.hello("pi-0")
    assert "device_never" not in {code for code, _ in seen.found()}  # who could be so quick?
    found = seen.found(DEPLOYED.total_seconds() + 1)
    text = found["device_never", "devices"]
    assert text == "49 enrolled devices are not yet deployed: none of them has ever connected"
    assert len([code for code, _ in found if code == "device_never"]) == 1


def test_an_open_round_counts_and_awaits_without_devices_that_wait(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MANY)
    gated(seen)
    current = seen.facts().runs[0].open
    assert current is not None and (current.cohort, current.needed) == (3, 2)
    assert b'sedge_round_devices_awaited{run="run"} 2.0' in exposition(seen.facts())[0]
    seen.gone("b")
    assert seen.found()["device_waits", "b"].startswith("waits: 31 % battery; is offline; round 1")


def test_a_device_that_has_fetched_nothing_does_not_work(tmp_path: Path) -> None:
    """What each device is at, and since when, by what the coordinator has seen of it."""
    seen = Seen(tmp_path, MANY)
    cloud = seen.cloud
    for name in "abc":
        cloud.say(name, a_hello(name, max_packet=16_000))
    cloud.poll()

    def doing(name: str) -> tuple[str, float | None]:
        facts = seen.facts()
        current = facts.runs[0].open
        assert current is not None
        waiting = next(w for w in current.waiting if w.device == name)
        assert waiting.code == "device_working" and waiting.since is not None
        return waiting.text, round((facts.at - waiting.since).total_seconds())

    def ask(name: str, *chunks: int) -> None:
        model = cloud.order(name).model
        get = Get(RUN, 1, to_bitmap(chunks, model.count))
        cloud.say(name, get, model.transfer)

    count = cloud.order("a").model.count
    assert count > 1 and doing("a") == ("was asked", 2)
    assert {(device.done, device.total) for device in seen.facts().devices} == {(0, 0)}
    for _ in range(3):  # nothing gets through to a
        ask("a", 0)
        cloud.poll(20.0)
    assert doing("a")[0] == f"fetches the model: 0 of {count} chunks"
    for chunks in ([0], range(1, count)):
        ask("b", *chunks)
        cloud.poll(1.0)
    assert doing("b")[0] == f"fetches the model: 1 of {count} chunks"
    cloud.poll(5.0)
    assert doing("b") == ("trains", 0)
    assert doing("a")[0] == f"fetches the model: 0 of {count} chunks"
    blob = update(cloud.order("b"), random_theta(1))
    manifest = describe(blob, 2**12)
    cloud.say("b", Offer(RUN, 1, manifest, 1), manifest.transfer)
    assert doing("b") == ("sends its update", 2)
    b = seen.facts().devices[1]
    assert (b.device, b.done, b.total) == ("b", 0, 0)


@on_both
def test_a_grace_is_shown_as_it_is_and_survives_a_restart(tmp_path: Path) -> None:
    config = msgspec.structs.replace(MANY, quorum=0.6, grace_s=3600.0, deadline_s=7200.0)
    seen = Seen(tmp_path, config)
    seen.cloud.hello("a", "b", "c")
    seen.round("a", "b")

    def ends_in() -> float:
        facts = seen.facts()
        current = facts.runs[0].open
        assert current is not None and current.ends_at is not None
        assert (current.phase, current.needed, current.updates) == ("grace", 2, 2)
        assert closes(current, facts.at).startswith("has its quorum of 2 updates and closes at ")
        return (current.ends_at - facts.at).total_seconds()

    assert 3590 < ends_in() <= 3600
    seen.cloud.now += 1000
    seen.cloud.restart()
    seen.restart()
    seen.reader.store = seen.cloud.store
    assert 2580 < ends_in() < 2600
    seen.cloud.poll(2600)
    assert len(seen.cloud.summaries()) == 1


@on_both
def test_a_run_that_failed_says_why_after_backup_and_restore(tmp_path: Path) -> None:
    seen = Seen(tmp_path / "cloud", MANY)
    failed(seen)
    why = seen.facts().runs[0].why
    assert "3 declined" in why
    back_up(seen.cloud.store, FLEET, tmp_path / "b.tar")
    seen.cloud.store.close()
    elsewhere = CloudConfig(FLEET, str(tmp_path / "elsewhere"))
    restore(tmp_path / "b.tar", elsewhere, replace=False)
    with closing(open_folder(tmp_path / "elsewhere")) as store:
        facts = Reader(FLEET, tmp_path / "elsewhere", store).read()
    assert facts.runs[0].why == why and facts.runs[0].ended is not None
    assert [d.heard is not None for d in facts.devices] == [True] * 3


@on_both
def test_a_closed_round_is_never_drawn_open(tmp_path: Path) -> None:
    """Everything that is read is of one moment, whatever is written meanwhile."""
    seen = Seen(tmp_path, MANY)
    seen.cloud.hello("a", "b", "c")
    other = seen.cloud.second_store()
    reader, runs = Reader(FLEET, seen.state, other), other.runs

    def runs_and_then_the_round_closes() -> list[RunRow]:
        rows = runs()
        seen.round("a", "b", "c")
        return rows

    other.runs = runs_and_then_the_round_closes  # type: ignore[method-assign]
    before = reader.read(seen.wall()).runs[0]
    other.runs = runs  # type: ignore[method-assign]
    after = reader.read(seen.wall()).runs[0]
    assert before.open is not None and (before.open.round, before.rounds) == (1, ())
    assert after.open is not None and (after.open.round, after.closed_rounds) == (2, 1)


def test_a_service_that_is_gone_is_silent_and_nobody_is_called_offline(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MANY)
    seen.cloud.hello("a", "b", "c")
    found = seen.found(later=60, alive=False)
    assert set(found) == {("coordinator_silent", "coordinator")}
    assert {d.state for d in seen.facts(60, alive=False).devices} == {"unknown"}
    seen.recorder.close(seen.cloud.now)  # in order: at once
    assert ("coordinator_silent", "coordinator") in seen.found()


@pytest.mark.parametrize(
    ("free", "code"), [(10**6, "disk_full"), (5 * 10**8, "disk_low"), (10**11, None)]
)
def test_the_disk(
    free: int, code: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = Seen(tmp_path, MANY)
    seen.cloud.hello("a", "b", "c")
    disk = SimpleNamespace(free=free, total=10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)  # pyright: ignore[reportUnknownLambdaType]
    assert {code for code, _ in seen.found()} == ({code} if code else set())


def test_a_busy_fleet_hears_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Something is written every second there, so that no sign of life is ever due."""
    seen = Seen(tmp_path, MANY)
    disk = SimpleNamespace(free=10**6, total=10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)  # pyright: ignore[reportUnknownLambdaType]
    seen.record()
    disk.free = 10**11
    for _ in range(5):
        seen.cloud.now += 1
        seen.cloud.core.counters["updates"] += 1
        seen.recorder.poll(seen.cloud.now)
    assert seen.reader.read(seen.wall()).disk.free == 10**11


def test_growth_is_a_slope_that_takes_an_hour_to_know() -> None:
    day = 86_400.0
    assert daily_growth([]) == (None, 0.0)
    assert daily_growth([(0.0, 5), (3599.0, 9)]) == (None, 3599.0)
    steady = [(day * k / 4, 100 + 25 * k) for k in range(9)]
    growth, watched = daily_growth(steady)
    assert growth == pytest.approx(100.0) and watched == 2 * day
    old = [(-30 * day, 10**9), *steady]  # older than a week: it says nothing of the growth now
    assert daily_growth(old)[0] == pytest.approx(100.0)


def test_a_device_gets_worse_when_it_falls_from_its_best(tmp_path: Path) -> None:
    assert change(DevicePast(before=(0.5,) * 5)) is None
    assert change(DevicePast(before=(0.5, 0.6, 0.7, 0.8, 0.9, 1.0))) == pytest.approx(0.3)
    fallen = change(DevicePast(before=(0.5, 0.8, 0.8, 0.8, 0.7, 0.6, 0.5)))
    assert fallen == pytest.approx(-0.2)
    seen = Seen(tmp_path, MANY)
    facts = seen.facts()
    worse = msgspec.structs.replace(facts.devices[0], change=fallen)
    found = problems(msgspec.structs.replace(facts, devices=(worse, *facts.devices[1:])))
    assert [p.subject for p in found if p.code == "device_worse"] == ["a"]


@on_both
def test_since_when_survives_a_restart_of_the_service(tmp_path: Path) -> None:
    seen = Seen(tmp_path, MANY)
    seen.cloud.hello("a", "b", "c")
    seen.gone("b")
    before = {d.device: d for d in seen.facts().devices}
    seen.restart()
    after = {d.device: d for d in seen.facts().devices}
    assert after["b"].since == before["b"].since is not None
    assert after["b"].heard is not None
