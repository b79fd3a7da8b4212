"""The fleet: who is enrolled, revoked, online, able, and whose topic it is."""

import logging
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, Device, a_hello, open_store, secret_of

from sedge_cloud.config import BroadcastConfig, PatchConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.devices.registry import WARN_EVERY_S, WHO_IS_THERE, Fleet
from sedge_cloud.store.rows import DeviceRow
from sedge_cloud.store.runs import Run
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import MAX_AHEAD_S
from sedge_protocol.wire.messages import Hello, Message, Welcome
from sedge_protocol.wire.topics import down, up

NOW_S = 1_800_000_000


def row(name: str, revoked: bool = False, incarnation: int = 0) -> DeviceRow:
    """A device as the store has it."""
    return DeviceRow(name, secret_of(name), revoked, incarnation, None)


def read(found: list[Effect] | list[Send]) -> list[tuple[str, Message]]:
    """Who is sent what."""
    devices = {down(FLEET, name): Device(name) for name in ("a", "b", "c")}
    sends = [effect for effect in found if isinstance(effect, Send)]
    return [(devices[send.topic].name, devices[send.topic].read(send)) for send in sends]


@pytest.fixture
def fleet() -> Fleet:
    """Device a, and b, which is revoked."""
    fleet = Fleet(FLEET, 7)
    assert fleet.load([row("a"), row("b", revoked=True)]) == []
    return fleet


def test_only_who_is_new_is_called(fleet: Fleet) -> None:
    assert fleet.load([row("a"), row("b", revoked=True)]) == []
    found = fleet.load([row("a"), row("b", revoked=True), row("c")])
    assert read(found) == [("c", WHO_IS_THERE)]
    assert fleet.load([row("d", revoked=True)]) == []


def test_a_device_that_begins_again_from_an_old_count_is_named(tmp_path: Path) -> None:
    """Its state was wiped and its clock is behind: it waits in vain, and nobody else would say so."""
    cloud = Cloud(tmp_path)
    cloud.devices["a"] = Device("a", incarnation=1_795_337_799)
    cloud.say("a", a_hello("first"))
    repeated = cloud.devices["a"].peer.seal(a_hello("second"))
    assert cloud.give("a", repeated) and cloud.give("a", repeated) == []
    assert cloud.notes(logging.WARNING) == []  # a broker has said it twice
    cloud.devices["a"] = Device("a", incarnation=1000)
    for _ in range(3):
        assert cloud.say("a", a_hello("wiped")) == []
    (note,) = cloud.notes(logging.WARNING)
    assert note.startswith("device a is not heard: its start count 1000 is below 1795337799, ")
    cloud.now += WARN_EVERY_S
    cloud.say("a", a_hello("wiped"))
    assert len(cloud.notes(logging.WARNING)) == 2


def test_a_forged_start_count_does_not_lock_a_device_out(tmp_path: Path) -> None:
    """Whoever has its secret may say any count, as often as it likes, and cannot use them up."""
    cloud = Cloud(tmp_path)
    cloud.core = Coordinator(FLEET, cloud.store, 1.0, NOW_S)
    cloud.load()
    forger, true = Device("a", incarnation=2**32 - 1), Device("a", incarnation=NOW_S + 100)
    assert cloud.give("a", forger.peer.seal(a_hello("forged"))) == []
    (note,) = cloud.notes(logging.WARNING)
    assert "start count 4294967295 is above" in note and "device reissue" in note
    assert cloud.give("a", true.peer.seal(a_hello("true")))
    later = Device("a", incarnation=NOW_S + MAX_AHEAD_S + 60)
    assert cloud.give("a", later.peer.seal(a_hello("later"))) == []
    cloud.now += 60  # the bound moves on with time
    assert cloud.give("a", later.peer.seal(a_hello("later")))


