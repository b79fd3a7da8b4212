"""The leader, with an ingest beside it: the runs it knows, whom it asks, and what one run's fault ends."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.cloud import given
from tests.cloud.helper import (
    AXES,
    CONFIG,
    FLEET,
    RUN,
    Cloud,
    Device,
    Faults,
    a_hello,
    began,
    make_bundle,
    secret_of,
    small_update,
)
from tests.cloud.stores import on_both
from tests.fleet import failing

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import TrainingConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.events import RoundOpened, RunEnded
from sedge_cloud.ingest.open_orders import RESEND_S
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.terms import Terms
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.messages import Cancel, Committed, Get, Offer, Order, Reject, Welcome
from sedge_protocol.wire.transfer import describe


@on_both
def test_what_the_command_line_adds_is_taken_up(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, ())
    cloud.load()
    for name in "ab":
        cloud.second_store().add_device(name, secret_of(name))
        cloud.devices[name] = Device(name)
    cloud.hello()
    assert len(cloud.messages("a", Welcome)) == 1  # at once
    assert not cloud.events(RoundOpened)
    start_run(cloud.second_store(), RUN, cloud.bundle, CONFIG)
    cloud.poll()
    assert not cloud.events(RoundOpened)
    cloud.notice()
    assert cloud.events(RoundOpened) == [RoundOpened(RUN, 1, "train", ("a", "b"))]


@on_both
def test_an_ended_run_that_cannot_be_read_stops_nothing(cloud: Cloud) -> None:
    """Nor is anything collected that it may name."""
    broken = msgspec.structs.replace(
        cloud.run_row(), run="old", status="finished", state=b"\xc1", created=0.0
    )
    cloud.store.add_run(broken)
    cloud.restart()
    assert cloud.notes(logging.ERROR)[0].startswith("run old: its row cannot be read: ")
    cloud.hello()
    cloud.answer("a", "b")
    assert len(cloud.summaries()) == 1
    assert {note.split(":")[0] for note in cloud.notes(logging.ERROR)} == {"run old"}


LOST: dict[str, tuple[str, dict[str, object], str]] = {
    "a class that is gone": ("tests.cloud.given:Gone", {}, "strategy: found "),
    "a module that is gone": ("sedge_no_such_module:Strategy", {}, "strategy: found "),
    "an option out of range": ("fedobp", {"quantile": 7.0}, "quantile: found "),
    "an option that is gone": ("fedavg", {"old": 1}, "old: found "),
    "an option that had levels": ("fedobp", {"prefixes": True}, "prefixes: found True, expected an o"),
    "a property of another type": ("tests.cloud.given:Miscoded", {}, "tests.cloud.given:Miscoded.patch_"),
}  # fmt: skip


@on_both
@pytest.mark.parametrize("name", LOST)
def test_a_run_whose_strategy_cannot_be_loaded_fails_alone(cloud: Cloud, name: str) -> None:
    strategy, options, key = LOST[name]
    config = msgspec.structs.replace(CONFIG, strategy=strategy, options=options)
    coded = msgspec.msgpack.encode(config)
    lost = msgspec.structs.replace(cloud.run_row(), run="a-lost", config=coded, created=0.0)
    cloud.second_store().add_run(lost)
    cloud.load()
    (note,) = cloud.notes(logging.ERROR)
    said = "run a-lost has failed: its strategy cannot be loaded"
    assert note.startswith(f"{said}: {key}")
    why = note.partition(": ")[2]
    assert cloud.events(RunEnded) == [RunEnded("a-lost", "failed", why)]
    assert [row.status for row in cloud.store.runs()] == ["failed", "running"]
    cloud.come_back()
    cloud.answer("a", "b")
    assert len(cloud.summaries()) == 1 and len(cloud.notes(logging.ERROR)) == 1


def test_offers_for_a_run_without_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed with a round open: who has worked for it gets a receipt, who has yet to is told."""
    cloud = began(tmp_path, "abc", strategy=given.NAME)
    orders = {name: cloud.order(name) for name in "abc"}
    monkeypatch.delattr(given, "Given")
    cloud.restart()
    assert cloud.run_row().status == "failed" and cloud.core.open == {}
    assert [event.status for event in cloud.events(RunEnded)] == ["failed"]
    for starts in range(2):  # failed by this process, then by one before it
        name = "ab"[starts]
        blob = small_update(orders[name])
        manifest = describe(blob)
        offer = Offer(RUN, 1, manifest, 1, blob)
        for _ in range(2):
            answer = cloud.say(name, offer, manifest.transfer)
            assert answer == [Committed(RUN, 1, manifest.sha256)]
        stale = Offer(RUN, 2, manifest, 1, blob)
        (refused,) = cloud.say(name, stale, manifest.transfer)
        assert isinstance(refused, Reject) and refused.reason == "unknown-round"
        cloud.restart()
    answer = cloud.say("c", Get(RUN, 1, b"\1"), orders["c"].model.transfer)
    assert answer == [Cancel(RUN, 1, "the round is over")]
    assert len(cloud.notes(logging.ERROR)) == 1


