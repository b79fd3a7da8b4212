"""The bytes of every device, beside what the coordinator has really sent."""

from pathlib import Path

import msgspec
import numpy as np
from tests.cloud.helper import CONFIG, FLEET, LAYOUT, RUN, Cloud, a_hello, fetch_model, report_for
from tests.fleet import failing

from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.store.records import RoundParts
from sedge_protocol.codec import SparseVector, encode
from sedge_protocol.errors import StorageError
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import LEAST_PACKET_BYTES
from sedge_protocol.wire.update import encode_update


def sent(cloud: Cloud, topic: str) -> int:
    return sum(len(send.payload) for send in cloud.sends(topic))


def test_a_round_of_three(tmp_path: Path) -> None:
    """Two fetch the model, which leaves once; its bytes count at both, and the orders at all three.

    It leaves once more for one of them, and counts there only.
    """
    cloud = Cloud(tmp_path, devices=("a", "b", "c"))
    for name in "abc":
        cloud.say(name, a_hello(name, max_packet=LEAST_PACKET_BYTES))
    welcomed = {name: sent(cloud, topics.down(FLEET, name)) for name in "abc"}
    cloud.poll()
    blob = topics.blob(FLEET, cloud.order("a").model.transfer)
    fetched = {"c": 0}
    for names in ("ab", "a"):
        fetch_model(cloud, *names)
        fetched |= dict.fromkeys(names, sent(cloud, blob))
    assert fetched["a"] == 2 * fetched["b"] > 0 and cloud.order("a").model.count > 1
    for name in "abc":
        cloud.answer(name)
    rows = {row.device: row for row in cloud.store.traffic(RUN, 1)}
    second = {name: len(cloud.sends(topics.down(FLEET, name))[-1].payload) for name in "abc"}
    for name in "abc":
        own = sent(cloud, topics.down(FLEET, name)) - welcomed[name] - second[name]
        assert rows[name].down == own + fetched[name]
        assert 0 < rows[name].up < 2000 and not rows[name].whole
    assert rows["a"].up > rows["c"].up  # its GET


def test_bytes_over_http_count_apart_as_devices_report_them(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.hello()
    nothing = encode(SparseVector(LAYOUT.size, np.empty(0, np.uint32), np.empty(0, np.float32)))
    for name, came in (("a", 5000), ("b", 700)):
        order = cloud.order(name)
        cloud.offer(name, encode_update(report_for(order, http_bytes=came), nothing))
    cloud.poll()
    (closed,) = [row for row in cloud.store.rounds(RUN) if row.parts]
    parts = msgspec.msgpack.decode(closed.parts, type=RoundParts)
    assert parts.http == read_sums(cloud.store.sums(RUN)).http == 5700
    assert parts.down == sum(row.down for row in cloud.store.traffic(RUN, 1))


def test_a_restart_within_a_round_does_not_forget_who_fetched_a_whole_model(tmp_path: Path) -> None:
    """A device that had one, that is; a newcomer has to."""
    config = msgspec.structs.replace(CONFIG, num_rounds=3, broadcast=BroadcastConfig())
    cloud = Cloud(tmp_path, config, devices=("a", "b", "new"))
    cloud.hello("a", "b")
    cloud.answer("a", "b")
    cloud.say("new", a_hello("new"))
    cloud.answer("a", "b")
    fetch_model(cloud, "a", "new")
    assert cloud.core.counters["whole_models"] == 1
    (row,) = cloud.store.traffic(RUN, cloud.order("a").round)
    assert (row.device, row.up, row.down, bool(row.whole)) == ("a", 0, 0, True), "uncounted yet"
    cloud.restart()
    cloud.hello("a", "b", "new")
    cloud.answer("a", "b", "new")
    rows = cloud.store.traffic(RUN, cloud.summaries()[-1].round)
    assert {row.device: bool(row.whole) for row in rows} == {"a": True, "b": False, "new": False}


def test_a_round_closes_with_its_bytes_or_not_at_all(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, CONFIG)
    cloud.hello()
    with failing(cloud.store, "_save_traffic", StorageError("the disk is full (test)")):
        cloud.answer("a", "b")
    assert cloud.summaries() == [] and cloud.store.traffic(RUN, 1) == []
    assert any("the disk is full (test)" in note for note in cloud.notes(40))
    cloud.poll(DISK_RETRY_S)
    assert [row.device for row in cloud.store.traffic(RUN, 1)] == ["a", "b"]
    assert all(row.up > 0 and row.down > 0 for row in cloud.store.traffic(RUN, 1))