def test_a_running_coordinator_takes_a_new_secret_over(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.hello("a", "b")
    leaked, order = cloud.devices["a"], cloud.order("a")
    cloud.store.revoke_device("b")
    other = open_store(tmp_path / "state")  # the command line
    for name in "ab":
        other.reissue_device(name, name.encode() * 32)
    other.close()
    cloud.effects.clear()
    cloud.load()
    assert not cloud.core.devices["a"].online
    assert cloud.give("a", leaked.peer.seal(a_hello("leaked"))) == []
    for name in "ab":
        cloud.devices[name] = Device(name, incarnation=1, secret=name.encode() * 32)
        assert cloud.messages(name, Welcome) == [WHO_IS_THERE]
    cloud.hello("a")
    assert cloud.order("a") == order  # the round goes on
    cloud.answer("a")
    assert len(cloud.store.updates(RUN, 1)) == 1


def test_a_call_reaches_all_but_the_revoked(fleet: Fleet) -> None:
    fleet.load([row("a"), row("b", revoked=True), row("c")])
    assert read(fleet.call()) == [("a", WHO_IS_THERE), ("c", WHO_IS_THERE)]


def test_a_revoked_device_is_offline_at_once(fleet: Fleet) -> None:
    fleet.arrive(fleet["a"], a_hello())
    found = fleet.load([row("a", revoked=True), row("b", revoked=True)])
    assert found == [Note(logging.WARNING, "device a is revoked")] and not fleet["a"].online
    assert fleet.load([row("a", revoked=True)]) == []  # said once
    assert fleet.sender(up(FLEET, "a")) is None


def test_loading_keeps_what_this_process_knows_better(fleet: Fleet) -> None:
    device = fleet["a"]
    device.row = msgspec.structs.replace(device.row, incarnation=9)
    fleet.load([row("a", incarnation=3)])
    assert fleet["a"] is device and fleet["a"].row.incarnation == 9


def test_whose_topic_it_is(fleet: Fleet) -> None:
    assert fleet.sender(up(FLEET, "a")) is fleet["a"]
    nobody = [
        up(FLEET, "b"),  # revoked
        up(FLEET, "x"),
        down(FLEET, "a"),
        f"sedge/1/{FLEET}/device/a/up/",
        f"sedge/2/{FLEET}/device/a/up",
        "",
    ]
    assert [fleet.sender(topic) for topic in nobody] == [None] * len(nobody)


def test_nobody_is_there_without_a_link(fleet: Fleet) -> None:
    fleet.arrive(fleet["a"], a_hello())
    fleet.lose()
    assert not fleet["a"].online


def test_a_damaged_secret_is_an_error(fleet: Fleet) -> None:
    with pytest.raises(ConfigError, match="secret: found '5 bytes', expected 32 bytes"):
        fleet.load([DeviceRow("c", b"short", False, 0, None)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run for onnxruntime."""
    return Cloud(tmp_path_factory.mktemp("fleet")).core.runs[RUN]


CODED = BroadcastConfig(ValueCoding.BF16, 0.1, Compression.ZLIB)


@pytest.mark.parametrize(
    ("hello", "broadcast", "able"),
    [
        (a_hello(), BroadcastConfig(whole=True), True),
        (a_hello(), CODED, False),
        (a_hello(compressions=("zlib", "zstd")), CODED, True),
        (a_hello(compressions=("zlib",)), CODED, False),  # its bundle is zstd
        (a_hello(compressions=()), BroadcastConfig(compression=Compression.NONE), False),
        (a_hello(), BroadcastConfig(compression=Compression.NONE), True),
        (a_hello(backends=("executorch",)), BroadcastConfig(whole=True), False),
        (a_hello(backends=("executorch", "onnxruntime")), BroadcastConfig(whole=True), True),
        (a_hello(backends=()), BroadcastConfig(whole=True), False),
        (a_hello(), BroadcastConfig(ValueCoding.SIGN), True),  # it gets models whole
    ],
)
def test_who_is_able(
    run: Run, fleet: Fleet, hello: Hello, broadcast: BroadcastConfig, able: bool
) -> None:
    """What a device sends it codes as it can (below); what all get it must be able to decode."""
    run.config = msgspec.structs.replace(CONFIG, broadcast=broadcast)
    assert fleet.able(run) == []
    fleet.arrive(fleet["a"], hello)
    assert fleet.able(run) == (["a"] if able else [])
    fleet["a"].hello = None
    assert fleet.able(run) == []


@pytest.mark.parametrize(
    ("patch", "hello", "able"),
    [
        (PatchConfig(), a_hello(), True),
        (PatchConfig(compression=Compression.NONE), a_hello(), True),
        (PatchConfig(compression=Compression.ZLIB), a_hello(), False),
        (PatchConfig(compression=Compression.ZLIB), a_hello(compressions=("zstd", "zlib")), True),
        (PatchConfig(ValueCoding.BF16), a_hello(), True),
        (PatchConfig(ValueCoding.INT4), a_hello(), False),
        (PatchConfig(ValueCoding.INT4), a_hello(codecs=("int4",)), True),
    ],
)
def test_who_can_decode_a_patch(
    run: Run, fleet: Fleet, patch: PatchConfig, hello: Hello, able: bool
) -> None:
    run.config = msgspec.structs.replace(CONFIG, patch=patch)
    fleet.arrive(fleet["a"], hello)
    assert fleet.able(run) == (["a"] if able else [])


def test_what_a_device_has_said(fleet: Fleet) -> None:
    assert fleet.hello("a") is None and fleet.hello("nobody") is None
    fleet.arrive(fleet["a"], a_hello("x"))
    assert fleet.hello("a") == a_hello("x")


def test_who_is_present_is_counted(fleet: Fleet) -> None:
    fleet.load([row("a"), row("b"), row("c")])
    seen = fleet.changes
    for name in "aca":
        fleet.arrive(fleet[name], a_hello())
    assert fleet.present == 2 and fleet.changes > seen
    seen = fleet.changes
    fleet.leave(fleet["a"])
    fleet.leave(fleet["a"])
    assert fleet.present == 1 and fleet.changes == seen + 1
    fleet.load([row("c", revoked=True)])
    assert fleet.present == 0
    fleet.arrive(fleet["a"], a_hello())
    fleet.lose()
    assert fleet.present == 0


def test_the_hello_of_a_device_outlives_our_own_start() -> None:
    fleet = Fleet(FLEET, 1)
    hello = a_hello(codecs=("int4",))
    heard = msgspec.structs.replace(row("a"), hello=msgspec.msgpack.encode(hello))
    fleet.load([heard, msgspec.structs.replace(row("b"), hello=b"\xc1"), row("c")])
    assert fleet["a"].hello == hello and not fleet["a"].online
    assert fleet["b"].hello is None and fleet["c"].hello is None


def test_the_able_are_sorted(run: Run, tmp_path: Path) -> None:
    run.config = CONFIG
    fleet = Fleet(FLEET, 1)
    fleet.load([row("c"), row("a"), row("b")])
    for name in "abc":
        fleet.arrive(fleet[name], a_hello())
    assert fleet.able(run) == ["a", "b", "c"]
