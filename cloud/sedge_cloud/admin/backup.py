"""Backs up the whole state to one file, even while the service runs, and restores it.

    head.json       first line: SHA-256 of the rest; then the head as JSON
    sedge.sqlite    a snapshot of all rows, from SQLite or a server; the head holds its digest
    blobs/<sha256>  every blob that the rows refer to, sorted by name

A backup is a plain tar file with exactly these members in this order. While a backup is written, no process
deletes blobs. A backup is restored only if every member matches the head. Partially received updates are
left out because devices send them again.
"""

import hashlib
import os
import shutil
import tarfile
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO

import msgspec

from sedge_cloud.admin.copying import is_empty
from sedge_cloud.config import CloudConfig
from sedge_cloud.figures.numbers import size as bytes_text
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.run import state_of
from sedge_cloud.store.contract import Blobs
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_blobs, open_folder, open_store
from sedge_cloud.store.sqlite import DATABASE_NAME
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.disk import opened, sync_folder, translated
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.host.privileges import act_as_owner, as_caller

FORMAT = 1
HEAD = "head.json"
MAX_HEAD_BYTES = 256 * 2**20
MAX_BLOB_BYTES = 2**31
READ_BYTES = 2**20
# What a restore returns: each run's last closed round before and after it, and lines for the operator.
Restored = tuple[dict[str, int], dict[str, int], list[str]]
Members = Iterator[tuple[str, Iterator[bytes]]]
# Temporary folders in the state folder. If a command is killed, the next one deletes the files left there.
SAVING, LOADING = "saving", "loading"


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first member of a backup. It lists the other members, with sizes in bytes and digests in hex."""

    format: int
    fleet: str
    created: float
    database_sha256: str
    database_bytes: int
    blobs: dict[str, int]

    def members(self) -> list[tuple[str, str, int]]:
        """Return the name, digest and size of every member after the head, in order."""
        blobs = [(f"blobs/{name}", name, size) for name, size in sorted(self.blobs.items())]
        return [(DATABASE_NAME, self.database_sha256, self.database_bytes), *blobs]


def back_up(store: Store, fleet: str, path: Path) -> list[str]:
    """Write a backup; if this fails, no file is left behind. Returns lines for the operator.

    Raises ``StorageError`` when a disk fails or a blob is found to be damaged.
    """
    work = store.folder / SAVING
    with lock_folder(work), store.blobs_held():
        snapshot = work / DATABASE_NAME
        _remove(snapshot)
        try:
            with closing(open_folder(work)) as copy:
                store.copy_rows_to(copy)
                named, sizes = Garbage(copy).named_blobs(), store.blobs.sizes()
                lost = sum(bool(copy.missing_reason(sha256)) for sha256 in named - sizes.keys())
                contents = _contents(copy)
            blobs = {sha256.hex(): sizes[sha256] for sha256 in named if sha256 in sizes}
            digest, size = _digest(snapshot)
            head = Head(FORMAT, fleet, time.time(), digest, size, blobs)
            written = _write(store, head, snapshot, path)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return [
        f"written: {path}, {bytes_text(written)}, of which {bytes_text(size)} is the database",
        *contents,
        *([f"lost earlier and therefore not included: {lost} blobs"] if lost else ()),
        "It holds the devices' secrets, but neither cloud.toml nor the files that cloud.toml names.",
    ]


def restore(path: Path, cloud: CloudConfig, replace: bool) -> list[str]:
    """Restore a backup into the store that ``cloud`` names. Returns lines for the operator.

    The last step replaces the database, atomically and even if the old one is damaged. Raises
    ``StorageError`` for a backup that does not match its head, if the store's service is running, and when
    a disk or a database server fails. Raises ``ConfigError`` for another fleet's backup and, unless
    ``replace`` is True, for a store that already holds a fleet.
    """
    with as_caller(), translated("open backup", path):
        file = path.open("rb")
    with file:
        with _reading(file, path) as (head, members):
            for _, pieces in members:
                for _ in pieces:
                    pass
        if head.fleet != cloud.fleet:
            raise ConfigError("fleet", head.fleet, f"a backup of fleet {cloud.fleet!r}", str(path))
        folder = act_as_owner(Path(cloud.state_dir))
        with lock_folder(folder), _reading(file, path) as (_, members):
            into = _into_file if cloud.store.url is None else _into_server
            before, after, contents = into(cloud, folder, members, replace)
    moment = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(head.created))
    return [
        f"restored: the state of {moment}",
        *contents,
        *(
            f"run {run}: goes back from round {number} to round {after.get(run, 0)}"
            for run, number in before.items()
            if after.get(run, 0) < number
        ),
        "Everything later is lost: rounds, receipts, and devices added or given new secrets since. "
        "Devices that are ahead repeat the open round.",
    ]


def _into_file(cloud: CloudConfig, folder: Path, members: Members, replace: bool) -> Restored:
    """Restore into the state folder. With ``replace``, the old database file need not be readable."""
    before: dict[str, int] = {}
    if (folder / DATABASE_NAME).exists():
        try:
            with closing(open_folder(folder)) as old:
                before = _given_up(old, replace)
        except StorageError:
            if not replace:
                raise _taken(str(folder)) from None
    with _loaded(members, folder / LOADING) as loaded:
        _write_blobs(members, open_blobs(cloud))
        after, contents = _rounds(loaded), _contents(loaded)
        loaded.close()
        _switch(folder / LOADING, folder)
    return before, after, contents


def _into_server(cloud: CloudConfig, folder: Path, members: Members, replace: bool) -> Restored:
    with closing(open_store(cloud)) as target, target.serving(), target.blobs_held():
        before = _given_up(target, replace)
        with _loaded(members, folder / LOADING) as loaded:
            _write_blobs(members, target.blobs)
            loaded.copy_rows_to(target)
            return before, _rounds(loaded), _contents(loaded)


def _given_up(store: Store, replace: bool) -> dict[str, int]:
    """Return the last closed round of each run in the store that the restore is about to replace."""
    if not replace and not is_empty(store):
        raise _taken(store.place)
    return _rounds(store)


def _taken(place: str) -> ConfigError:
    expected = "an empty store (--replace discards the existing state)"
    return ConfigError("the store to restore into", place, expected)


def _write_blobs(members: Members, blobs: Blobs) -> None:
    """Write all remaining members as blobs.

    If the restore fails later, these blobs are harmless because no row refers to them.
    """
    for _, pieces in members:
        data = b"".join(pieces)
        # Reading a damaged blob moves it aside; reading a missing one raises.
        with suppress(StorageError):
            blobs.read(hashlib.sha256(data).digest())
        blobs.write(data)
    blobs.settle()


@contextmanager
def _loaded(members: Members, work: Path) -> Generator[Store]:
    """Write the first member, the database, into ``work`` and open it, with all the usual checks."""
    shutil.rmtree(work, ignore_errors=True)
    try:
        _, database = next(members)
        with translated("write", work / DATABASE_NAME):
            work.mkdir(mode=0o700)
            with (
                opened(work / DATABASE_NAME, os.O_WRONLY | os.O_CREAT) as descriptor,
                os.fdopen(os.dup(descriptor), "wb") as out,
            ):
                out.writelines(database)
                out.flush()
                os.fsync(descriptor)
        with closing(open_folder(work)) as store:
            store.check()
            yield store
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _contents(store: Store) -> list[str]:
    runs = store.runs()
    lines = [f"run {row.run}: {row.status}, {state_of(row).round} rounds closed" for row in runs]
    return [f"devices: {store.enrolled()}", *lines]


def _rounds(store: Store) -> dict[str, int]:
    """Return the last closed round of each run."""
    return {row.run: state_of(row).round for row in store.runs()}


def _write(store: Store, head: Head, snapshot: Path, path: Path) -> int:
    """Write the tar file under a temporary name and rename it. Returns its size in bytes."""
    part = path.with_name(f"{path.name}.part")
    coded = msgspec.json.encode(head)
    first = hashlib.sha256(coded).hexdigest().encode() + b"\n" + coded
    with _output(part) as descriptor, translated("write backup", path):
        with (
            os.fdopen(os.dup(descriptor), "wb") as file,
            tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT) as tar,
        ):
            tar.addfile(_member(HEAD, len(first)), BytesIO(first))
            with opened(snapshot, os.O_RDONLY) as source, os.fdopen(os.dup(source), "rb") as data:
                tar.addfile(_member(DATABASE_NAME, head.database_bytes), data)
            for name, size in sorted(head.blobs.items()):
                blob = store.blobs.read(bytes.fromhex(name))
                tar.addfile(_member(f"blobs/{name}", size), BytesIO(blob))
        os.fsync(descriptor)
        written = os.fstat(descriptor).st_size
        with as_caller():
            os.replace(part, path)
            sync_folder(path.parent)
    return written


@contextmanager
def _output(part: Path) -> Generator[int]:
    """Open the caller's file, and remove it if anything fails."""
    with as_caller(), translated("write backup", part):
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor
    except BaseException:
        with as_caller():
            part.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o600
    return member


