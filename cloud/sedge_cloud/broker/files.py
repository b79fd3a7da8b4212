"""Rewrites the files that a running Mosquitto reads as its own user."""

import contextlib
import os
import stat
from collections.abc import Callable, Generator
from pathlib import Path

from sedge_protocol.host.disk import opened, sync_folder, write_at
from sedge_protocol.host.posix import lock


def change_lines(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    """Rewrite one of the broker's files atomically, keeping owner and mode. Raises ``OSError``."""
    with _locked(path.parent):
        text = "\n".join([*change(path.read_text().splitlines() if path.exists() else []), ""])
        fresh = path.with_name(path.name + ".new")
        # The file may be left over from a crash, or be a link that somebody planted.
        fresh.unlink(missing_ok=True)
        with opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            if path.exists():
                status = path.stat()
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            write_at(descriptor, text.encode(), 0)
            os.fsync(descriptor)
        fresh.replace(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold a lock on the folder, so that only one process at a time changes files. Raises ``OSError``."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        lock(descriptor)
        yield
