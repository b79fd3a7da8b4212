"""Trouble with the disk: told with its run, room made now and then; what is lost does not stop a run."""

import hashlib
import logging
import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, small_update
from tests.cloud.stores import disk_of, in_a_folder

from sedge_cloud.config import RunConfig
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.ingest import uploads as inbox
from sedge_cloud.rounds.housekeeping import Housekeeping
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Busy, Offer, Order, Reject
from sedge_protocol.wire.transfer import describe


@pytest.fixture(autouse=True)
def updates_are_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of their own, which the disk may lose, unless they are very small."""
    monkeypatch.setattr(inbox, "MAX_ROW_BYTES", 2**12)


def path_of(cloud: Cloud, blob: bytes) -> Path:
    return cloud.folder / "state" / "blobs" / blob.hex()


def rot(cloud: Cloud, blob: bytes) -> Path:
    """A bit of a stored blob changes, and no cache still has it as it was."""
    path = path_of(cloud, blob)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    cloud.restart()
    return path


def uploaded(cloud: Cloud, names: str) -> bytes:
    """All come online, and these devices send large updates. Returns the last one."""
    cloud.hello()
    return cloud.send(*names)[-1]


def test_not_each_error_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    core = Cloud(tmp_path).core
    collected: list[int] = []

    def collect() -> int:
        collected.append(1)
        raise StorageError("disk on fire")

    monkeypatch.setattr(core.garbage, "collect", collect)
    house = Housekeeping(core.run_store, core.garbage, Counter())
    assert house.poll(100.0) == [] and house.timer() is None
    house.storage_failed(StorageError("disk full"))
    assert house.timer() is not None
    (note,) = house.poll(100.0)
    assert note.text == "disk on fire" and house.timer() is None  # its own error is none to act on
    house.storage_failed(StorageError("disk full"))
    assert house.timer() == 100.0 + DISK_RETRY_S
    assert house.poll(99.0 + DISK_RETRY_S) == [] and len(collected) == 1
    house.poll(100.0 + DISK_RETRY_S)
    assert len(collected) == 2 and house.timer() is None


@in_a_folder
def test_a_full_disk_does_not_hold_a_round_for_ever(cloud: Cloud) -> None:
    cloud.hello()
    orphan = cloud.store.blobs.write(b"of a round that has closed")
    os.utime(path_of(cloud, orphan), (1.0, 1.0))
    disk_of(cloud.store).min_free_bytes = 2**60
    (answer,) = cloud.offer("a", small_update(cloud.order("a")))
    assert isinstance(answer, Busy)
    cloud.poll()
    assert not cloud.store.blobs.has(orphan)


@in_a_folder
def test_a_round_closes_without_the_update_that_the_disk_has_lost(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, devices=("a", "b", "c"))
    blob = uploaded(cloud, "abc")
    path = rot(cloud, hashlib.sha256(blob).digest())
    cloud.hello()
    assert cloud.summaries() == []
    assert cloud.notes(logging.ERROR)[-1].startswith(f"run run: read blob {path}: ")
    cloud.poll(DISK_RETRY_S)
    (summary,) = cloud.summaries()
    assert [device.device for device in summary.devices] == ["a", "b"] and not summary.failure
    note = next(text for text in cloud.notes(logging.WARNING) if "rejected" in text)
    assert note.startswith(
        "run run, round 1: rejected the update of c: it was accepted, but the coordinator's disk lost it"
    )
    assert str(path) in note and set(cloud.core.open[RUN].orders) == {"a", "b", "c"}
    first = next(order for order in cloud.messages("c", Order) if order.round == 1)
    manifest = describe(blob)
    (answer,) = cloud.say("c", Offer(RUN, first.round, manifest, 1), manifest.transfer)
    assert isinstance(answer, Reject) and answer.reason == "lost"


@in_a_folder
def test_a_lost_update_that_is_one_too_few_is_waited_for(tmp_path: Path) -> None:
    config = msgspec.structs.replace(
        CONFIG, quorum=0.5, min_updates=2, min_train_devices=3, min_available_devices=3
    )
    cloud = Cloud(tmp_path, config, ("a", "b", "c"))
    blob = uploaded(cloud, "ab")
    rot(cloud, hashlib.sha256(blob).digest())
    cloud.hello()
    for _ in range(3):
        cloud.poll(DISK_RETRY_S)
    assert cloud.summaries() == [] and cloud.run_row().status == "running"
    cloud.come_back()
    cloud.answer("c")
    (summary,) = cloud.summaries()
    assert [device.device for device in summary.devices] == ["a", "c"]


@in_a_folder
def test_a_run_goes_on_when_what_a_device_had_is_lost(tmp_path: Path) -> None:
    config = RunConfig(strategy="fedobp", num_rounds=3, options={"quantile": 0.9})
    cloud = Cloud(tmp_path, config, ("a", "b"))
    blob = uploaded(cloud, "ab")
    cloud.core.disconnected(cloud.now)  # nobody is there when the round closes
    cloud.poll()
    assert len(cloud.summaries()) == 1
    path = rot(cloud, hashlib.sha256(blob).digest())
    cloud.hello()
    assert [cloud.order(name).round for name in "ab"] == [2, 2]
    assert cloud.order("a").patch_hash and not cloud.order("b").patch_hash
    (note,) = cloud.notes(logging.WARNING)
    assert note.startswith(f"run run: the model of b after round 1 is lost: read blob {path}: ")
