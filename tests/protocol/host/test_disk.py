"""Disks that fail: the n-th system call refused (faults D1, D2), and power cuts (D3).

``Recorder`` notes what reaches the disk and rebuilds, for a cut after every step, a worst case: files
keep what was fsynced and some prefix or garbled page of the rest; names are those of the folder's last
fsync, with any later rename possibly on disk already.
"""

import errno
import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.fleet import failing

from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.disk import replace_file
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire.transfer import describe

OLD = np.random.default_rng(1).bytes(9000)
DATA = np.random.default_rng(2).bytes(9000)
MANIFEST = describe(DATA, 4096)
CALLS = (
    "open",
    "pwrite",
    "pread",
    "fsync",
    "replace",
    "unlink",
    "stat",
    "fstat",
    "mkdir",
    "statvfs",
)


class State(msgspec.Struct, frozen=True):
    text: str


def put_blob(root: Path) -> None:
    folder = BlobFolder(root, 0)
    folder.write(DATA)
    folder.settle()


def put_part(root: Path) -> None:
    folder = BlobFolder(root, 0)
    for index in set(range(MANIFEST.count)) - folder.open_part("pi-1", MANIFEST):
        offset, length = MANIFEST.span(index)
        folder.write_part("pi-1", MANIFEST, index, DATA[offset : offset + length])
    assert folder.finish_part("pi-1", MANIFEST)
    folder.settle()


def put_journal(root: Path) -> None:
    Journal(root / "journal", State, 1).commit(State("new" * 1000))


def check(root: Path, done: bool) -> None:
    """What must hold of a folder at any time; ``done`` when the put had returned."""
    folder = BlobFolder(root, 0)
    for path in list((root / "blobs").iterdir()):
        assert folder.read(bytes.fromhex(path.name)) in (DATA, OLD)
    journal = Journal(root / "journal", State, 1).load()
    assert journal in (None, State("old"), State("new" * 1000))
    assert not done or folder.has(MANIFEST.sha256) or journal == State("new" * 1000)


@pytest.fixture(params=[put_blob, put_part, put_journal])
def put(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    call: Callable[[Path], None] = request.param
    return call


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    root = tmp_path / "prepared"
    folder = BlobFolder(root, 0)
    folder.write(OLD)
    folder.settle()
    Journal(root / "journal", State, 1).commit(State("old"))
    return root


class Failing:
    """Lets ``count`` of the system calls pass, then refuses every one of them, or the next alone."""

    def __init__(self, count: int, code: int, for_ever: bool) -> None:
        self.left, self.code, self.for_ever = count, code, for_ever

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == -1 or (self.for_ever and self.left < 0):
                raise OSError(self.code, os.strerror(self.code))
            return call(*args, **kwargs)

        return wrapped


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("for_ever", [False, True])
def test_the_nth_call_fails(
    put: Callable[[Path], None], prepared: Path, tmp_path: Path, code: int, for_ever: bool
) -> None:
    for count in itertools.count():
        root = tmp_path / f"try-{count}"
        shutil.copytree(prepared, root)
        fault = Failing(count, code, for_ever)
        failed = False
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, fault.wrap(getattr(os, name)))
            try:
                put(root)
            except StorageError as error:
                failed = True
                assert os.strerror(code) in str(error)
                assert str(root) in str(error)
        check(root, done=not failed)
        put(root)  # the disk is well again
        check(root, done=True)
        if fault.left >= 0:
            return
        assert failed or not for_ever