def _digest(path: Path) -> tuple[str, int]:
    """Return a file's SHA-256 in hex, and its size in bytes."""
    digest, size = hashlib.sha256(), 0
    with translated("read", path), path.open("rb") as file:
        while data := file.read(READ_BYTES):
            digest.update(data)
            size += len(data)
    return digest.hexdigest(), size


@contextmanager
def _reading(file: IO[bytes], path: Path) -> Generator[tuple[Head, Members]]:
    """Yield a backup's head and an iterator over its other members.

    A member is checked against the head once all of its data has been read. Raises ``StorageError`` if it
    differs.
    """
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r|") as tar:
            head = _read_head(_data(tar, HEAD, None, path).read(), path)
            yield head, _members(tar, head, path)
    except (tarfile.TarError, ValueError, OverflowError, EOFError, RecursionError) as exc:
        raise _damaged(path, str(exc)) from exc


def _members(tar: tarfile.TarFile, head: Head, path: Path) -> Members:
    for name, sha256, size in head.members():
        yield name, _pieces(_data(tar, name, size, path), name, sha256, size, path)
    if tar.next() is not None:
        raise _damaged(path, "it contains more than its head lists")


def _pieces(data: IO[bytes], name: str, sha256: str, size: int, path: Path) -> Iterator[bytes]:
    digest, left = hashlib.sha256(), size
    while left and (piece := data.read(min(left, READ_BYTES))):
        digest.update(piece)
        left -= len(piece)
        yield piece
    if left or digest.hexdigest() != sha256:
        raise _damaged(path, f"{name} does not match its size and sha256")


