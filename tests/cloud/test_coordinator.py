"""The coordinator: who is heard, what is answered, and that it goes on whatever fails."""

import logging
import math
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.helper import (
    AXES,
    CONFIG,
    FLEET,
    LAYOUT,
    RUN,
    Cloud,
    Crash,
    Device,
    Faults,
    a_hello,
    make_bundle,
    report_for,
    secret_of,
    small_update,
)
from tests.cloud.stores import on_both, open_store

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import BroadcastConfig, CodecConfig
from sedge_cloud.config import RunConfig, TrainingConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.events import RoundClosed, RoundOpened, RunEnded
from sedge_cloud.ingest.open_orders import RESEND_S
from sedge_cloud.ingest.sessions import REFUSE_EVERY_S, VERSION
from sedge_cloud.runs.run import Run, RunState
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import Summary
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import VERSIONS, Frame, Kind, open_frame, seal
from sedge_protocol.wire.messages import (
    Busy,
    Cancel,
    Codec,
    Committed,
    Decline,
    Get,
    Goodbye,
    Have,
    Hello,
    Message,
    Offer,
    Order,
    Refusal,
    Reject,
    Training,
    Welcome,
    decode_body,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import encode_update

STARTED = Welcome(bytes(16), VERSION, VERSIONS, devices=2)


@on_both
def test_a_hello_is_welcomed_and_kept(cloud: Cloud) -> None:
    hello = a_hello("one")
    (welcome,) = cloud.say("a", hello)
    assert welcome == Welcome(hello.nonce, VERSION, VERSIONS, devices=2)
    assert cloud.notes(logging.INFO) == ["device a is online"]
    row = cloud.store.devices()[0]
    assert row.incarnation == 1 and msgspec.msgpack.decode(row.hello or b"", type=Hello) == hello
    cloud.say("a", a_hello("two"))
    assert len(cloud.notes(logging.INFO)) == 1 and cloud.store.devices()[0] == row
    cloud.devices["a"] = Device("a", incarnation=2)
    cloud.say("a", a_hello("three"))
    assert cloud.store.devices()[0].incarnation == 2


def test_a_round_begins_when_enough_are_there(cloud: Cloud) -> None:
    cloud.hello("a")
    assert not cloud.events(RoundOpened) and cloud.core.timer() is None
    cloud.hello("b")
    assert cloud.events(RoundOpened) == [RoundOpened(RUN, 1, "train", ("a", "b"))]
    for name in "ab":
        (order,) = cloud.messages(name, Order)
        assert (order.run, order.round, order.task) == (RUN, 1, "train")
        assert order.bundle.sha256 == cloud.run_row().bundle
        assert order.model.sha256 == cloud.state().model
        assert order.training == Training() and order.codec == Codec()
    assert cloud.order("a").seed != cloud.order("b").seed


def test_a_hello_brings_the_open_order_again(cloud: Cloud) -> None:
    cloud.hello()
    first = cloud.order("a")
    cloud.now += 50.0
    _, again = cloud.say("a", a_hello("again"))
    assert again == first
    cloud.answer("a")
    assert len(cloud.say("a", a_hello("third"))) == 1  # it owes nothing any more
    assert len(cloud.messages("b", Order)) == 1


def test_an_order_that_may_have_been_lost_is_sent_again(cloud: Cloud) -> None:
    cloud.hello()
    cloud.answer("a")
    assert cloud.core.timer() == cloud.now + RESEND_S
    cloud.poll(RESEND_S - 1)
    assert len(cloud.messages("b", Order)) == 1
    cloud.poll(1)
    assert len(cloud.messages("b", Order)) == 2 and len(cloud.messages("a", Order)) == 1
    cloud.poll(1)
    assert len(cloud.messages("b", Order)) == 2


def test_who_is_away_is_not_drawn_and_not_asked_again(cloud: Cloud) -> None:
    cloud.hello()
    cloud.say("b", Goodbye(a_hello("b").nonce))
    cloud.poll(RESEND_S)
    assert len(cloud.messages("a", Order)) == 2 and len(cloud.messages("b", Order)) == 1
    cloud.answer("a")
    cloud.say("b", a_hello("back"))
    cloud.answer("b")
    assert len(cloud.summaries()) == 1


def test_a_goodbye_ends_its_own_session_only(cloud: Cloud) -> None:
    device = cloud.devices["a"]
    assert cloud.say("a", Goodbye(bytes(16))) == []  # before any hello
    will = device.peer.seal(Goodbye(a_hello("first").nonce))  # made when its connection began
    cloud.say("a", a_hello("first"))
    later = device.peer.seal(Goodbye(a_hello("second").nonce))
    cloud.say("a", a_hello("second"))
    cloud.give("a", will)  # the broker notices late that the first connection is gone
    assert cloud.core.devices["a"].online
    for number in range(100):  # out of any window of sequence numbers
        cloud.say("a", Get("none", number + 1, b""))
    cloud.give("a", later)
    assert not cloud.core.devices["a"].online
    cloud.give("a", later)
    assert not cloud.core.devices["a"].online


def test_a_replay_changes_nothing(cloud: Cloud) -> None:
    device = cloud.devices["a"]
    hello, bye = device.peer.seal(a_hello("x")), device.peer.seal(Goodbye(a_hello("x").nonce))
    assert len(cloud.give("a", hello)) == 1
    cloud.give("a", bye)
    assert cloud.give("a", hello) == []
    assert not cloud.core.devices["a"].online
    # Nor does one of an earlier start of the device, even after a restart of our own.
    cloud.devices["a"] = Device("a", incarnation=9)
    cloud.say("a", a_hello("y"))
    cloud.restart()
    (refusal,) = cloud.give("a", hello)
    assert isinstance(refusal, Refusal) and refusal.reason == "incarnation"
    assert not cloud.core.devices["a"].online


def test_a_fleet_of_two_protocol_versions_closes_a_round(tmp_path: Path) -> None:
    """Version 3 here is made for this test: the same bodies under another version byte."""
    cloud = Cloud(tmp_path, msgspec.structs.replace(CONFIG, evaluate=False))
    cloud.core = Coordinator(FLEET, cloud.store, 1.0, 2, versions=(2, 3))
    cloud.load()
    new = cloud.devices["a"]
    new.peer = Peer(new.topic, new.keys.up, new.keys.down, 2, 0, versions=(2, 3, 4))
    welcome = cloud.say("a", msgspec.structs.replace(a_hello("x"), versions=(2, 3, 4)))[0]
    assert isinstance(welcome, Welcome) and welcome.versions == (2, 3)
    new.peer.agree(welcome.versions)
    cloud.say("b", a_hello("y"))
    cloud.poll()
    spoken = {send.payload[2] for send in cloud.sends(topics.down(FLEET, "a")) if is_order(send)}
    assert spoken == {3}
    spoken = {send.payload[2] for send in cloud.sends(topics.down(FLEET, "b")) if is_order(send)}
    assert spoken == {2}
    cloud.answer("a", "b")
    (closed,) = cloud.events(RoundClosed)
    assert [device.device for device in closed.summary.devices] == ["a", "b"]


def is_order(send: Send) -> bool:
    return send.payload[3] == Kind.ORDER


def test_sides_that_no_longer_speak_version_1_agree(tmp_path: Path) -> None:
    """HELLO and WELCOME are frozen: read by a side that has dropped the version of their header."""
    cloud = Cloud(tmp_path)
    cloud.core = Coordinator(FLEET, cloud.store, 1.0, 2, versions=(2, 3))
    cloud.load()
    old = cloud.devices["a"]
    old.peer = Peer(old.topic, old.keys.up, old.keys.down, 2, 0, versions=(2,))
    (welcome, *_) = cloud.say("a", msgspec.structs.replace(a_hello("x"), versions=(2,)))
    assert isinstance(welcome, Welcome) and welcome.versions == (2, 3)
    assert cloud.core.devices["a"].online
    assert cloud.devices["a"].peer.seal(Decline(RUN, 1, "x"))[2] == 2


def test_a_coordinator_that_starts_speaks_as_the_last_hello_said(tmp_path: Path) -> None:
    """A receipt that leaves before the next hello must be one that the device reads."""
    cloud = Cloud(tmp_path)
    for incarnation in (2, 3):
        cloud.core = Coordinator(FLEET, cloud.store, 1.0, incarnation, versions=(2, 3))
        cloud.load()
        receipt = cloud.core.devices["a"].peer.seal(Committed(RUN, 1, bytes(32)))
        assert receipt[2] == incarnation
        cloud.say("a", msgspec.structs.replace(a_hello("x"), versions=(2, 3, 4)))


def test_a_device_without_a_version_in_common_is_refused(cloud: Cloud) -> None:
    cloud.hello()
    assert cloud.core.open[RUN].present == {"a", "b"}
    (refusal,) = cloud.say("a", msgspec.structs.replace(a_hello("x"), versions=(7,)))
    assert refusal == Refusal("version", "protocol versions 7, this side speaks 2")
    assert not cloud.core.devices["a"].online
    assert cloud.core.open[RUN].present == {"b"}


def test_a_device_of_the_first_version_is_told_to_be_upgraded(cloud: Cloud) -> None:
    device, text = Device("a"), "speaks protocol version 1, the coordinator 2: upgrade Sedge on it"
    topic = topics.first_version_up(FLEET, "a")
    down = topics.first_version_down(FLEET, "a")
    old = Peer(topic, device.keys.up, device.keys.down, 1, 0, versions=(1,))
    forged = Peer(topic, bytes(32), device.keys.down, 1, 0, versions=(1,)).seal(a_hello("x"))
    for payload in (forged, *(old.seal(a_hello("x")) for _ in range(3))):
        cloud.effects += cloud.arrive(topic, payload)
    (send,) = cloud.sends(down)
    assert not any("no device that is enrolled" in note for note in cloud.notes(logging.WARNING))
    cloud.now += REFUSE_EVERY_S
    cloud.effects += cloud.arrive(topic, old.seal(a_hello("x")))
    assert len(cloud.sends(down)) == 2 and len(cloud.notes(logging.WARNING)) == 1
    frame = open_frame(send.payload, down, device.keys.down, (1,))
    refusal = decode_body(frame.kind, frame.body)
    assert isinstance(refusal, Refusal) and refusal.reason == "version"
    assert refusal.detail == f"this device {text}"
    assert cloud.notes(logging.WARNING)[-1] == f"device a is refused: this device {text}"
    assert not cloud.core.devices["a"].online


def test_a_frame_under_another_shard_is_dropped_and_counted(cloud: Cloud) -> None:
    topic = topics.up(FLEET, "a").replace(topics.shard_of("a"), "3f")
    peer = Peer(topic, cloud.devices["a"].keys.up, bytes(32), 1, 0)
    assert cloud.arrive(topic, peer.seal(a_hello("x"))) == []
    assert cloud.core.counters["foreign"] == 1 and not cloud.core.devices["a"].online


def test_a_fleet_is_asked_for_hellos_by_one_message_a_shard(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, devices=[f"pi-{number}" for number in range(500)])
    cloud.load()
    asked = [effect for effect in cloud.core.connected(cloud.now) if isinstance(effect, Send)]
    shards = {topics.shard_of(name) for name in cloud.devices}
    assert {send.topic for send in asked} == {topics.hint(FLEET, shard) for shard in shards}
    assert len(asked) == len(shards) <= topics.SHARDS


def snapshot(cloud: Cloud) -> object:
    """Everything a stranger must not change."""
    online = {name: cloud.core.devices[name].online for name in "ab"}
    rows = [Store.runs(cloud.store), Store.orders(cloud.store, RUN, 1), Store.devices(cloud.store)]
    updates = [cloud.store.update(RUN, 1, name) for name in "ab"]
    return online, rows, updates, {n: (r.settled, r.received) for n, r in cloud.core.open.items()}


def everything(cloud: Cloud, name: str) -> list[Message]:
    """One of each message that a device may send."""
    blob = small_update(cloud.order("a"))
    return [
        a_hello("z"),
        Goodbye(a_hello(name).nonce),
        Get(RUN, 1, b"\1"),
        Offer(RUN, 1, describe(blob), 1, blob),
        Decline(RUN, 1, "DataError", "no"),
    ]


@on_both
def test_strangers_and_the_revoked_are_not_heard(cloud: Cloud, tmp_path: Path) -> None:
    cloud.hello()
    other = open_store(tmp_path / "state")
    other.revoke_device("b")
    cloud.load()
    assert "device b is revoked" in cloud.notes(logging.WARNING)
    before, sent = snapshot(cloud), len(cloud.events(Send))
    refused = 0
    for name in ("b", "stranger"):
        device = Device(name)
        for message in everything(cloud, name):
            transfer = message.manifest.transfer if isinstance(message, Offer) else bytes(16)
            frame = device.peer.seal(message, transfer)
            effects = cloud.arrive(device.topic, frame)
            refused += sum(isinstance(effect, Send) for effect in effects)
    assert snapshot(cloud) == before and len(cloud.events(Send)) == sent
    assert refused == 1  # of five frames of the revoked one
    assert cloud.core.counters["foreign"] == 10


def test_a_frame_for_nobody(cloud: Cloud) -> None:
    frame = cloud.devices["a"].peer.seal(a_hello("a"))
    for topic in ("", "sedge", topics.down(FLEET, "a"), "sedge/1/bench/device/A/up", "x" * 70_000):
        assert cloud.arrive(topic, frame) == []
    cloud.poll()
    assert sum("dropped a frame on" in text for text in cloud.notes(logging.WARNING)) == 5
    assert not cloud.core.devices["a"].online


def test_the_key_of_another_device_opens_nothing(cloud: Cloud) -> None:
    cloud.hello()
    before = snapshot(cloud)
    for message in everything(cloud, "a"):
        # b knows its own secret, and can publish on a's topic where the broker lets it.
        impostor = Device("a", incarnation=7, secret=secret_of("b"))
        transfer = message.manifest.transfer if isinstance(message, Offer) else bytes(16)
        assert cloud.give("a", impostor.peer.seal(message, transfer)) == []
        # Nor does a's own frame, taken to b's topic or to another fleet's.
        genuine = Device("a", incarnation=7).peer.seal(message, transfer)
        assert cloud.give("b", genuine) == []
        elsewhere = topics.up("elsewhere", "a")
        assert cloud.arrive(elsewhere, genuine) == []
    assert snapshot(cloud) == before and cloud.core.counters["refused"] == 10


def test_what_we_send_cannot_be_sent_back_to_us(cloud: Cloud) -> None:
    cloud.hello()
    before = snapshot(cloud)
    for send in cloud.sends(topics.down(FLEET, "a")):
        assert cloud.give("a", send.payload) == []
    assert snapshot(cloud) == before


def of_version(payload: bytes, version: int) -> bytes:
    """A frame that says it is of another version."""
    return payload[:2] + bytes([version]) + payload[3:]


def test_what_a_device_says_stays_in_its_line_of_the_log(cloud: Cloud) -> None:
    cloud.hello()
    cloud.say("a", Decline(RUN, 1, "x\n", "y\n2026-01-01 ERROR sedge.cloud: \x1b[31mforged"))
    (note,) = cloud.notes(logging.WARNING)
    assert note.isprintable() and "forged" in note


def test_another_version_is_told_so(tmp_path: Path) -> None:
    version = 3
    cloud = Cloud(tmp_path)
    frame = of_version(cloud.devices["a"].peer.seal(a_hello("a")), version)
    detail = f"frame of protocol version {version}, this side speaks 2"
    assert cloud.give("a", frame) == [Refusal("version", detail)]
    assert cloud.core.counters["version"] == 1 and not cloud.core.devices["a"].online
    # Only the header is known to be alike; whatever follows, it is answered or dropped.
    assert cloud.give("a", frame[:5]) == []
    assert cloud.give("a", frame + b"more") == []  # said once a minute: its MAC was not checked
    cloud.now += REFUSE_EVERY_S
    assert cloud.give("a", frame + b"more") == [Refusal("version", detail)]


def test_messages_that_only_we_send(cloud: Cloud) -> None:
    cloud.hello()
    before = snapshot(cloud)
    backwards: list[Message] = [
        STARTED,
        cloud.order("a"),
        Cancel(RUN, 0, "stop"),
        Have(1, b"\1", 4),
        Committed(RUN, 1, bytes(32)),
        Reject(RUN, 1, bytes(32), "stale"),
        Busy(1),
        Refusal("version"),
    ]
    for message in backwards:
        assert cloud.say("a", message) == []
        assert f"{type(message).__name__} from a is not for a coordinator" in cloud.notes(30)[-1]
    assert snapshot(cloud) == before


def test_no_damage_to_a_frame_does_anything(cloud: Cloud) -> None:
    cloud.hello()
    blob = small_update(cloud.order("a"))
    manifest = describe(blob)
    frames = [
        cloud.devices["a"].peer.seal(Decline(RUN, 1, "DataError", "no")),
        cloud.devices["a"].peer.seal(Offer(RUN, 1, manifest, 1, blob), manifest.transfer),
    ]
    before = snapshot(cloud)
    for frame in frames:
        for place in range(len(frame)):
            if 40 <= place < 48:
                continue  # reserved: under the MAC as well, so these change something only there
            cloud.now += 0.02  # so that none is dropped unseen
            cloud.give("a", frame[:place])
            cloud.give("a", frame[:place] + bytes([frame[place] ^ 0x10]) + frame[place + 1 :])
        cloud.give("a", frame + b"\0")
    rng = np.random.default_rng(0)
    for length in rng.integers(0, 300, 300):
        cloud.give("a", b"SG\1" + rng.bytes(int(length)))
    assert snapshot(cloud) == before
    assert len(cloud.give("a", frames[1])) == 1  # and the real one still counts


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x80", b"\x91" * 5000, b"\xdf\xff\xff\xff\xff", b"\xd9\x02\xff\xff"]
)
def test_a_sound_frame_with_a_bad_body(cloud: Cloud, body: bytes) -> None:
    cloud.hello()
    before, device = snapshot(cloud), cloud.devices["a"]
    for seq, kind in enumerate(Kind, 100):
        frame = seal(Frame(kind, body, 1, seq), device.topic, device.keys.up)
        assert cloud.give("a", frame) == []
    unknown = bytearray(seal(Frame(Kind.OFFER, body, 1, 200), device.topic, device.keys.up))
    struct.pack_into("<B", unknown, 3, 99)
    assert cloud.give("a", bytes(unknown)) == []
    assert snapshot(cloud) == before