@on_both
@pytest.mark.parametrize("restarts", [False, True])
def test_a_round_does_not_wait_for_the_revoked(tmp_path: Path, restarts: bool) -> None:
    cloud = began(tmp_path, "abcd")
    cloud.answer("a", "d")
    cloud.second_store().revoke_device("c")
    cloud.second_store().revoke_device("d")  # whose update is here, and counts
    if restarts:
        cloud.restart()
        cloud.hello("a", "b")
    else:
        cloud.load()
    assert cloud.notes(logging.WARNING)[-1] == "run run, round 1: c declines: 'revoked'"
    assert cloud.core.open[RUN].settled == {"a", "c", "d"} and not cloud.summaries()
    assert [o.declined for o in cloud.store.orders(RUN, 1)] == ["", "", "revoked", ""]
    cloud.answer("b")
    (summary,) = cloud.summaries()
    assert (len(summary.devices), summary.declined) == (3, 1)
    cloud.restart()
    assert cloud.core.counters["declined"] == 0  # said once


@on_both
def test_nothing_is_read_if_nothing_changes(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud.store, "runs", None)
    cloud.hello()  # our own commits are no news
    cloud.load()


def test_the_draw_is_an_argument(tmp_path: Path) -> None:
    """A replay of a published run names its own cohorts."""
    cloud = Cloud(tmp_path, devices=("a", "b", "c"))
    asked: list[tuple[int, str, tuple[str, ...]]] = []

    def draw(run: Run, number: int, task: str, online: Sequence[str]) -> list[str]:
        asked.append((number, task, tuple(online)))
        return ["c"] if number == 1 else ["a", "b"]

    cloud.core = Coordinator(FLEET, cloud.store, 1.0, 1, draw)
    cloud.core.load(cloud.now)
    cloud.hello()
    assert cloud.events(RoundOpened)[-1].cohort == ("c",)
    cloud.answer("c")
    assert cloud.events(RoundOpened)[-1].cohort == ("a", "b")
    assert asked == [(1, "train", ("a", "b", "c")), (2, "train", ("a", "b", "c"))]


