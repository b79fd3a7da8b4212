"""The fleet: who is enrolled, revoked, online, able, and whose topic it is."""

import logging

import msgspec
import pytest
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, Device, a_hello, secret_of
from tests.cloud.stores import on_both

from sedge_cloud.coding import BroadcastConfig, PatchConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.ingest.refusals import WARN_EVERY_S
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_cloud.runs.capabilities import terms_of
from sedge_cloud.runs.run import Run
from sedge_cloud.store.database import Store
from sedge_protocol import VERSION
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.effects import Effect, Send
from sedge_protocol.wire.frame import MAX_AHEAD_S, VERSIONS
from sedge_protocol.wire.messages import Hello, Message, Refusal, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.topics import down, up

NOW_S = 1_800_000_000

STARTED = Welcome(bytes(16), VERSION, VERSIONS, devices=2)


def read(found: list[Effect] | list[Send]) -> list[tuple[str, Message]]:
    devices = {down(FLEET, name): Device(name) for name in ("a", "b", "c")}
    sends = [effect for effect in found if isinstance(effect, Send)]
    return [(devices[send.topic].name, devices[send.topic].read(send)) for send in sends]


@pytest.fixture
def fleet(store: Store) -> DeviceRegistry:
    """Device a, and b, which is revoked."""
    store.add_devices({name: secret_of(name) for name in "ab"})
    store.revoke_device("b")
    fleet = DeviceRegistry(FLEET, 7, store)
    assert fleet.load(0.0) == []
    return fleet


def test_a_device_that_begins_again_from_an_old_count_is_named(cloud: Cloud) -> None:
    """Its state was wiped and its clock is behind: it waits in vain, and nobody else would say so."""
    cloud.devices["a"] = Device("a", incarnation=1_795_337_799)
    cloud.say("a", a_hello("first"))
    repeated = cloud.devices["a"].peer.seal(a_hello("second"))
    assert cloud.give("a", repeated) and cloud.give("a", repeated) == []
    assert cloud.notes(logging.WARNING) == []  # a broker has said it twice
    cloud.devices["a"] = Device("a", incarnation=1000)
    why = (
        "its start at 1970-01-01 00:16:40 UTC by its clock is before the one at "
        "2026-11-22 08:56:39 UTC that was heard earlier"
    )
    told = [cloud.say("a", a_hello("wiped")) for _ in range(3)]
    assert told == [[Refusal("incarnation", why)], [], []]
    (note,) = cloud.notes(logging.WARNING)
    assert note.startswith(f"device a is ignored: {why}. ")
    cloud.now += WARN_EVERY_S
    cloud.say("a", a_hello("wiped"))
    assert len(cloud.notes(logging.WARNING)) == 2


def test_an_overtaken_hello_does_not_undo_what_the_later_one_says(cloud: Cloud) -> None:
    """Otherwise a device whose disk has room again would count as waiting until its next connection."""
    waiting, ready = (
        cloud.devices["a"].peer.seal(a_hello(nonce, waits=waits))
        for nonce, waits in (("1", "no space left"), ("2", ""))
    )
    assert cloud.give("a", ready)
    assert cloud.give("a", waiting) == []
    assert not cloud.core.devices.presence("a").waits


def test_a_forged_start_count_does_not_lock_a_device_out(cloud: Cloud) -> None:
    """Whoever has its secret may say any count, as often as it likes, and cannot use them up."""
    cloud.core = Coordinator(FLEET, cloud.store, 1.0, NOW_S)
    cloud.load()
    forger, true = Device("a", incarnation=2**32 - 1), Device("a", incarnation=NOW_S + 100)
    assert cloud.give("a", forger.peer.seal(a_hello("forged"))) == []
    (note,) = cloud.notes(logging.WARNING)
    assert "a start at 2106-02-07 06:28:15 UTC" in note and "device reissue" in note
    assert cloud.give("a", true.peer.seal(a_hello("true")))
    later = Device("a", incarnation=NOW_S + MAX_AHEAD_S + 60)
    assert cloud.give("a", later.peer.seal(a_hello("later"))) == []
    cloud.now += 60  # the bound moves on with time
    assert cloud.give("a", later.peer.seal(a_hello("later")))


