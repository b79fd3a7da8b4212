"""Blobs and parts on a real disk."""

import hashlib
import os
import resource
import stat
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sedge_protocol.errors import LocalError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.transfer import Manifest, describe

DATA = np.random.default_rng(1).bytes(50_000)
MANIFEST = describe(DATA, 4096)


@pytest.fixture
def folder(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path / "state", min_free_bytes=0)


def files(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def chunk(manifest: Manifest, index: int, data: bytes = DATA) -> bytes:
    offset, length = manifest.span(index)
    return data[offset : offset + length]


def write_all(folder: BlobFolder, owner: str, manifest: Manifest, data: bytes = DATA) -> None:
    for index in range(manifest.count):
        folder.write_part(owner, manifest, index, chunk(manifest, index, data))


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_blob_is_what_was_written(folder: BlobFolder, tmp_path: Path) -> None:
    sha256 = folder.write(DATA)
    assert sha256 == hashlib.sha256(DATA).digest()
    assert folder.has(sha256)
    assert folder.size(sha256) == len(DATA)
    assert folder.read(sha256) == DATA
    assert folder.read_span(sha256, 10, 20) == DATA[10:30]
    assert files(tmp_path / "state") == [f"blobs/{sha256.hex()}"]


def test_a_missing_blob(folder: BlobFolder) -> None:
    sha256 = bytes(32)
    assert not folder.has(sha256)
    for call in (folder.read, folder.size):
        with pytest.raises(StorageError, match="No such file"):
            call(sha256)
    with pytest.raises(LocalError, match="3 bytes"):
        folder.has(b"abc")


def test_bit_rot_is_found_and_heals(folder: BlobFolder, tmp_path: Path) -> None:
    sha256 = folder.write(DATA)
    path = tmp_path / "state" / "blobs" / sha256.hex()
    path.write_bytes(DATA[:-1] + bytes([DATA[-1] ^ 1]))
    with pytest.raises(StorageError, match=sha256.hex()):
        folder.read(sha256)
    assert not folder.has(sha256), "or it would never be fetched again"
    folder.write(DATA)
    assert folder.read(sha256) == DATA
    age(path.with_suffix(".corrupt"), 100)
    assert folder.collect({sha256}, 10) == len(DATA)


def test_a_damaged_part_never_becomes_a_blob(folder: BlobFolder, tmp_path: Path) -> None:
    write_all(folder, "pi-1", MANIFEST)
    (path,) = (tmp_path / "state" / "parts").iterdir()
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"?")
    assert folder.open_part("pi-1", MANIFEST) == set(range(MANIFEST.count)) - {1}
    assert not folder.finish_part("pi-1", MANIFEST)
    assert files(tmp_path / "state") == []
    assert not folder.finish_part("pi-1", MANIFEST), "neither part nor blob"


@pytest.mark.parametrize(("index", "length"), [(-1, 4096), (13, 4096), (0, 4095), (12, 4096)])
def test_an_unchecked_chunk_is_our_bug(folder: BlobFolder, index: int, length: int) -> None:
    with pytest.raises(LocalError):
        folder.write_part("pi-1", MANIFEST, index, bytes(length))


@pytest.mark.parametrize("owner", ["", "../x", "a/b", "A", "a\n", "a" * 49])
def test_an_owner_is_no_path(folder: BlobFolder, owner: str) -> None:
    with pytest.raises(LocalError, match="owner"):
        folder.open_part(owner, MANIFEST)


def test_a_large_part_takes_little_memory(folder: BlobFolder) -> None:
    data = bytes(64 * 2**20)
    manifest = describe(data, 2**18)
    del data
    folder.write_part("fleet", manifest, manifest.count - 1, bytes(2**18))  # a file full of holes
    tracemalloc.start()
    try:
        assert folder.open_part("fleet", manifest) == set(range(manifest.count))
        assert folder.finish_part("fleet", manifest)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_a_part_is_given_with_its_blob(folder: BlobFolder, tmp_path: Path) -> None:
    write_all(folder, "pi-1", MANIFEST)
    assert folder.take_part("pi-1", MANIFEST) == DATA and folder.read(MANIFEST.sha256) == DATA
    assert folder.take_part("pi-1", MANIFEST) == DATA  # the time before was not heard of
    other = describe(DATA[::-1], 4096)
    assert folder.take_part("pi-1", other) is None
    write_all(folder, "pi-1", other, bytes(len(DATA)))
    assert folder.take_part("pi-1", other) is None  # and the damaged part is gone
    assert folder.take_part("pi-2", MANIFEST) is None  # its hash alone gives it to nobody else
    liar = Manifest(MANIFEST.sha256, other.size, 4096, other.digests)
    write_all(folder, "pi-2", liar, DATA[::-1])
    assert folder.take_part("pi-2", liar) is None  # nor do chunks with digests of their own
    assert folder.open_part("pi-1", MANIFEST) == set(range(MANIFEST.count))
    assert folder.open_part("pi-2", MANIFEST) == set()
    folder.discard_part("pi-1", MANIFEST)
    assert folder.take_part("pi-1", MANIFEST) is None
    assert [name.split("/")[0] for name in files(tmp_path / "state")] == ["blobs"]


