"""Writes files so that they survive a power cut.

A file that must be either complete or absent is written under a temporary name, fsynced and renamed; then
its folder is fsynced, because otherwise the rename itself may be lost (LWN 457667). ``translated`` turns
``OSError`` into ``StorageError``; blobs.py and journal.py build on this file.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from sedge_protocol.errors import StorageError

# Other users of the machine must not be able to read models and secrets.
FOLDER_MODE = 0o700
FILE_MODE = 0o600
# Windows has only the last of these flags; there, only the emulator uses this module.
_DIRECTORY, _NOFOLLOW = (getattr(os, name, 0) for name in ("O_DIRECTORY", "O_NOFOLLOW"))
_ALWAYS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextlib.contextmanager
def translated(doing: str, path: Path) -> Generator[None]:
    """Convert an ``OSError`` in this context to a ``StorageError`` that says what failed, and where."""
    try:
        yield
    except OSError as exc:
        raise StorageError(f"{doing} {path}: {exc.strerror or exc}") from exc


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Generator[int]:
    """Open a file and close it at the end of the context. A new file is accessible to its owner only.

    A symbolic link to a file is refused. A link to a folder is accepted, because systemd's state folders
    are links.
    """
    nofollow = 0 if flags & _DIRECTORY else _NOFOLLOW
    descriptor = os.open(path, flags | nofollow | _ALWAYS, FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the file names in a folder durable; does nothing on Windows. Raises ``OSError``."""
    if _DIRECTORY:
        with opened(folder, os.O_RDONLY | _DIRECTORY) as descriptor:
            os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can access, and any missing parents. All are durable on return.

    Raises ``StorageError`` if it cannot be created or written to.
    """
    with translated("make folder", folder):
        for path in reversed([p for p in (folder, *folder.parents) if not p.is_dir()]):
            path.mkdir(FOLDER_MODE, exist_ok=True)  # another thread may have created it
            sync_folder(path.parent)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"folder {folder}: not readable and writable by this user")


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``, in several calls if necessary. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        written = _pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """Return ``length`` bytes at ``offset``, or fewer at the end of the file. Raises ``OSError``."""
    pieces: list[bytes] = []
    while length > 0 and (piece := _pread(descriptor, length, offset)):
        pieces.append(piece)
        length, offset = length - len(piece), offset + len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Replace the content of ``path`` with ``data``, atomically and durably.

    ``temporary`` is a path on the same file system; no file is left there. Raises ``OSError``.
    """
    write_and_rename(path, data, temporary)
    sync_folder(path.parent)


def write_and_rename(path: Path, data: bytes, temporary: Path, flush: bool = True) -> None:
    """Do the same as ``replace_file``, but leave it to the caller to sync the folder.

    Until then, a power cut may undo the rename. Without ``flush``, a power cut may also leave the file
    without its data.
    """
    try:
        with opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
            write_at(descriptor, data, 0)
            if flush:
                os.fsync(descriptor)
        os.replace(temporary, path)
    except OSError:
        # After a failed fsync, the file's content is unknown for good: a second fsync would report success
        # for pages that the kernel has already dropped.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _pwrite(descriptor: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):  # Windows has neither pwrite nor pread
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def _pread(descriptor: int, length: int, offset: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(descriptor, length, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, length)