def test_a_device_that_has_heard_a_newer_start_is_heard_again(cloud: Cloud) -> None:
    """It hears no answer, and repeats its hello; one that says something new is no repeat."""
    cloud.say("a", a_hello())
    device, keys = cloud.devices["a"], cloud.devices["a"].keys
    assert all(map(device.opens, cloud.sends(down(FLEET, "a"))))
    newer = cloud.store.next_incarnation(1)
    another = Peer(down(FLEET, "a"), keys.down, keys.up, newer, 0)
    assert device.opens(another.message(STARTED))

    def hears(hello: Hello) -> bool:
        cloud.effects.clear()
        cloud.say("a", hello)
        return device.opens(cloud.sends(down(FLEET, "a"))[0])

    news = [a_hello(num_train=n) for n in range(5)]
    assert not any(map(hears, news))
    assert [hears(news[-1]) for _ in range(4)] == [False, False, True, True]
    assert another.incarnation == newer < cloud.store.next_incarnation(1) - 1


def test_one_new_start_count_a_minute_serves_all_that_hear_none(cloud: Cloud) -> None:
    for _ in range(9):
        for name in "ab":
            assert cloud.say(name, a_hello())
    notes = cloud.notes(logging.WARNING)
    assert [note.split()[1] for note in notes] == ["a", "b"]
    assert cloud.store.next_incarnation(1) == cloud.core.devices["a"].peer.incarnation + 1


@on_both
def test_a_running_coordinator_takes_a_new_secret_over(cloud: Cloud) -> None:
    cloud.hello("a", "b")
    leaked, order = cloud.devices["a"], cloud.order("a")
    cloud.store.revoke_device("b")
    other = cloud.second_store()
    for name in "ab":
        other.reissue_device(name, name.encode() * 32)
    cloud.effects.clear()
    cloud.load()
    assert not cloud.core.devices["a"].online
    assert cloud.give("a", leaked.peer.seal(a_hello("leaked"))) == []
    for name in "ab":
        cloud.devices[name] = Device(name, incarnation=1, secret=name.encode() * 32)
        assert cloud.messages(name, Welcome) == [STARTED]
    cloud.hello("a")
    assert cloud.order("a") == order  # the round goes on
    cloud.answer("a")
    assert len(cloud.store.received(RUN, 1).counted) == 1


@on_both
def test_a_reissued_device_begins_with_nothing_seen(cloud: Cloud) -> None:
    cloud.hello("a")
    other = cloud.second_store()
    other.reissue_device("a", b"a" * 32)
    cloud.load()
    seen = {row.device: row for row in cloud.core.devices.take_unsaved(10)}
    assert set(seen) == {"a"} and not seen["a"].online and seen["a"].heard == 0.0
    assert cloud.core.devices.take_unsaved(10) == []


@on_both
def test_loading_keeps_what_this_process_knows_better(fleet: DeviceRegistry, store: Store) -> None:
    device = fleet["a"]
    device.row = msgspec.structs.replace(device.row, incarnation=9)
    store.add_device("c", secret_of("c"))
    fleet.load(0.0)
    assert fleet["a"] is device and fleet["a"].row.incarnation == 9
    assert fleet.num_active == 2


@on_both
def test_a_damaged_secret_is_an_error(fleet: DeviceRegistry, store: Store) -> None:
    store.add_device("c", b"short")
    with pytest.raises(ConfigError, match="secret: found '5 bytes', expected 32 bytes"):
        fleet["c"]


@on_both
def test_who_was_refused_before_its_enrolment_is_asked(fleet: DeviceRegistry, store: Store) -> None:
    assert fleet.sender(up(FLEET, "c")) is None
    store.add_devices({"c": secret_of("c"), "d": secret_of("d")})
    (welcome,) = read(fleet.load(0.0))
    assert welcome == ("c", msgspec.structs.replace(STARTED, devices=3))
    assert fleet.sender(up(FLEET, "c")) is fleet["c"]


