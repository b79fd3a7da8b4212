"""Blobs in an object store: kept in memory here, and on a server by every test of a store."""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import LocalStore, MemoryStore, S3Store
from tests.fleet import failing

from sedge_cloud.store import objects
from sedge_cloud.store.database import Store
from sedge_cloud.store.objects import ObjectBlobs, ObjectParts, open_objects
from sedge_cloud.store.settings import BlobsConfig
from sedge_cloud.store.sqlite import Sqlite
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.wire.transfer import describe

NOTHING = bytes(32)


class Bench:
    """An object store in memory, and blobs in it."""

    def __init__(self, folder: Path, limit: int = 2**20) -> None:
        self.memory = MemoryStore()
        self.folder, self.limit = folder, limit
        self.blobs = self.opened("one")

    def opened(self, name: str) -> ObjectBlobs:
        """The same blobs from a machine of this name."""
        return ObjectBlobs("memory://", self.memory, self.folder / name, self.limit)

    def put(self, data: bytes) -> bytes:
        sha256 = self.blobs.write(data)
        self.blobs.settle()
        return sha256


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Two machines may look at the same objects."""
    return Bench(tmp_path)


def test_what_one_machine_settles_another_reads(bench: Bench) -> None:
    sha256, other = bench.put(b"some bytes"), bench.opened("two")
    assert sha256 == hashlib.sha256(b"some bytes").digest()
    assert other.has(sha256) and other.size(sha256) == 10
    assert other.sizes() == {sha256: 10}
    assert other.read_span(sha256, 5, 3) == b"byt" and other.read(sha256) == b"some bytes"
    assert not other.has(NOTHING)
    with pytest.raises(StorageError, match=f"read blob memory:///{NOTHING.hex()}: .*not found"):
        other.read(NOTHING)
    with pytest.raises(StorageError, match="it ends 2 bytes before 12"):
        other.read_span(sha256, 8, 4)


def test_it_can_be_read_before_it_is_settled(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(blobs: ObjectBlobs, name: str, data: bytes) -> None:
        """It does not arrive."""

    monkeypatch.setattr(ObjectBlobs, "_send", never)
    sha256 = bench.blobs.write(b"under way")
    assert bench.blobs.has(sha256) and bench.blobs.size(sha256) == 9
    assert bench.blobs.read(sha256) == b"under way"
    assert bench.blobs.read_span(sha256, 0, 5) == b"under"


def test_a_blob_that_could_not_be_stored_is_stored_by_the_next_settling(bench: Bench) -> None:
    """A row that names it is not committed before."""
    with failing(obstore, "put", BaseError("the server is away\n\nDebug source:\nmuch more")):
        sha256 = bench.blobs.write(b"some bytes")
        with pytest.raises(StorageError):
            bench.blobs.settle()
        with pytest.raises(StorageError) as caught:
            bench.blobs.settle()
        place = f"memory:///{sha256.hex()}"
        assert str(caught.value) == f"write blob {place}: the server is away"
        assert bench.blobs.read(sha256) == b"some bytes"
    with suppress(StorageError):  # the last attempt may have begun while the server was away
        bench.blobs.settle()
    bench.blobs.settle()
    assert bench.opened("two").read(sha256) == b"some bytes"


def test_only_so_much_waits_for_a_server(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WAITING_BYTES", 1000)
    with failing(obstore, "put", BaseError("the server is away")):
        bench.blobs.write(b"1" * 600)
        bench.blobs.write(b"2" * 600)
        with pytest.raises(StorageError, match="the server is away"):
            bench.blobs.write(b"3" * 600)


def test_damage_is_found_and_the_blob_can_be_written_again(bench: Bench) -> None:
    sha256 = bench.put(b"some bytes")
    obstore.put(bench.memory, sha256.hex(), b"some bites")
    assert bench.blobs.read(sha256) == b"some bytes"  # the copy
    other = bench.opened("two")
    with pytest.raises(StorageError, match="10 bytes do not match its sha256"):
        other.read(sha256)
    assert not other.has(sha256) and other.sizes() == {}
    bench.put(b"some bytes")
    assert other.read(sha256) == b"some bytes"


def test_a_damaged_copy_is_fetched_again(bench: Bench, tmp_path: Path) -> None:
    sha256 = bench.put(b"some bytes")
    (tmp_path / "one" / "blobs" / sha256.hex()).write_bytes(b"some bites")
    assert bench.blobs.read(sha256) == b"some bytes"
    assert (tmp_path / "one" / "blobs" / sha256.hex()).read_bytes() == b"some bytes"


def test_copies_that_are_not_used_make_room(bench: Bench, tmp_path: Path) -> None:
    """A tenth of the limit, also after a restart."""
    bench.limit = 1000
    folder, blobs, names = tmp_path / "two" / "blobs", bench.opened("two"), list[bytes]()
    for number in range(16):
        names.append(blobs.write(bytes([number]) * 60))
        blobs.settle()
        os.utime(folder / names[-1].hex(), (number, number))
    assert blobs.read(names[0])  # used just now
    names.append(blobs.write(b"more" * 15))
    blobs.settle()
    assert {path.name for path in folder.iterdir()} == {
        name.hex() for name in names if name not in names[1:3]
    }
    assert len(blobs.sizes()) == 17 and blobs.read(names[1]) == b"\1" * 60
    blobs = bench.opened("two")
    for number in range(6):
        blobs.write(bytes([number]) * 180)
        blobs.settle()
    assert sum(path.stat().st_size for path in folder.iterdir()) == 900


def test_a_full_disk_costs_only_the_copies(bench: Bench) -> None:
    bench.blobs.copies.min_free_bytes = 2**62
    sha256 = bench.put(b"some bytes")
    assert bench.blobs.read(sha256) == b"some bytes" == bench.opened("two").read(sha256)
    with pytest.raises(StorageError, match="disk full: "):
        ObjectParts(bench.blobs).require_room(1)


def later(monkeypatch: pytest.MonkeyPatch, hours: int, touched: int) -> None:
    """By the server's clock it is some hours later, and all objects have been touched then."""
    head = obstore.head

    def moved(store: MemoryStore, name: str) -> object:
        passed = timedelta(hours=hours if name == "clock" else touched)
        return {**head(store, name), "last_modified": datetime.now(UTC) + passed}

    monkeypatch.setattr(obstore, "head", moved)


