"""The ingest, with a leader beside it: who is heard, and what each message of a device is answered."""

import logging
from pathlib import Path

import msgspec
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, Device, a_hello, secret_of, small_update
from tests.cloud.stores import on_both

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed
from sedge_cloud.ingest.open_orders import RESEND_S
from sedge_cloud.ingest.refusals import REFUSE_EVERY_S
from sedge_cloud.store.database import Store
from sedge_protocol import VERSION
from sedge_protocol.wire import messages, topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import VERSIONS, Kind, open_frame
from sedge_protocol.wire.messages import Goodbye, Hello, Offer, Order, Refusal, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import describe

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
        cloud.say("a", messages.Get("none", number + 1, b""))
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
    welcome = cloud.say("a", a_hello("x", versions=(2, 3, 4)))[0]
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


def test_a_coordinator_that_starts_speaks_as_the_last_hello_said(tmp_path: Path) -> None:
    """A receipt that leaves before the next hello must be one that the device reads."""
    cloud = Cloud(tmp_path)
    for incarnation in (2, 3):
        cloud.core = Coordinator(FLEET, cloud.store, 1.0, incarnation, versions=(2, 3))
        cloud.load()
        receipt = cloud.core.devices["a"].peer.seal(messages.Committed(RUN, 1, bytes(32)))
        assert receipt[2] == incarnation
        cloud.say("a", a_hello("x", versions=(2, 3, 4)))


def test_a_device_without_a_version_in_common_is_refused(cloud: Cloud) -> None:
    cloud.hello()
    assert cloud.core.open[RUN].present == {"a", "b"}
    (refusal,) = cloud.say("a", a_hello("x", versions=(7,)))
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
    assert not any("revoked or not enrolled" in note for note in cloud.notes(logging.WARNING))
    cloud.now += REFUSE_EVERY_S
    cloud.effects += cloud.arrive(topic, old.seal(a_hello("x")))
    assert len(cloud.sends(down)) == 2 and len(cloud.notes(logging.WARNING)) == 1
    frame = open_frame(send.payload, down, device.keys.down, (1,))
    refusal = messages.decode_body(frame.kind, frame.body)
    assert isinstance(refusal, Refusal) and refusal.reason == "version"
    assert refusal.detail == f"this device {text}"
    assert cloud.notes(logging.WARNING)[-1] == f"device a is refused: this device {text}"
    assert not cloud.core.devices["a"].online


def snapshot(cloud: Cloud) -> object:
    """Everything a stranger must not change."""
    online = {name: cloud.core.devices[name].online for name in "ab"}
    rows = [Store.runs(cloud.store), Store.orders(cloud.store, RUN, 1), Store.devices(cloud.store)]
    updates = [cloud.store.update(RUN, 1, name) for name in "ab"]
    return online, rows, updates, {n: (r.settled, r.received) for n, r in cloud.core.open.items()}


def everything(cloud: Cloud, name: str) -> list[messages.Message]:
    """One of each message that a device may send."""
    blob = small_update(cloud.order("a"))
    return [
        a_hello("z"), Goodbye(a_hello(name).nonce), messages.Get(RUN, 1, b"\1"),
        Offer(RUN, 1, describe(blob), 1, blob), messages.Decline(RUN, 1, "DataError", "no"),
    ]  # fmt: skip


@on_both
def test_strangers_and_the_revoked_are_not_heard(cloud: Cloud) -> None:
    cloud.hello()
    cloud.second_store().revoke_device("b")
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


def test_a_device_that_leaves_is_revoked_and_told_so(cloud: Cloud) -> None:
    cloud.hello()
    for _ in range(2):  # the answer is lost
        cloud.say("b", a_hello("b", leaves=True))
        assert cloud.core.open[RUN].present == {"a"}  # although the agent's goodbye was lost
    assert "device b leaves the fleet" in cloud.notes(logging.INFO)
    assert "device b is revoked" in cloud.notes(logging.WARNING)
    assert [one.reason for one in cloud.messages("b", Refusal)] == ["revoked", "revoked"]


def test_a_round_does_not_wait_for_a_device_that_leaves(cloud: Cloud) -> None:
    cloud.enrol("c")
    cloud.load()
    cloud.hello()
    cloud.answer("a", "b")
    cloud.say("c", a_hello("c", leaves=True))
    cloud.notice()
    assert cloud.store.orders(RUN, 1)[-1].declined == "revoked"
    assert cloud.order("a").round == 2


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


def test_what_a_device_says_stays_in_its_line_of_the_log(cloud: Cloud) -> None:
    cloud.hello()
    cloud.say(
        "a", messages.Decline(RUN, 1, "x\n", "y\n2026-01-01 ERROR sedge.cloud: \x1b[31mforged")
    )
    (note,) = cloud.notes(logging.WARNING)
    assert note.isprintable() and "forged" in note


def test_another_version_is_told_so(tmp_path: Path) -> None:
    version = 3
    cloud = Cloud(tmp_path)
    sealed = cloud.devices["a"].peer.seal(a_hello("a"))
    frame = sealed[:2] + bytes([version]) + sealed[3:]
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
    backwards: list[messages.Message] = [
        STARTED, cloud.order("a"), messages.Cancel(RUN, 0, "stop"), messages.Have(1, b"\1", 4),
        messages.Committed(RUN, 1, bytes(32)), messages.Reject(RUN, 1, bytes(32), "stale"),
        messages.Busy(1), Refusal("version"),
    ]  # fmt: skip
    for message in backwards:
        assert cloud.say("a", message) == []
        assert f"{type(message).__name__} from a is not for a coordinator" in cloud.notes(30)[-1]
    assert snapshot(cloud) == before