@on_both
def test_of_those_that_are_offline_the_last_needed_are_kept(
    fleet: DeviceRegistry, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are read again, know what was seen of them, and take every frame that they are sent."""
    monkeypatch.setattr("sedge_cloud.ingest.device_cache.KEPT", 2)
    store.add_devices({name: secret_of(name) for name in "cdef"})
    online, forgotten, theirs = fleet["a"], fleet["c"], Device("c")
    fleet.arrive(online, a_hello(), 0.0)
    assert theirs.opens(fleet.request_hello("c")[0])
    fleet.note(forgotten, heard=5.0)
    for name in "def":
        fleet[name]
    assert fleet["a"] is online
    again = fleet["c"]
    assert again is not forgotten and again.session.heard == 5.0
    assert theirs.opens(fleet.request_hello("c")[0])
    kept = fleet["f"]  # which was needed before c
    fleet.request_hello("d")
    assert fleet["f"] is kept and fleet["c"] is not again
    asked = [send.topic for send in fleet.request_hello("fe")]
    assert asked == [down(FLEET, name) for name in "fe"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Cloud(tmp_path_factory.mktemp("fleet")).core.runs[RUN]


CODED = BroadcastConfig(ValueCoding.BF16, 0.1, Compression.ZLIB)
ZSTD = BroadcastConfig(compression=Compression.ZSTD)


@pytest.mark.parametrize(
    ("hello", "config", "able"),
    [
        (a_hello(), {}, True),
        (a_hello(), {"broadcast": CODED}, True),
        (a_hello(compressions=()), {}, True),
        (a_hello(compressions=("zlib",)), {"broadcast": ZSTD}, False),
        (a_hello(), {"broadcast": BroadcastConfig(compression=Compression.NONE)}, True),
        (a_hello(backends=("executorch",)), {}, False),
        (a_hello(backends=("executorch", "onnxruntime")), {}, True),
        (a_hello(backends=()), {}, False),
        (a_hello(backends=("function",)), {}, True),
        (a_hello(backends=("torch",)), {}, True),
        (a_hello(), {"broadcast": BroadcastConfig(ValueCoding.INT8)}, True),
        (a_hello(), {"patch": PatchConfig(compression=Compression.NONE)}, True),
        (a_hello(compressions=()), {"patch": PatchConfig(compression=Compression.ZSTD)}, False),
        (a_hello(), {"patch": PatchConfig(ValueCoding.BF16)}, True),
        (a_hello(), {"patch": PatchConfig(ValueCoding.INT4)}, False),
        (a_hello(codecs=("int4",)), {"patch": PatchConfig(ValueCoding.INT4)}, True),
    ],
)
def test_who_is_able(
    run: Run, fleet: DeviceRegistry, hello: Hello, config: dict[str, object], able: bool
) -> None:
    """What a device sends it codes as it can (below); what it gets it must be able to decode."""
    plain = {"broadcast": BroadcastConfig(), "patch": PatchConfig()}
    run.config = msgspec.structs.replace(CONFIG, **{**plain, **config})
    assert fleet.able(terms_of(run)) == []
    fleet.arrive(fleet["a"], hello, 0.0)
    assert fleet.able(terms_of(run)) == (["a"] if able else [])
    fleet["a"].hello = None
    assert fleet.able(terms_of(run)) == []


@on_both
def test_the_hello_of_a_device_outlives_our_own_start(store: Store) -> None:
    hello = a_hello(codecs=("int4",))
    store.add_devices({name: secret_of(name) for name in "abc"})
    for name, coded in (("a", msgspec.msgpack.encode(hello)), ("b", b"\xc1")):
        store.save_hello(store.devices_named(name)[name], 1, coded)
    fleet = DeviceRegistry(FLEET, 1, store)
    fleet.load(0.0)
    assert fleet["a"].hello == hello and not fleet["a"].online
    assert fleet["b"].hello is None and fleet["c"].hello is None