def test_what_nothing_names_goes_when_old(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, gone = bench.put(b"kept"), bench.put(b"gone, in a while")
    assert bench.blobs.collect({kept}, 60.0) == 0
    later(monkeypatch, hours=1, touched=0)
    assert bench.blobs.collect({kept}, 60.0) == 16
    assert bench.blobs.sizes() == {kept: 4}
    assert not bench.opened("two").has(gone)


def test_a_full_server_is_emptied_and_then_takes_what_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what time it is only by what it has stored."""
    old, kept, waiting = bench.put(b"an old one"), bench.put(b"kept"), b"waiting"
    found, listed = bench.blobs.sizes(), obstore.list

    def full(*_: object, **__: object) -> None:
        raise BaseError(
            "Error performing PUT http://server/bucket/x in 9ms - Server returned non-2xx status code: 507 "
            "Insufficient Storage: <Error><Code>XMinioStorageFull</Code><Message>No room.</Message></Error>"
        )

    def an_hour_ago(*arguments: Any, **options: Any) -> Iterator[list[dict[str, Any]]]:
        for page in listed(*arguments, **options):
            yield [{**it, "last_modified": it["last_modified"] - timedelta(hours=it["path"] == old.hex())}
                   for it in page]  # fmt: skip

    def head(store: MemoryStore, name: str) -> dict[str, Any]:
        return next(it for page in an_hour_ago(store) for it in page if it["path"] == name)

    with monkeypatch.context() as patched:
        patched.setattr(obstore, "put", full)
        patched.setattr(obstore, "list", an_hour_ago)
        patched.setattr(obstore, "head", head)
        sha256 = bench.blobs.write(waiting)
        with pytest.raises(StorageError) as caught:
            bench.blobs.settle()
        said = "507 Insufficient Storage: XMinioStorageFull: No room. (is the object store full?)"
        assert str(caught.value) == f"write blob memory:///{sha256.hex()}: {said}"
        assert found.keys() == {old, kept} and bench.blobs.collect({kept}, 60.0) == 10
    with suppress(StorageError):  # the last attempt may have begun while it was full
        bench.blobs.settle()
    bench.blobs.settle()
    assert bench.blobs.sizes().keys() == {kept, sha256}


def test_a_blob_that_is_wanted_again_while_it_is_collected_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is old when the objects are listed, and new when its turn comes."""
    sha256 = bench.put(b"some bytes")
    later(monkeypatch, hours=1, touched=2)
    assert bench.blobs.collect(set(), 60.0) == 0
    assert bench.opened("two").has(sha256)


def test_a_blob_that_is_written_again_is_new_again(bench: Bench) -> None:
    sha256 = bench.put(b"some bytes")
    before = obstore.head(bench.memory, sha256.hex())["last_modified"]
    bench.put(b"some bytes")
    assert obstore.head(bench.memory, sha256.hex())["last_modified"] > before


def test_a_part_becomes_an_object(bench: Bench) -> None:
    data = os.urandom(9000)
    manifest, parts = describe(data, 4096), ObjectParts(bench.blobs)
    assert parts.open_part("a", manifest) == set()
    for index in range(manifest.count):
        offset, length = manifest.span(index)
        parts.write_part("a", manifest, index, data[offset : offset + length])
    assert parts.take_part("a", manifest) == data
    assert parts.take_part("a", manifest) == data  # until it is discarded
    bench.blobs.settle()
    parts.discard_part("a", manifest)
    assert bench.opened("two").read(manifest.sha256) == data
    assert parts.take_part("a", manifest) is None


def break_bucket(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise FileNotFoundError("Error performing GET: 404: <Code>NoSuchBucket</Code>")

    for name in ("get", "head"):
        monkeypatch.setattr(obstore, name, refused)


def break_object(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for sha256 in bench.blobs.sizes():
        obstore.delete(bench.memory, sha256.hex())


@pytest.mark.parametrize(("broken", "is_lost"), [(break_bucket, False), (break_object, True)])
def test_a_missing_bucket_is_not_a_lost_blob(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    broken: Callable[[Bench, pytest.MonkeyPatch], None],
    is_lost: bool,
) -> None:
    """Otherwise every update would be rejected for good while somebody looks for the bucket."""
    sha256 = bench.put(b"some bytes")
    blobs = bench.opened("two")
    folder = bench.folder / "rows"
    folder.mkdir()
    store = Store(Sqlite(folder), blobs, ObjectParts(blobs), folder)
    assert not store.missing_reason(sha256)
    blobs = bench.opened("three")
    store.blobs = blobs
    broken(bench, monkeypatch)
    assert bool(store.missing_reason(sha256)) is is_lost
    if not is_lost:
        with pytest.raises(StorageError, match="NoSuchBucket"):
            blobs.has(sha256)


def test_a_machine_without_certificates_is_told_what_it_lacks() -> None:
    with (
        failing(S3Store, "from_url", BaseError("Generic HTTP client error: builder error")),
        pytest.raises(ConfigError, match=r"blobs\.url: .*apt install ca-certificates"),
    ):
        open_objects(BlobsConfig("s3://home"))


def test_a_folder_serves_as_an_object_store(tmp_path: Path) -> None:
    found = open_objects(BlobsConfig(f"file://{tmp_path}/objects"))
    assert isinstance(found, LocalStore)
    blobs = ObjectBlobs("file", found, tmp_path / "copies", 2**20)
    blobs.require()
    sha256 = blobs.write(b"some bytes")
    blobs.write(b"some bytes")
    blobs.settle()
    assert (tmp_path / "objects" / sha256.hex()).read_bytes() == b"some bytes"
