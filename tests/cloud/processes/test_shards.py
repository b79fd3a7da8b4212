"""What a process does with the devices of its own shards, and with those of others."""

from collections.abc import Collection
from typing import Any

import msgspec
import pytest
from tests.cloud.helper import FLEET, RUN, Cloud, a_hello

from sedge_cloud.hints import DeviceOnline, Left
from sedge_cloud.rounds.elsewhere import Everywhere
from sedge_cloud.runs.asked import Presence
from sedge_cloud.runs.capabilities import terms_of
from sedge_cloud.store.rows import DeviceRow, SessionRow, UpdateRow
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import HEADER
from sedge_protocol.wire.messages import Goodbye, Order
from sedge_protocol.wire.topics import SHARD_NAMES, down, hint, shard_of, up

ALL = frozenset(SHARD_NAMES)


@pytest.fixture
def without_b(cloud: Cloud) -> Cloud:
    """A process whose shards are all but that of the device b."""
    cloud.hello("a", "b")
    cloud.core.take(ALL - {shard_of("b")}, True, cloud.now)
    return cloud


def test_a_frame_under_anothers_shard_is_dropped_and_counted(without_b: Cloud) -> None:
    core = without_b.core
    for topic in (up(FLEET, "b"), f"sedge/1/{FLEET}/device/b/up"):
        assert not core.admits(topic, b"", without_b.now)
    assert core.counters["foreign_shards"] == 2
    assert core.devices.present == 1
    assert core.admits(up(FLEET, "a"), without_b.devices["a"].peer.seal(Goodbye(bytes(16))), 0.0)


def test_others_devices_are_none_of_ours(without_b: Cloud) -> None:
    assert "b" not in without_b.core.devices and not without_b.core.devices.presence("b").online
    assert not without_b.core.devices.request_hello("b")
    assert "b" not in {row.device for row in without_b.core.devices.take_unsaved(100)}


def test_who_takes_a_shard_asks_its_devices_and_is_newer_than_who_had_it(without_b: Cloud) -> None:
    cloud, other = without_b, without_b.second_store()
    before = other.next_incarnation(1)
    effects = cloud.core.take(ALL, True, cloud.now)
    assert [e.topic for e in effects if isinstance(e, Send)] == [hint(FLEET, shard_of("b"))]
    cloud.hello("b")
    sent = [e for e in cloud.effects if isinstance(e, Send) and e.topic == down(FLEET, "b")]
    assert HEADER.unpack_from(sent[-1].payload)[5] > before
    assert cloud.core.devices.present == 2


def test_who_takes_a_shard_over_knows_what_its_last_holder_has_stored(without_b: Cloud) -> None:
    cloud, other = without_b, without_b.second_store()
    assert len(cloud.messages("b", Order)) == 1
    other.commit_receipt(UpdateRow("run", 1, "b", bytes(32), b"report", 1, 0))
    cloud.core.take(ALL, True, cloud.now)
    cloud.hello("b")
    assert len(cloud.messages("b", Order)) == 1  # it would train twice for one update that counts


def test_who_is_revoked_or_waits_elsewhere_gets_no_order(without_b: Cloud) -> None:
    store = without_b.second_store()
    leader = Everywhere(without_b.core.devices, store, lambda device: device != "b")

    def able(incarnation: int, waits: str) -> list[str]:
        hello = a_hello("b", waits=waits)
        row = store.device("b")
        assert row is not None
        store.save_hello(row, incarnation, msgspec.msgpack.encode(hello))
        leader.load()
        return leader.able(terms_of(without_b.core.runs[RUN]))

    store.save_sessions([SessionRow("b", online=True)])
    assert able(2, "") == ["a", "b"]
    assert able(3, "battery") == ["a"]
    assert able(4, "") == ["a", "b"]
    store.revoke_device("b")
    assert able(5, "") == ["a"] and leader.presence("b").revoked


def test_who_returns_elsewhere_just_as_it_was_is_seen_and_only_then_looked_up(
    without_b: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = without_b.second_store()
    leader = Everywhere(without_b.core.devices, store, lambda device: device != "b")
    asked, devices_named = list[str](), store.devices_named

    def looked_up(names: Collection[str]) -> dict[str, DeviceRow]:
        asked.extend(names)
        return devices_named(names)

    monkeypatch.setattr(store, "devices_named", looked_up)
    came, left = DeviceOnline("b", True), Left("b")
    for online, hints in ((True, [came]), (True, []), (False, [left]), (False, []), (True, [came])):
        assert not asked
        store.save_sessions([SessionRow("b", online=online)])
        assert leader.load() == hints
        assert leader.present == 1 + online and leader.presence("b").online is online
    assert asked == ["b"] and leader.able(terms_of(without_b.core.runs[RUN])) == ["a", "b"]
    store.save_sessions([SessionRow("b")])
    leader.load()
    store.revoke_device("b")
    leader.load()
    assert leader.presence("b") == Presence(False, False, True)


@pytest.mark.parametrize(
    ("change", "renewed"),
    [
        ({"num_train": 200}, True), ({"num_test": 20}, True), ({"backends": ("function",)}, True),
        ({"memory_mb": 64}, True), ({"holds": ("another",)}, False), ({"waits": "battery"}, False),
    ],
)  # fmt: skip
def test_what_a_start_says_anew_reaches_a_leader_elsewhere_and_a_repeat_writes_nothing(
    cloud: Cloud, change: dict[str, Any], renewed: bool
) -> None:
    cloud.hello("a")
    cloud.store.save_sessions(cloud.core.devices.take_unsaved(100))
    other = cloud.second_store()
    leader = Everywhere(cloud.core.devices, other, lambda device: False)
    assert leader.load() == [DeviceOnline("a", True)]
    hello = a_hello("again", **change)
    assert cloud.core.devices["a"].is_another(hello, 1) is renewed
    cloud.say("a", hello)
    assert leader.load() == [DeviceOnline("a", renewed)]
    assert leader.presence("a") == Presence(True, "waits" in change, False)
    assert leader.changes == cloud.core.devices.changes + 2
    assert leader.hello("a") == hello
    cloud.say("a", msgspec.structs.replace(hello, nonce=b"a third session."))
    assert leader.load() == [] and leader.hello("a") == hello
