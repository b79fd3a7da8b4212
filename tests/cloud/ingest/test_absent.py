"""Devices that may be there unseen: asked for a hello ever more seldom, and some of many at a time."""

from pathlib import Path

import pytest
from tests.cloud.helper import FLEET, Cloud
from tests.fleet import failing

from sedge_cloud.coordinator import Coordinator
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.outage import RETURN_S
from sedge_cloud.store.rows import SessionRow
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Welcome
from sedge_protocol.wire.topics import SHARD_NAMES, down, shard_of


def test_who_does_not_come_back_is_asked_ever_more_seldom_and_then_no_more(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, ("a", "b"))
    cloud.hello()
    cloud.core.disconnected(cloud.now)
    cloud.core.connected(cloud.now)
    cloud.hello("a")
    before, waits = {name: len(cloud.messages(name, Welcome)) for name in "ab"}, list[float]()
    while (at := cloud.core.timer()) is not None:
        waits.append(at - cloud.now)
        cloud.poll(waits[-1])
    assert waits[1:] == [60.0, 120.0, 240.0, 480.0, 960.0, 1920.0]
    asked = {name: len(cloud.messages(name, Welcome)) - before[name] for name in "ab"}
    assert asked == {"a": 0, "b": 7}


LOST = StorageError("connection lost")


def shared(cloud: Cloud, shards: frozenset[str]) -> None:
    """One of several processes begins on the store, leads, and has these shards."""
    cloud.core = Coordinator(FLEET, cloud.store, 1.0, 1, shared=True)
    cloud.load()
    cloud.core.connected(cloud.now)
    cloud.core.take(shards, True, cloud.now)


def test_of_more_than_are_asked_at_a_time_others_are_asked_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes' devices take no place, and those asked together are read together."""
    monkeypatch.setattr("sedge_cloud.ingest.absent.MAX_ASKED", 3)
    names = [f"d{number:02}" for number in range(40)]
    cloud, shards = Cloud(tmp_path, None, names), frozenset(SHARD_NAMES[::8])
    ours = [name for name in names if shard_of(name) in shards]
    assert len(ours) == 4
    shared(cloud, shards)
    with failing(cloud.store, "device", LOST):
        cloud.poll(RETURN_S)
    asked = [name for name in names for _ in cloud.sends(down(FLEET, name))]
    assert asked == ours[:3]
    cloud.poll(60.0)
    asked = [name for name in names for _ in cloud.sends(down(FLEET, name))]
    assert asked == sorted([*ours, *ours[:2]])


@pytest.mark.parametrize("read", ["names", "devices_named"])
def test_what_could_not_be_read_after_an_outage_is_read_soon(tmp_path: Path, read: str) -> None:
    """Nobody is waited for meanwhile: the leader's next turn is not due at once, again and again."""
    cloud = Cloud(tmp_path, None, ("a", "b"))
    cloud.store.save_sessions([SessionRow("a", online=True)])
    shared(cloud, frozenset(SHARD_NAMES))
    assert cloud.core.devices.returning == {"a"}
    with failing(cloud.store, read, LOST):
        cloud.poll(RETURN_S)
    assert cloud.core.timer() == cloud.now + DISK_RETRY_S
    cloud.poll(DISK_RETRY_S)
    assert [len(cloud.messages(name, Welcome)) for name in "ab"] == [1, 1]
    (seen,) = cloud.core.devices.take_unsaved(9)
    assert seen.device == "a" and not seen.online


def test_a_fleet_that_is_read_late_is_not_waited_for_again(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, None, ("a", "b"))
    cloud.store.save_sessions([SessionRow("a", online=True)])
    cloud.core = Coordinator(FLEET, cloud.store, 1.0, 1)
    cloud.core.connected(cloud.now)
    cloud.poll(RETURN_S)
    cloud.load()
    assert cloud.core.devices.returning == {"a"}
    cloud.poll()
    assert cloud.core.timer() == cloud.now + 60.0
