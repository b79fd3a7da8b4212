"""Disks that lose what was not flushed when their power fails.

The calls by which the product changes files go through here: what each file's last flush left, and what
each folder's last flush left its names to mean, is remembered, and a power cut brings some of it back. What
was written since may survive, or be lost, or be torn; a file's new name likewise. Of SQLite's log the part
stays that a transaction with ``synchronous=FULL`` has ended in.
"""

import errno
import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.hunt.chance import Chance

from sedge_cloud.store.sqlite import DATABASE_NAME, Sqlite

SECTOR = 512
_open, _pwrite, _replace, _unlink, _utime = os.open, os.pwrite, os.replace, os.unlink, os.utime


class Disks:
    """Every machine's disk; ``called`` is told before and after each call, and may raise."""

    def __init__(self, now: Callable[[], float], called: Callable[[], str]) -> None:
        self._now, self._called = now, called
        self._flushed: dict[int, bytes] = {}  # files written since their flush, by inode
        self._meant: dict[str, bytes | None] = {}  # names given since their folder's flush
        self._logs: dict[Path, int] = {}

    @contextmanager
    def used(self) -> Generator[None]:
        """Use them in place of the system's."""
        with pytest.MonkeyPatch.context() as patch:
            for call in (self.open, self.pwrite, self.fsync, self.replace, self.unlink, self.utime):
                patch.setattr(os, call.__name__, call)
            commit = Sqlite.commit

            def committed(db: Sqlite, *, quiet: bool = False) -> None:
                self._commit(db, commit, quiet=quiet)

            patch.setattr(Sqlite, "commit", committed)
            yield

    def open(self, path: Any, flags: int, *more: Any, **options: Any) -> int:
        is_there = os.path.exists(path)
        if flags & os.O_CREAT and not is_there:
            self._meant.setdefault(str(path), None)
        if flags & os.O_TRUNC and is_there:
            self._flushed.setdefault(os.stat(path).st_ino, Path(path).read_bytes())
        return _open(path, flags, *more, **options)

    def pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        self._touch()
        status = os.fstat(descriptor)
        if status.st_ino not in self._flushed:
            self._flushed[status.st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        written = _pwrite(descriptor, data, offset)
        _utime(descriptor, (self._now(), self._now()))
        self._touch()
        return written

    def fsync(self, descriptor: int) -> None:
        """A file's content stays from now on, or a folder's names do."""
        self._touch()
        place = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(place):
            self._meant = {n: was for n, was in self._meant.items() if os.path.dirname(n) != place}
        else:
            self._flushed.pop(os.fstat(descriptor).st_ino, None)
        self._touch()

    def replace(self, source: Any, target: Any) -> None:
        """A file has another name, in place of the one that had it."""
        self._touch()
        self._forget(str(target))
        self._forget(str(source), stays=True)
        _replace(source, target)
        self._touch()

    def unlink(self, path: Any, **options: Any) -> None:
        self._touch()
        if os.path.exists(path):
            self._forget(str(path))
        _unlink(path, **options)
        self._touch()

    def utime(self, path: Any, times: Any = None, **options: Any) -> None:
        """Files are as old as the world says."""
        _utime(path, times or (self._now(), self._now()), **options)

    def cut(self, folder: Path, chance: Chance, place: str) -> None:
        """The power of the machine whose disk this is fails; nobody has a file of it open any more."""
        for path in sorted(folder.rglob("*")):
            was = self._flushed.pop(path.stat().st_ino, None) if path.is_file() else None
            if was is not None and not path.name.startswith(DATABASE_NAME):
                path.write_bytes(self._torn(path.read_bytes(), was, chance, f"{place}/{path.name}"))
        for name, was in sorted(self._meant.items()):
            if not name.startswith(f"{folder}/") or DATABASE_NAME in name:
                continue
            del self._meant[name]
            if chance.share(f"{place}/{os.path.basename(name)} name") < 0.3:
                continue
            if was is not None:
                Path(name).write_bytes(was)
            elif os.path.exists(name):
                _unlink(name)

    def rows_after_cut(self, folder: Path) -> Callable[[], None]:
        """Remember a database as its disk has it; to be called when nobody has it open any more."""
        database = folder / DATABASE_NAME
        log = database.with_name(f"{DATABASE_NAME}-wal")
        whole = database.read_bytes()
        left = log.read_bytes()[: self._logs.get(folder)] if log.exists() else b""

        def restore() -> None:
            database.write_bytes(whole)
            log.write_bytes(left)
            with suppress(FileNotFoundError):
                _unlink(f"{database}-shm")

        return restore

    def _touch(self) -> None:
        if self._called() == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _forget(self, name: str, stays: bool = False) -> None:
        """The name will mean something else; the file ``stays`` under another."""
        if not os.path.exists(name):
            self._meant.setdefault(name, None)
            return
        inode = os.stat(name).st_ino
        was = self._flushed.get(inode) if stays else self._flushed.pop(inode, None)
        self._meant.setdefault(name, Path(name).read_bytes() if was is None else was)

    def _torn(self, data: bytes, was: bytes, chance: Chance, place: str) -> bytes:
        """The new bytes, those of the last flush, or the new ones up to some sector."""
        kind = chance.pick(f"{place} survives", 3)
        if kind < 2:
            return (data, was)[kind]
        end = SECTOR * chance.pick(f"{place} torn", len(data) // SECTOR + 1)
        return data[:end] + was[end:]

    def _commit(self, db: Sqlite, commit: Callable[..., None], **how: Any) -> None:
        if self._called() == "full":
            raise sqlite3.OperationalError("database or disk is full")
        commit(db, **how)
        if db._flushes:
            log = db._path.with_name(f"{DATABASE_NAME}-wal")
            self._logs[db._folder] = log.stat().st_size if log.exists() else 0
        if self._called() == "full":
            raise sqlite3.OperationalError("database or disk is full")
