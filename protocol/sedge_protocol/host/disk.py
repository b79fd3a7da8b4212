"""Writing files so that they survive a power cut.

A file that must be whole or absent is written under another name, fsynced and renamed to its own name;
then its folder is fsynced, without which the rename itself may be lost (LWN 457667). ``translated`` turns
``OSError`` into ``StorageError``; blobs.py and journal.py build on this file.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from sedge_protocol.errors import StorageError

# Models and secrets must not be readable by other users of the machine.
FOLDER_MODE = 0o700
FILE_MODE = 0o600


@contextlib.contextmanager
def translated(doing: str, path: Path) -> Generator[None]:
    """Turn every ``OSError`` inside into a ``StorageError`` that says what was being done, and where."""
    try:
        yield
    except OSError as exc:
        raise StorageError(f"{doing} {path}: {exc.strerror or exc}") from exc


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Generator[int]:
    """A file descriptor that is closed at the end; a created file is for its owner only.

    A link in place of a file is refused; a folder may be one, as systemd's state folders are.
    """
    nofollow = 0 if flags & os.O_DIRECTORY else os.O_NOFOLLOW
    descriptor = os.open(path, flags | nofollow | os.O_CLOEXEC, FILE_MODE)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names inside a folder durable. Raises ``OSError``."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor)


def make_folder(folder: Path) -> None:
    """A folder, for its owner only, durable together with every parent it needed.

    Raises ``StorageError`` when it cannot be made, or cannot be written to.
    """
    with translated("make folder", folder):
        for path in reversed([p for p in (folder, *folder.parents) if not p.is_dir()]):
            path.mkdir(FOLDER_MODE, exist_ok=True)  # another thread may have been faster
            sync_folder(path.parent)
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise StorageError(f"folder {folder}: not readable and writable by this user")


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data`` at ``offset``, in several steps if the kernel asks. Raises ``OSError``."""
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def read_at(descriptor: int, length: int, offset: int) -> bytes:
    """``length`` bytes at ``offset``, fewer only at the end of the file. Raises ``OSError``."""
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(descriptor, length, offset)):
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
        # After a failed fsync the file's content is unknown for good: a second fsync would report
        # success for pages that the kernel has already given up.
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