def _data(tar: tarfile.TarFile, name: str, size: int | None, path: Path) -> IO[bytes]:
    """Open the next member, which must be a regular file of this name and size."""
    member = tar.next()
    is_file = member is not None and member.type == tarfile.REGTYPE and not member.issparse()
    data = tar.extractfile(member) if member is not None and is_file else None
    if member is None or data is None or member.name != name:
        found = "nothing more" if member is None else repr(member.name)
        raise _damaged(path, f"found {found}, expected the file {name!r}")
    if member.size > MAX_HEAD_BYTES if size is None else member.size != size:
        raise _damaged(path, f"{name} has {member.size} bytes, expected {size or MAX_HEAD_BYTES}")
    return data


def _read_head(coded: bytes, path: Path) -> Head:
    first, _, rest = coded.partition(b"\n")
    if hashlib.sha256(rest).hexdigest().encode() != first:
        raise _damaged(path, f"{HEAD} does not match its sha256")
    head = msgspec.json.decode(rest, type=Head)
    if head.format != FORMAT:
        raise StorageError(f"backup {path}: format {head.format}, this version reads {FORMAT}")
    for name, size in head.blobs.items():
        if len(bytes.fromhex(name)) != 32 or not 0 <= size <= MAX_BLOB_BYTES:
            raise _damaged(path, f"not a valid blob: name {name!r}, {size} bytes")
    return head


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"backup {path}: damaged, or not a backup: {why}; nothing was changed")


def _switch(work: Path, folder: Path) -> None:
    """Atomically replace the existing database with the one in ``work``, which must be closed."""
    with translated("restore into", folder):
        # The old database's log must not be applied to the new one.
        for suffix in ("-wal", "-shm"):
            (folder / f"{DATABASE_NAME}{suffix}").unlink(missing_ok=True)
        sync_folder(folder)
        os.replace(work / DATABASE_NAME, folder / DATABASE_NAME)
        sync_folder(folder)


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)