def test_a_part_is_read_where_it_lies(folder: BlobFolder, tmp_path: Path) -> None:
    write_all(folder, "pi-1", MANIFEST)
    for _ in range(2):
        assert folder.read_part("pi-1", MANIFEST) == DATA and not folder.has(MANIFEST.sha256)
    (part,) = (tmp_path / "state" / "parts").iterdir()
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert folder.read_part("pi-1", MANIFEST) is None and not part.exists()
    with pytest.raises(StorageError, match=r"read part .*No such file"):
        folder.read_part("pi-1", MANIFEST)


def test_an_owner_has_so_many_parts(folder: BlobFolder, tmp_path: Path) -> None:
    manifests = [describe(DATA[i:], 4096) for i in range(5)]
    for age, manifest in enumerate(manifests):
        for owner in ("pi", "pi-1"):
            folder.write_part(owner, manifest, 0, chunk(manifest, 0, DATA[age:]))
            (path,) = (tmp_path / "state" / "parts").glob(f"{owner}-{manifest.sha256.hex()}.part")
            os.utime(path, (1000 - age, 1000 - age))  # the first is the newest
    folder.trim_parts("pi", manifests[4], 2)
    kept = [number for number, one in enumerate(manifests) if folder.open_part("pi", one)]
    assert kept == [0, 1, 4]
    assert all(folder.open_part("pi-1", one) for one in manifests)