def by_another_process(cloud: Cloud, act: Callable[[Store], object]) -> None:
    """The command line, beside the running service."""
    other = open_store(cloud.folder / "state")
    act(other)
    other.close()


@on_both
def test_what_the_command_line_adds_is_taken_up(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, ())
    cloud.load()
    for name in "ab":
        by_another_process(cloud, lambda store, n=name: store.add_device(n, secret_of(n)))  # type: ignore[misc]
        cloud.devices[name] = Device(name)
    cloud.hello()
    assert len(cloud.messages("a", Welcome)) == 1  # at once
    assert not cloud.events(RoundOpened)
    by_another_process(cloud, lambda store: start_run(store, RUN, cloud.bundle, CONFIG))
    cloud.poll()
    assert not cloud.events(RoundOpened)
    cloud.load()
    cloud.poll()
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
    "an option that had levels": (
        "fedobp",
        {"prefixes": True},
        "prefixes: found True, expected an o",
    ),
    "a property of another type": (
        "tests.cloud.given:Miscoded",
        {},
        "tests.cloud.given:Miscoded.patch_",
    ),
}


@on_both
@pytest.mark.parametrize("name", LOST)
def test_a_run_whose_strategy_cannot_be_loaded_fails_alone(cloud: Cloud, name: str) -> None:
    strategy, options, key = LOST[name]
    config = msgspec.structs.replace(CONFIG, strategy=strategy, options=options)
    coded = msgspec.msgpack.encode(config)
    lost = msgspec.structs.replace(cloud.run_row(), run="a-lost", config=coded, created=0.0)
    by_another_process(cloud, lambda store: store.add_run(lost))
    cloud.load()
    (note,) = cloud.notes(logging.ERROR)
    said = "run a-lost has failed: its strategy cannot be loaded"
    assert note.startswith(f"{said}: {key}")
    why = note.partition(": ")[2]
    assert cloud.events(RunEnded) == [RunEnded("a-lost", "failed", why)]
    assert [row.status for row in cloud.store.runs()] == ["failed", "running"]
    cloud.restart()
    cloud.hello()
    cloud.answer("a", "b")
    assert len(cloud.summaries()) == 1 and len(cloud.notes(logging.ERROR)) == 1


