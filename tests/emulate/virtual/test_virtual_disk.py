"""The disk of a virtual fleet: shared files, and what each device sees of them."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from sedge_emulate.virtual.disk import DeviceDisk, HostDisk
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.transfer import describe

DATA = np.random.default_rng(0).bytes(150_000)
MANIFEST = describe(DATA)


@pytest.fixture
def host(tmp_path: Path) -> HostDisk:
    return HostDisk(tmp_path)


def write(disk: DeviceDisk, *indices: int, data: bytes = DATA) -> None:
    """Chunks arrive."""
    for index in indices:
        offset, length = MANIFEST.span(index)
        disk.write_part("fleet", MANIFEST, index, data[offset : offset + length])


def fetch(disk: DeviceDisk, data: bytes = DATA) -> bool:
    write(disk, *range(MANIFEST.count), data=data)
    return disk.finish_part("fleet", MANIFEST)


def files(host: HostDisk) -> list[str]:
    return sorted(path.name for folder in (host.blobs, host.vectors) for path in folder.iterdir())


def test_two_devices_hold_one_file(host: HostDisk) -> None:
    one, two = DeviceDisk(host), DeviceDisk(host)
    assert fetch(one)
    assert not two.has(MANIFEST.sha256)
    with pytest.raises(StorageError, match="not on this device"):
        two.read(MANIFEST.sha256)
    assert fetch(two)
    assert files(host) == [MANIFEST.sha256.hex()]
    assert two.read(MANIFEST.sha256) == DATA
    assert two.read_span(MANIFEST.sha256, 70_000, 10) == DATA[70_000:70_010]
    one.collect(set(), 0.0)
    assert not one.has(MANIFEST.sha256)
    assert two.read(MANIFEST.sha256) == DATA
    two.collect({MANIFEST.sha256}, 0.0)
    assert files(host) != []
    two.collect(set(), 0.0)
    assert files(host) == []


def test_what_has_arrived_is_remembered_by_device(host: HostDisk) -> None:
    one, two = DeviceDisk(host), DeviceDisk(host)
    write(one, 1)
    assert (one.open_part("fleet", MANIFEST), two.open_part("fleet", MANIFEST)) == ({1}, set())
    assert not one.finish_part("fleet", MANIFEST)
    assert one.open_part("fleet", MANIFEST) == set()


def test_chunks_of_two_devices_make_one_blob(host: HostDisk) -> None:
    one, two = DeviceDisk(host), DeviceDisk(host)
    write(one, 0)
    assert fetch(two)
    write(one, 1, 2)
    assert one.finish_part("fleet", MANIFEST)


def test_a_blob_with_another_hash_is_no_blob(host: HostDisk) -> None:
    disk = DeviceDisk(host)
    assert not fetch(disk, data=bytes(len(DATA)))
    assert files(host) == []
    assert fetch(disk)


def test_an_update_waits_in_memory_under_its_hash(host: HostDisk) -> None:
    disk = DeviceDisk(host)
    name = disk.write(b"update")
    assert name == hashlib.sha256(b"update").digest()
    assert disk.read(name) == b"update"
    assert files(host) == []
    disk.collect(set(), 0.0)
    with pytest.raises(StorageError):
        disk.read(name)


def test_a_full_disk_refuses_writes_and_gives_what_it_has(host: HostDisk) -> None:
    disk = DeviceDisk(host)
    assert fetch(disk)
    disk.full = True
    for attempt in (
        lambda: disk.write(b"x"),
        lambda: write(disk, 0),
        lambda: disk.finish_part("fleet", MANIFEST),
    ):
        with pytest.raises(StorageError, match="disk full"):
            attempt()
    assert disk.read(MANIFEST.sha256) == DATA
    disk.full = False
    assert disk.write(b"x")


@pytest.mark.parametrize("wanted", [True, False])
def test_no_file_goes_until_a_run_has_been_played_again(tmp_path: Path, wanted: bool) -> None:
    fetch(DeviceDisk(HostDisk(tmp_path)))
    again = HostDisk(tmp_path, live=False)
    one, two = DeviceDisk(again), DeviceDisk(again)
    assert fetch(one)
    one.collect(set(), 0.0)
    assert files(again) == [MANIFEST.sha256.hex()]
    if wanted:
        assert fetch(two)
    again.go_live()
    if wanted:
        assert two.read(MANIFEST.sha256) == DATA
        two.collect(set(), 0.0)
    assert files(again) == []


def test_updates_do_not_pile_up_while_a_run_is_played_again(tmp_path: Path) -> None:
    again = HostDisk(tmp_path, live=False)
    disk = DeviceDisk(again)
    name = disk.write(b"update")
    disk.collect(set(), 0.0)
    assert not again.has(name)
    assert disk.write(b"update") == name
    again.go_live()
    assert disk.read(name) == b"update"


def test_a_blob_stays_for_a_device_that_has_part_of_it(host: HostDisk) -> None:
    """Its other chunks may still be on their way when everyone else has let go."""
    slow, fast = DeviceDisk(host), DeviceDisk(host)
    write(slow, 0)
    assert fetch(fast)
    fast.collect(set(), 0.0)
    write(slow, 1, 2)
    assert slow.finish_part("fleet", MANIFEST)
    assert slow.read(MANIFEST.sha256) == DATA
    slow.collect(set(), 0.0)
    assert files(host) == []


def test_a_part_that_nobody_wants_any_more_goes(host: HostDisk) -> None:
    disk = DeviceDisk(host)
    write(disk, 0)
    disk.collect({MANIFEST.sha256}, 0.0)
    assert disk.open_part("fleet", MANIFEST) == {0}
    disk.collect(set(), 0.0)
    assert disk.open_part("fleet", MANIFEST) == set()
    write(disk, 1, 2)
    assert not disk.finish_part("fleet", MANIFEST)  # the first chunk went with the part


def test_a_blob_is_brought_from_its_source_before_anybody_has_fetched_it(tmp_path: Path) -> None:
    source = BlobFolder(tmp_path / "source")
    assert source.write(DATA) == MANIFEST.sha256
    host = HostDisk(tmp_path / "host", source=source)
    assert not host.bring(bytes(32))
    assert host.bring(MANIFEST.sha256)
    disk = DeviceDisk(host)
    assert not disk.has(MANIFEST.sha256)  # no device has it yet
    write(disk, 0)
    assert disk.open_part("fleet", MANIFEST) == {0}
    assert fetch(disk)
    assert disk.read(MANIFEST.sha256) == DATA
    disk.collect(set(), 0.0)
    assert files(host) == []
    assert not host.has(MANIFEST.sha256)
    assert host.bring(MANIFEST.sha256)
    assert HostDisk(tmp_path / "host", live=False).bring(MANIFEST.sha256)  # still here after a kill


def test_nothing_is_brought_without_a_source(host: HostDisk) -> None:
    assert not host.bring(MANIFEST.sha256)
    assert fetch(DeviceDisk(host))
    assert host.bring(MANIFEST.sha256)


def test_a_vector_that_is_let_go_of_can_be_written_over(host: HostDisk) -> None:
    name = hashlib.sha256(b"vector").digest()
    (host.vectors / name.hex()).write_bytes(b"vector")
    disk = DeviceDisk(host)
    disk.take(name)
    disk.collect(set(), 0.0)
    assert files(host) == []
    assert [path.name for path in host.spare.iterdir()] == [name.hex()]


def test_what_is_shared_goes_with_its_last_holder_and_leaves_no_spare(host: HostDisk) -> None:
    """One version of the global for each round, and nothing is ever written over it."""
    name = hashlib.sha256(b"version").digest()
    (host.shared / name.hex()).write_bytes(b"version")
    one, two = DeviceDisk(host), DeviceDisk(host)
    one.take(name)
    two.take(name)
    one.collect(set(), 0.0)
    assert (host.shared / name.hex()).exists()
    two.collect(set(), 0.0)
    assert list(host.shared.iterdir()) == list(host.spare.iterdir()) == []


def test_what_nobody_is_going_to_take_goes_unless_somebody_has_it(tmp_path: Path) -> None:
    host = HostDisk(tmp_path, live=False)
    taken, given_up = bytes(32), bytes([1]) * 32
    for name in (taken, given_up):
        (host.vectors / name.hex()).write_bytes(b"vector")
    DeviceDisk(host).take(taken)
    host.drop(taken)
    host.drop(given_up)
    assert files(host) == [taken.hex(), given_up.hex()]  # no file goes yet
    host.go_live()
    assert files(host) == [taken.hex()]