def test_nobody_is_sought_if_nobody_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither before enough are online nor when too few of them can do the work."""
    cloud = Cloud(tmp_path, devices=("a", "b", "c"))
    looked: list[int] = []
    able = cloud.core.devices.able

    def counted(terms: Terms) -> list[str]:
        looked.append(1)
        return able(terms)

    monkeypatch.setattr(cloud.core.devices, "able", counted)
    cloud.hello("a")
    for _ in range(5):
        cloud.poll(1.0)
    assert looked == []
    cloud.say("b", a_hello("b", backends=("executorch",)))
    for _ in range(5):
        cloud.poll(1.0)
    assert len(looked) == 1 and not cloud.events(RoundOpened)
    cloud.hello("c")
    assert len(looked) == 2 and cloud.events(RoundOpened)[0].cohort == ("a", "c")


def test_a_lost_link_makes_everyone_say_hello(cloud: Cloud) -> None:
    cloud.hello()
    cloud.say("a", Get(RUN, 1, b"\1"), cloud.order("a").model.transfer)
    cloud.core.disconnected(cloud.now)
    assert not any(cloud.core.devices[name].online for name in "ab")
    sent = len(cloud.events(Send))
    cloud.poll(RESEND_S)
    assert len(cloud.events(Send)) == sent  # nobody can be reached
    found = cloud.core.connected(cloud.now)
    hints = {topics.hint(FLEET, f"{shard:02x}") for shard in range(topics.SHARDS)}
    assert {effect.topic for effect in found if isinstance(effect, Send)} == hints
    cloud.hello()
    assert len(cloud.messages("a", Order)) == 2


def test_a_run_whose_bundle_is_damaged_does_not_hold_up_the_others(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None)
    other = make_bundle(tmp_path / "other", axes=AXES)
    start_run(cloud.store, "a-broken", other, CONFIG)
    start_run(cloud.store, RUN, cloud.bundle, CONFIG)
    bundle = cloud.store.runs()[0].bundle.hex()
    path = tmp_path / "state" / "blobs" / bundle
    whole = path.read_bytes()
    path.write_bytes(b"rot" + whole[3:])
    cloud.come_back()
    assert [event.run for event in cloud.events(RoundOpened)] == [RUN]
    (error,) = cloud.notes(logging.ERROR)
    assert error.startswith(f"run a-broken: its bundle cannot be read: read blob {path}: ")
    cloud.second_store().add_device("c", secret_of("c"))
    cloud.load()  # whatever else is new is taken up meanwhile
    cloud.devices["c"] = Device("c")
    assert cloud.say("c", a_hello("c")) and len(cloud.notes(logging.ERROR)) == 2
    cloud.now += DISK_RETRY_S - 1
    cloud.load()
    assert len(cloud.notes(logging.ERROR)) == 2
    with failing(cloud.store, "runs", StorageError("connection lost")):
        cloud.poll(1)
        cloud.poll(DISK_RETRY_S - 1)
    assert cloud.notes(logging.ERROR)[2:] == 2 * ["connection lost"]  # and when it collects
    path.write_bytes(whole)  # the operator brings the backup
    cloud.now += 1
    cloud.notice()
    assert (cloud.core.timer() or 0.0) > cloud.now
    assert [event.run for event in cloud.events(RoundOpened)] == [RUN, "a-broken"]
    cloud.now += DISK_RETRY_S
    cloud.load()
    assert len(cloud.notes(logging.ERROR)) == 4


@pytest.mark.parametrize("speaks", ["poll", "hello"])
def test_an_order_that_no_frame_holds_ends_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speaks: str
) -> None:
    """Its round was stored by a version that did not measure it."""
    monkeypatch.setattr("sedge_cloud.runs.orders.MAX_ORDER_BYTES", 2**30)
    cloud = Cloud(tmp_path)
    names = [(f"{i:04}".ljust(240, "x"), (2,), Role.PARAMETER) for i in range(1200)]
    large = make_bundle(tmp_path / "large", Layout.of(names))
    training = TrainingConfig(freeze=tuple(name for name, *_ in names[1:]))
    config = msgspec.structs.replace(CONFIG, training=training)
    start_run(cloud.second_store(), "large", large, config)
    cloud.load()
    with monkeypatch.context() as patch:
        if speaks == "hello":  # what was stored is of a process that ended before it spoke
            patch.setattr("sedge_protocol.wire.frame.MAX_BODY_BYTES", 2**30)
        cloud.hello(codecs=("freeze",))
    if speaks == "hello":
        assert set(cloud.core.open) == {RUN, "large"}
        cloud.effects.clear()
        cloud.come_back(codecs=("freeze",))
    if speaks == "poll":  # what the devices could not be sent is an answer, and due at once
        assert cloud.core.timer() == -math.inf
        cloud.poll()
    (why,) = cloud.notes(logging.ERROR)
    assert why.startswith("run large has failed in round 1: 0 of 2 devices sent an update")
    assert "its order cannot be sent: ORDER body" in why
    assert [(e.run, e.status) for e in cloud.events(RunEnded)] == [("large", "failed")]
    assert set(cloud.core.open) == {RUN} and cloud.core.timer() is not None
    assert {order.run for order in cloud.messages("b", Order)} == {RUN}
    cloud.come_back(codecs=("freeze",))
    cloud.answer("a", "b")
    assert len(cloud.summaries()) == 1 and len(cloud.notes(logging.ERROR)) == 1


def test_a_model_that_cannot_be_read_keeps_no_device_out(cloud: Cloud, tmp_path: Path) -> None:
    cloud.hello()
    cloud.restart()
    (tmp_path / "state" / "blobs" / cloud.state().model.hex()).unlink()
    assert [type(answer) for answer in cloud.say("a", a_hello("a"))] == [Welcome]
    assert cloud.core.devices["a"].online and len(cloud.notes(logging.ERROR)) == 1


@on_both
def test_a_store_that_fails_while_loading(cloud: Cloud) -> None:
    cloud.second_store().add_device("c", secret_of("c"))
    cloud.devices["c"] = Device("c")
    broken = Faults(cloud, 7, StorageError("disk on fire"), after=False)
    cloud.load()
    assert broken.struck == "enrolled" and cloud.notes(logging.ERROR) == ["disk on fire"]
    cloud.now += DISK_RETRY_S - 1
    cloud.load()
    assert broken.calls == 7  # not twice a second
    cloud.now += 1
    cloud.load()
    assert broken.calls > 7
    cloud.hello("a", "b", "c")
    assert cloud.events(RoundOpened)[0].cohort == ("a", "b", "c")
    with pytest.raises(StorageError, match="disk on fire"):  # at the start nothing is kept up
        Faults(cloud, 4, StorageError("disk on fire"), after=False)
        type(cloud.core)(FLEET, cloud.store, 1.0, 1).load(cloud.now)