def test_an_offer_for_a_run_without_its_strategy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed with a round open: who has worked for it gets a receipt, who has yet to is told."""
    cloud = Cloud(tmp_path, msgspec.structs.replace(CONFIG, strategy=given.NAME), ("a", "b", "c"))
    cloud.hello()
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
    assert cloud.say("c", Get(RUN, 1, b"\1"), orders["c"].model.transfer) == [
        Cancel(RUN, 1, "the round is over")
    ]
    assert len(cloud.notes(logging.ERROR)) == 1


def revoke(cloud: Cloud, name: str) -> None:
    """The operator revokes a device beside the running service."""
    by_another_process(cloud, lambda store: store.revoke_device(name))


@on_both
@pytest.mark.parametrize("restarts", [False, True])
def test_a_round_does_not_wait_for_the_revoked(tmp_path: Path, restarts: bool) -> None:
    cloud = Cloud(tmp_path, devices=("a", "b", "c", "d"))
    cloud.hello()
    cloud.answer("a", "d")
    revoke(cloud, "c")
    revoke(cloud, "d")  # whose update is here, and counts
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
def test_a_disk_that_refuses_to_note_the_revoked_is_asked_again(cloud: Cloud) -> None:
    cloud.hello()
    cloud.answer("a")
    revoke(cloud, "b")
    broken = Faults(cloud, 9, StorageError("disk on fire"), after=False)
    cloud.load()
    assert broken.struck == "decline" and cloud.core.open[RUN].settled == {"a"}
    cloud.now += DISK_RETRY_S
    cloud.load()
    assert cloud.core.open[RUN].settled == {"a", "b"}


@on_both
def test_nothing_is_read_while_nothing_changes(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_nobody_is_looked_for_while_nobody_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before enough are online nor when too few of them can do the work."""
    cloud = Cloud(tmp_path, devices=("a", "b", "c"))
    looked: list[int] = []
    able = cloud.core.devices.able

    def counted(run: Run) -> list[str]:
        looked.append(1)
        return able(run)

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
    cloud.restart()
    cloud.hello()
    assert [event.run for event in cloud.events(RoundOpened)] == [RUN]
    (error,) = cloud.notes(logging.ERROR)
    assert error.startswith(f"run a-broken: its bundle cannot be read: read blob {path}: ")
    by_another_process(cloud, lambda store: store.add_device("c", secret_of("c")))
    cloud.load()  # whatever else is new is taken up meanwhile
    cloud.devices["c"] = Device("c")
    assert cloud.say("c", a_hello("c")) and len(cloud.notes(logging.ERROR)) == 2
    cloud.now += DISK_RETRY_S - 1
    cloud.load()
    assert len(cloud.notes(logging.ERROR)) == 2
    path.write_bytes(whole)  # the operator brings the backup
    cloud.now += 1
    cloud.load()
    cloud.poll()
    assert [event.run for event in cloud.events(RoundOpened)] == [RUN, "a-broken"]
    cloud.now += DISK_RETRY_S
    cloud.load()
    assert len(cloud.notes(logging.ERROR)) == 2


