"""Writes files so that they survive a power cut.

A file that must be whole or absent is written under a temporary name, fsynced and renamed; then its folder
is fsynced, because otherwise the rename itself may be lost (LWN 457667). ``translated`` turns ``OSError``
into ``StorageError``; blobs.py and journal.py build on this file.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from sedge_protocol.errors import StorageError

# Models and secrets must not be readable by other users of the machine.
FOLDER_MODE = 0o700
FILE_MODE = 0o600
# Windows, where only the emulator uses this file, has only the last of these flags.
_DIRECTORY, _NOFOLLOW = (getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW"))
_ALWAYS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def translated(doing: str, path: Path) -> Generator[None]:
    """Turn every ``OSError`` inside into a ``StorageError`` that says what was being done, and where."""
    try:
        yield
    except OSError as exc:
        raise StorageError(f"{doing} {path}: {exc.strerror or exc}") from exc


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Generator[int]:
    """A file descriptor that is closed at the end; only the owner may access a file that it creates.

    A symbolic link in place of a file is refused; a folder may be one, as systemd's state folders are.
    """
    nofollow = 0 if flags & _DIRECTORY else _NOFOLLOW
    descriptor = os.open(path, flags | nofollow | _ALWAYS, FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names inside a folder durable, except on Windows, which cannot. Raises ``OSError``."""
    if _DIRECTORY:
        with opened(folder, os.O_RDONLY | _DIRECTORY) as descriptor:
            os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder for its owner only, durable together with any parents that it needed.

    Raises ``StorageError`` if it cannot be created or written to.
    """
    with translated("make folder", folder):
        for path in reversed([p for p in (folder, *folder.parents) if not p.is_dir()]):
            path.mkdir(FOLDER_MODE, exist_ok=True)  # another thread may have created it
            sync_folder(path.parent)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"folder {folder}: not readable and writable by this user")


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``, in several calls if need be. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        written = _pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """``length`` bytes at ``offset``, fewer only at the end of the file. Raises ``OSError``."""
    pieces: list[bytes] = []
    while length > 0 and (piece := _pread(descriptor, length, offset)):
        pieces.append(piece)
        length, offset = length - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Make ``data`` the content of ``path``, completely or not at all; durable on return.

    ``temporary`` is a path on the same file system; it is gone afterwards. Raises ``OSError``.
    """
    write_and_rename(path, data, temporary)
    sync_folder(path.parent)


def write_and_rename(path: Path, data: bytes, temporary: Path, flush: bool = True) -> None:
    """As ``replace_file``, but a power cut may undo the renaming until the folder is synced.

    Without ``flush`` it may also leave a file without its data.
    """
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            write_at(descriptor, data, 0)
            if flush:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        # After a failed fsync the file's content stays unknown: a second fsync would report success for
        # pages that the kernel has already dropped.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _pwrite(descriptor: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):  # Windows has neither this nor pread
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)