@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_folder_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    flushed: list[int] = []
    folder = BlobFolder(tmp_path / "state", 0, durable)
    monkeypatch.setattr(os, "fsync", flushed.append)

    def flushes(act: Callable[[], object]) -> bool:
        flushed.clear()
        act()
        return bool(flushed)

    # An earlier process may have been killed before it did.
    assert flushes(folder.settle) is durable
    assert flushes(lambda: folder.write(DATA)) is durable
    assert flushes(folder.settle) is durable
    assert not flushes(folder.settle)
    assert not flushes(lambda: folder.write(DATA))
    assert flushes(folder.settle) is durable  # another process may have written it
    other = describe(DATA[::-1])
    folder.write_part("pi-1", other, 0, DATA[::-1])
    assert flushes(lambda: folder.finish_part("pi-1", other)) is durable
    assert flushes(folder.settle) is durable
    assert not flushes(lambda: folder.finish_part("pi-1", other))
    assert folder.read(MANIFEST.sha256) == DATA and folder.read(other.sha256) == DATA[::-1]
    for path in (tmp_path / "state").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_blob_is_settled_only_by_what_came_after_it(
    folder: BlobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread writes while the names are flushed; and a disk may refuse to flush them."""
    folder.write(DATA)
    flushed: list[int] = []
    quiet = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(descriptor)
        if len(flushed) == 1:
            monkeypatch.setattr(os, "fsync", quiet)
            folder.write(DATA[1:])
            monkeypatch.setattr(os, "fsync", fsync)
        if len(flushed) == 2:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    folder.settle()
    with pytest.raises(StorageError, match=r"flush the folder .*blobs: Input/output error"):
        folder.settle()
    for _ in range(2):
        folder.settle()
    assert len(flushed) == 3


def test_collect_frees_what_is_old_and_unwanted(folder: BlobFolder, tmp_path: Path) -> None:
    root = tmp_path / "state"
    kept, unwanted, young = (folder.write(bytes([i]) * 1000) for i in range(3))
    for owner in ("old", "new"):
        folder.write_part(owner, MANIFEST, 0, chunk(MANIFEST, 0))
    wanted = describe(DATA + b"!", 4096)
    folder.write_part("fleet", wanted, 0, chunk(MANIFEST, 0))
    (root / "parts" / "left-over.tmp").write_bytes(bytes(10))
    for path in root.rglob("*"):
        if path.is_file() and not path.name.startswith((young.hex(), "new-")):
            age(path, 100)
    assert folder.collect({kept, wanted.sha256}, 10) == 1000 + 4096 + 10
    assert [folder.has(sha256) for sha256 in (kept, unwanted, young)] == [True, False, True]
    assert folder.open_part("old", MANIFEST) == set()
    assert folder.open_part("new", MANIFEST) == {0}
    assert folder.open_part("fleet", wanted) == {0}


def test_a_blob_written_again_is_young_again(folder: BlobFolder, tmp_path: Path) -> None:
    age(tmp_path / "state" / "blobs" / folder.write(DATA).hex(), 100)
    folder.write(DATA)
    assert folder.collect(set(), 10) == 0


def test_the_free_space_floor(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path)
    floor = BlobFolder(tmp_path / "default").min_free_bytes
    assert floor == min(int(0.05 * free.f_blocks * free.f_frsize), 64 * 2**20)
    available = free.f_bavail * free.f_frsize
    folder = BlobFolder(tmp_path, min_free_bytes=2 * available)
    sha256 = BlobFolder(tmp_path, min_free_bytes=0).write(b"x")
    assert folder.write(b"x") == sha256, "what is there needs no room"
    calls: list[Callable[[], object]] = [
        lambda: folder.write(DATA),
        lambda: folder.open_part("pi-1", MANIFEST),
        lambda: folder.write_part("pi-1", MANIFEST, 0, chunk(MANIFEST, 0)),
    ]
    for call in calls:
        with pytest.raises(StorageError, match=r"disk full: .* needs \d+ bytes"):
            call()
    assert len(files(tmp_path)) == 1


def test_a_root_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    for root in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageError, match="make folder"):
            BlobFolder(root)

    def refuse(_path: object, _mode: int) -> bool:
        return False

    monkeypatch.setattr(os, "access", refuse)
    with pytest.raises(StorageError, match="not readable and writable by this user"):
        BlobFolder(tmp_path)


def test_short_reads_and_writes_go_on(folder: BlobFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwrite, real_pread = os.pwrite, os.pread

    def pwrite(descriptor: int, data: memoryview, offset: int) -> int:
        return real_pwrite(descriptor, data[:777], offset)

    def pread(descriptor: int, length: int, offset: int) -> bytes:
        return real_pread(descriptor, min(length, 1111), offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "pread", pread)
    sha256 = folder.write(DATA)
    assert folder.read(sha256) == DATA
    assert folder.read_span(sha256, 3000, 40_000) == DATA[3000:43_000]


def test_a_file_size_limit_is_a_storage_error(folder: BlobFolder) -> None:
    """RLIMIT_FSIZE cuts a write short first and refuses the rest, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            folder.write(DATA)
        with pytest.raises(StorageError, match="File too large"):
            folder.write_part("pi-1", MANIFEST, 1, chunk(MANIFEST, 1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not folder.has(MANIFEST.sha256)
    assert folder.open_part("pi-1", MANIFEST) == set()
    assert folder.read(folder.write(DATA)) == DATA


def test_a_download_is_counted_once(tmp_path: Path) -> None:
    data = bytes(2 * 2**20)
    manifest = describe(data, 65_536)
    disk = os.statvfs(tmp_path)
    share = 3 * 2**20 / (disk.f_bavail * disk.f_frsize)
    folder = BlobFolder(tmp_path, min_free_bytes=0, share=share)
    for _ in range(2**10):
        folder.require_room(2**10)  # asking takes nothing
    folder.open_part("pi-1", manifest)
    write_all(folder, "pi-1", manifest, data)
    assert folder.finish_part("pi-1", manifest)


def test_a_folder_with_a_share_of_the_disk_takes_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = BlobFolder(tmp_path, min_free_bytes=0, share=1e-9)
    with pytest.raises(
        StorageError, match=r"of \d+ are used: limits\.disk_share in edge\.toml is 1e-09"
    ):
        folder.write(bytes(2**20))
    monkeypatch.setattr("sedge_protocol.host.blobs.MEASURE_S", 0.0)
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    some = BlobFolder(tmp_path, min_free_bytes=0, share=3 * 2**20 / free)
    for number in range(2):
        some.write(bytes([number]) * 2**20)
    with pytest.raises(StorageError, match="disk_share"):
        some.write(bytes([9]) * (2 * 2**20))
    some.collect(set(), 0.0)
    some.write(bytes([9]) * (2 * 2**20))