@pytest.mark.parametrize("speaks", ["poll", "hello"])
def test_an_order_that_no_frame_holds_ends_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, speaks: str
) -> None:
    """Its round was stored by a version that did not measure it."""
    monkeypatch.setattr("sedge_cloud.runs.orders.MAX_ORDER_BYTES", 2**30)
    cloud = Cloud(tmp_path)
    names = [(f"{i:04}".ljust(240, "x"), (2,), Role.PARAMETER) for i in range(1200)]
    large = make_bundle(tmp_path / "large", Layout.of(names))
    config = msgspec.structs.replace(
        CONFIG, training=TrainingConfig(freeze=tuple(name for name, *_ in names[1:]))
    )
    by_another_process(cloud, lambda store: start_run(store, "large", large, config))
    cloud.load()
    with monkeypatch.context() as patch:
        if speaks == "hello":  # what was stored is of a process that ended before it spoke
            patch.setattr("sedge_protocol.wire.frame.MAX_BODY_BYTES", 2**30)
        cloud.hello(codecs=("freeze",))
    if speaks == "hello":
        assert set(cloud.core.open) == {RUN, "large"}
        cloud.effects.clear()
        cloud.restart()
        cloud.hello(codecs=("freeze",))
    if speaks == "poll":  # what the devices could not be sent is an answer, and due at once
        assert cloud.core.timer() == -math.inf
        cloud.poll()
    (why,) = cloud.notes(logging.ERROR)
    assert why.startswith("run large has failed in round 1: 0 of 2 devices sent an update")
    assert "its order cannot be sent: ORDER body" in why
    assert [(e.run, e.status) for e in cloud.events(RunEnded)] == [("large", "failed")]
    assert set(cloud.core.open) == {RUN} and cloud.core.timer() is not None
    assert {order.run for order in cloud.messages("b", Order)} == {RUN}
    cloud.restart()
    cloud.hello(codecs=("freeze",))
    cloud.answer("a", "b")
    assert len(cloud.summaries()) == 1 and len(cloud.notes(logging.ERROR)) == 1


