"""What one job sees of the host's disk."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from tests.emulate.workers.fleet_of_four import OrderMaker

from sedge_emulate.virtual.disk import HostDisk
from sedge_emulate.workers.job_disk import KEPT_VERSIONS, JobBlobs, JobVectors
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Theta

KEY = b"k" * 32


def test_a_job_reads_every_blob_and_its_own_stay_in_memory(tmp_path: Path) -> None:
    host = HostDisk(tmp_path)
    name = hashlib.sha256(b"blob").digest()
    (host.blobs / name.hex()).write_bytes(b"blob")
    blobs = JobBlobs(tmp_path)
    assert blobs.has(name) and blobs.read(name) == b"blob"
    own = blobs.write(b"update")
    assert own == hashlib.sha256(b"update").digest()
    assert blobs.has(own) and blobs.read(own) == b"update"
    assert not JobBlobs(tmp_path).has(own)
    with pytest.raises(StorageError, match="read blob"):
        JobBlobs(tmp_path).read(own)


def test_what_a_job_keeps_is_named_by_the_job(maker: OrderMaker) -> None:
    vectors = JobVectors(maker.home, KEY, {})
    first, second = vectors.keep(maker.theta), vectors.keep(maker.theta + 1)
    again = JobVectors(maker.home, KEY, {})
    assert [again.keep(maker.theta), again.keep(maker.theta + 1)] == [first, second]
    other = JobVectors(maker.home, b"o" * 32, {}).keep(maker.theta)
    assert len({first, second, other}) == 3
    np.testing.assert_array_equal(again.read(second, maker.layout), maker.theta + 1)
    assert again.has(first) and not again.has(KEY)


def test_a_vector_that_is_not_there_or_not_whole(maker: OrderMaker) -> None:
    vectors = JobVectors(maker.home, KEY, {})
    with pytest.raises(StorageError, match="read vector"):
        vectors.read(KEY, maker.layout)
    with pytest.raises(StorageError, match="read mask"):
        vectors.read_mask(KEY)
    name = vectors.keep(maker.theta[:-1])
    size = maker.theta.size
    with pytest.raises(StorageError, match=f"{size - 1} values, expected {size}"):
        vectors.read(name, maker.layout)


def test_versions_and_masks_are_named_by_content_and_written_once(maker: OrderMaker) -> None:
    versions: dict[bytes, Theta] = {}
    vectors = JobVectors(maker.home, KEY, versions)
    vectors.keep_version(maker.theta, KEY)
    path = maker.disk.shared / KEY.hex()
    before = path.stat()
    JobVectors(maker.home, b"o" * 32, {}).keep_version(maker.theta, KEY)
    assert path.stat() == before
    mask = vectors.keep_mask(b"bitmap")
    assert mask == hashlib.sha256(b"bitmap").digest()
    assert JobVectors(maker.home, b"o" * 32, {}).read_mask(mask) == b"bitmap"
    assert {p.name for p in maker.disk.shared.iterdir()} == {KEY.hex(), mask.hex()}
    assert list(maker.disk.vectors.iterdir()) == []
    found = JobVectors(maker.home, KEY, {}).read(KEY, maker.layout)
    np.testing.assert_array_equal(found, maker.theta)


def test_only_the_newest_versions_stay_in_a_process(maker: OrderMaker) -> None:
    versions: dict[bytes, Theta] = {}
    names = [bytes([i]) * 32 for i in range(KEPT_VERSIONS + 2)]
    for name in names:
        JobVectors(maker.home, KEY, versions).keep_version(maker.theta, name)
    assert list(versions) == names[2:]
    assert JobVectors(maker.home, KEY, versions).has(names[0])  # on disk


def test_a_version_in_memory_whose_file_has_gone_is_written_again(maker: OrderMaker) -> None:
    """The device that used it is going to hold it, and its next job may be another process's."""
    versions: dict[bytes, Theta] = {}
    JobVectors(maker.home, KEY, versions).keep_version(maker.theta, KEY)
    (maker.disk.shared / KEY.hex()).unlink()
    JobVectors(maker.home, b"o" * 32, versions).read(KEY, maker.layout)
    found = np.fromfile(maker.disk.shared / KEY.hex(), np.float32)
    np.testing.assert_array_equal(found, maker.theta)


def test_a_vector_is_written_over_one_that_nobody_needs(maker: OrderMaker) -> None:
    for spare, content in (("a" * 64, b"longer than the vector is" * 100_000), ("b" * 64, b"x")):
        (maker.disk.spare / spare).write_bytes(content)
    vectors = JobVectors(maker.home, KEY, {})
    names = [vectors.keep(maker.theta + i) for i in range(3)]
    assert list(maker.disk.spare.iterdir()) == []
    for i, name in enumerate(names):
        np.testing.assert_array_equal(vectors.read(name, maker.layout), maker.theta + i)