class Recorder:
    """Notes every change of the files below ``root``, and rebuilds what a power cut may leave."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steps: list[tuple[str, Any, Any]] = []
        self._paths: dict[int, str] = {}

    def __enter__(self) -> "Recorder":
        self._patch = pytest.MonkeyPatch()
        real_open, real_pwrite, real_fsync = os.open, os.pwrite, os.fsync
        real_replace, real_mkdir = os.replace, os.mkdir

        def open_(path: Any, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_CREAT and (flags & os.O_TRUNC or not os.path.exists(path)):
                self.steps.append(("create", str(path), None))
            descriptor = real_open(path, flags, mode)
            self._paths[descriptor] = str(path)
            return descriptor

        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            self.steps.append(("write", self._paths[descriptor], (bytes(data), offset)))
            return real_pwrite(descriptor, data, offset)

        def fsync(descriptor: int) -> None:
            self.steps.append(("fsync", self._paths[descriptor], None))
            real_fsync(descriptor)

        def replace(source: Any, target: Any) -> None:
            self.steps.append(("rename", str(source), str(target)))
            real_replace(source, target)

        def mkdir(path: Any, mode: int = 0o777) -> None:
            real_mkdir(path, mode)
            self.steps.append(("mkdir", str(path), None))

        for wrapper in (open_, pwrite, fsync, replace, mkdir):
            self._patch.setattr(os, wrapper.__name__.rstrip("_"), wrapper)
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def cuts(self, before: Path, scratch: Path) -> Iterator[tuple[bool, Path]]:
        """(all steps done, folder) for every step and every way it may have reached the disk."""
        for count, eager, torn in itertools.product(
            range(len(self.steps) + 1), (False, True), (None, 0, 512, 4096)
        ):
            folder = scratch / f"cut-{count}-{eager}-{torn}"
            shutil.copytree(before, folder)
            disk = _Disk(self.root, folder, eager, torn)
            for step in self.steps[:count]:
                disk.apply(*step)
            disk.lose_power()
            yield count == len(self.steps), folder


class _Disk:
    """``eager``: names reach the disk at once, data late; else both only when fsynced."""

    def __init__(self, root: Path, folder: Path, eager: bool, torn: int | None) -> None:
        self.root, self.folder, self.eager, self.torn = root, folder, eager, torn
        self.cached: dict[str, bytearray] = {}
        self.durable: dict[str, bytes] = {}
        self.pending: list[tuple[str, str, str]] = []

    def apply(self, step: str, first: Any, second: Any) -> None:
        if step == "create":
            self.cached[first] = bytearray()
            self.durable[first] = b""
        elif step == "write":
            data, offset = second
            file = self.cached[first]
            file.extend(bytes(max(0, offset + len(data) - len(file))))
            file[offset : offset + len(data)] = data
        elif step == "fsync" and first in self.cached:
            self.durable[first] = bytes(self.cached[first])
        elif step == "rename":
            self.cached[second] = self.cached.pop(first)
            self.durable[second] = self.durable.pop(first)
        if step in ("rename", "mkdir"):
            self.pending.append((step, first, second or first))
        folders = {str(Path(target).parent) for _, _, target in self.pending}
        if self.eager or (step == "fsync" and first in folders):
            self._settle(None if self.eager else first)

    def _settle(self, folder: str | None) -> None:
        for entry in list(self.pending):
            if folder is None or str(Path(entry[2]).parent) == folder:
                self.pending.remove(entry)
                if entry[0] == "mkdir":
                    self._there(entry[1]).mkdir()

    def _there(self, path: str) -> Path:
        return self.folder / Path(path).relative_to(self.root)

    def lose_power(self) -> None:
        unsettled = {target for step, _, target in self.pending if step == "rename"}
        for path, cached in self.cached.items():
            if path not in unsettled and self._there(path).parent.is_dir():
                self._there(path).write_bytes(self._remains(self.durable[path], bytes(cached)))

    def _remains(self, durable: bytes, cached: bytes) -> bytes:
        if self.torn is None or durable == cached:
            return durable
        return cached[: self.torn] + bytes(max(0, len(cached) - self.torn))


def test_power_cuts(put: Callable[[Path], None], prepared: Path, tmp_path: Path) -> None:
    root = tmp_path / "live"
    shutil.copytree(prepared, root)
    with Recorder(root) as recorder:
        put(root)
    for done, folder in recorder.cuts(prepared, tmp_path / "cuts"):
        check(folder, done)
        put(folder)
        check(folder, done=True)


def test_a_cut_would_be_noticed(prepared: Path, tmp_path: Path) -> None:
    """The same check fails for a writer without fsync: the test can fail."""

    def careless(root: Path) -> None:
        descriptor = os.open(root / "parts" / "x.tmp", os.O_WRONLY | os.O_CREAT, 0o600)
        os.pwrite(descriptor, DATA, 0)
        os.close(descriptor)
        os.replace(root / "parts" / "x.tmp", root / "blobs" / MANIFEST.sha256.hex())

    root = tmp_path / "live"
    shutil.copytree(prepared, root)
    with Recorder(root) as recorder:
        careless(root)
    with pytest.raises((AssertionError, StorageError)):
        for done, folder in recorder.cuts(prepared, tmp_path / "cuts"):
            check(folder, done)


def test_what_could_not_be_fsynced_is_gone(put: Callable[[Path], None], tmp_path: Path) -> None:
    """A second fsync would succeed for pages that the kernel has already dropped."""
    BlobFolder(tmp_path, 0)
    with failing(os, "fsync", OSError(errno.EIO, "")), pytest.raises(StorageError):
        put(tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    """Where a new version is about to be written, somebody has put a link to a file of ours."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"ours")
    (tmp_path / "fresh").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        replace_file(tmp_path / "file", b"new", tmp_path / "fresh")
    assert victim.read_bytes() == b"ours" and not (tmp_path / "file").exists()