def test_an_order_is_measured_before_its_round_is_stored(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.hello()
    monkeypatch.setattr("sedge_cloud.runs.orders.MAX_ORDER_BYTES", 10)
    cloud.answer("a", "b")
    (note,) = cloud.notes(logging.ERROR)
    assert note.startswith("run run has failed: round 2 cannot be planned: fedavg, a: an order of ")
    assert cloud.run_row().status == "failed" and cloud.store.current_round(RUN) is None


def test_a_model_that_cannot_be_read_does_not_keep_a_device_out(
    cloud: Cloud, tmp_path: Path
) -> None:
    cloud.hello()
    cloud.restart()
    for blob in (tmp_path / "state" / "blobs").iterdir():
        if blob.name == cloud.state().model.hex():
            blob.unlink()
    assert [type(answer) for answer in cloud.say("a", a_hello("a"))] == [Welcome]
    assert cloud.core.devices["a"].online and len(cloud.notes(logging.ERROR)) == 1


@on_both
def test_a_store_that_fails_while_loading(cloud: Cloud) -> None:
    by_another_process(cloud, lambda store: store.add_device("c", secret_of("c")))
    cloud.devices["c"] = Device("c")
    broken = Faults(cloud, 5, StorageError("disk on fire"), after=False)
    cloud.load()
    assert broken.struck == "runs" and cloud.notes(logging.ERROR) == ["disk on fire"]
    cloud.now += DISK_RETRY_S - 1
    cloud.load()
    assert broken.calls == 5  # not twice a second
    cloud.now += 1
    cloud.load()
    assert broken.calls > 5
    cloud.hello("a", "b", "c")
    assert cloud.events(RoundOpened)[0].cohort == ("a", "b", "c")
    with pytest.raises(
        StorageError, match="disk on fire"
    ):  # at the start there is nothing to keep up
        Faults(cloud, 4, StorageError("disk on fire"), after=False)
        type(cloud.core)(FLEET, cloud.store, 1.0, 1).load(cloud.now)


ROUGH = msgspec.structs.replace(
    CONFIG,
    strategy="fedobp",
    options={"quantile": 0.99, "ema": 0.5, "cold_start": "init"},
    evaluate=False,
)
# Changes of the model are sent in bf16, masks of what devices select are coded against the one before.
CODED = msgspec.structs.replace(
    ROUGH,
    strategy=given.SELECTING,
    options={},
    broadcast=BroadcastConfig(ValueCoding.BF16, 0.001),
    codec=CodecConfig(fraction=0.001),
)


def status(cloud: Cloud) -> str:
    """The run's status, past any faults."""
    return Store.runs(cloud.store)[0].status


def drive(cloud: Cloud) -> None:
    """Let the devices do what they are asked until the run has ended, and the core restart if it dies."""

    def safely(act: Callable[[], object]) -> None:
        try:
            act()
        except Crash:
            cloud.restart()

    def work(name: str) -> None:
        if not cloud.core.devices.online(name):
            cloud.say(name, a_hello(name, codecs=("select",)))
        for order in cloud.messages(name, Order)[-1:]:
            done = {m.round for m in cloud.messages(name, Committed)}
            if order.round not in done:
                cloud.offer(name, coded_update(cloud, order, 20 * order.round + ord(name)))

    for _ in range(60):
        if status(cloud) != "running" and not cloud.core.open:
            return
        for name in "ab":
            safely(lambda n=name: work(n))  # type: ignore[misc]
        safely(lambda: cloud.poll(31.0))
        safely(cloud.load)
    raise AssertionError(f"the run has not ended: {cloud.notes(logging.ERROR)}")


def ending(cloud: Cloud) -> tuple[RunState, list[Summary], list[tuple[str, int]]]:
    """What a run came to, and that every update counted once."""
    rows = Store.rounds(cloud.store, RUN)
    summaries = [msgspec.msgpack.decode(row.summary or b"", type=Summary) for row in rows]
    counted = [(d.device, s.round) for s in summaries for d in s.devices]
    row = Store.runs(cloud.store)[0]
    return msgspec.msgpack.decode(row.state, type=RunState), summaries, counted


def coded_update(cloud: Cloud, order: Order, seed: int) -> bytes:
    """An update of ten elements, coded against the mask that the order names."""
    blobs = cloud.store.blobs
    context = type(blobs).read(blobs, order.context) if order.context else None  # past any faults
    indices = np.arange(seed, seed + 10, dtype=np.uint32)
    vector = SparseVector(LAYOUT.size, indices, np.full(10, 0.5, np.float32))
    return encode_update(report_for(order), encode(vector, context=context))


# A crash after one call is a crash before the next. On servers processes are killed: store/test_crashes.py.
@pytest.mark.parametrize(
    ("config", "error", "after"),
    [
        (ROUGH, StorageError("disk full"), False),
        (CODED, StorageError("disk full"), True),
        (CODED, Crash(), False),
    ],
    ids=["refused", "done and reported as failed", "killed"],
)
def test_a_run_survives_trouble_at_each_call_of_the_store(
    tmp_path: Path, config: RunConfig, error: BaseException, after: bool
) -> None:
    quiet = Cloud(tmp_path / "quiet", config)
    drive(quiet)
    expected = ending(quiet)
    closings = config.num_rounds
    assert len(expected[2]) == 2 * closings and status(quiet) == "finished"
    assert len(expected[0].steps) == (closings if config is CODED else 0)
    at, struck = 0, set[str]()
    while True:
        at += 1
        cloud = Cloud(tmp_path / str(at), config)
        faults = Faults(cloud, at, error, after)
        drive(cloud)
        assert ending(cloud) == expected, f"call {at}, {faults.struck}"
        events = [(e.run, e.status) for e in cloud.events(RunEnded)]
        if isinstance(error, StorageError):
            assert events == [(RUN, "finished")] and len(cloud.events(RoundClosed)) == closings
        if not faults.struck:
            break
        struck.add(faults.struck)
        cloud.store.close()
    assert struck >= {
        "save_hello",
        "open_round",
        "receive",
        "close_round",
        "collect",
        "write",
        "read",
    }
