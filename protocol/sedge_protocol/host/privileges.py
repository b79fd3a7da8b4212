"""Makes commands run by root act as the owner of the state folder that they use.

An unprivileged service owns its state folder. It could replace any file there with a link to another file,
which a command run by root would then open with root's rights. So such a command switches to the owner's
account before it opens anything in the folder: it can access only what the owner can, and files that it
creates belong to the owner. It opens the caller's own files (outputs, secrets, the broker's passwords)
before that, or within ``as_caller``.
"""

import contextlib
import os
from collections.abc import Generator
from pathlib import Path

from sedge_protocol.errors import StorageError
from sedge_protocol.host.disk import translated


def act_as_owner(folder: Path, for_good: bool = False) -> Path:
    """Switch to the user who owns a state folder, if we are root and the owner is not.

    A missing folder counts as owned by the owner of its nearest existing parent. ``for_good`` gives up root
    permanently, for processes that are long-running or run other people's code. Returns a path by which the
    owner can reach the folder, because with systemd's DynamicUser only root may enter its parent. Raises
    ``StorageError``.
    """
    if os.geteuid() != 0:
        return folder
    with translated("look at", folder):
        nearest = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
        descriptor = os.open(nearest, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        # If the path leads through another user's link to a folder that root owns, treat that user as the
        # owner.
        links = (
            path.lstat() for path in (nearest, *nearest.absolute().parents) if path.is_symlink()
        )
        owner = next((stat for stat in (os.fstat(descriptor), *links) if stat.st_uid), None)
        if owner is None:
            os.close(descriptor)
            return folder
    with translated("act as the owner of", nearest):
        os.setgroups([owner.st_gid])
        if for_good:
            os.setresgid(owner.st_gid, owner.st_gid, owner.st_gid)
            os.setresuid(owner.st_uid, owner.st_uid, owner.st_uid)
            _require_library(folder, owner.st_uid)
        else:
            os.setegid(owner.st_gid)
            os.seteuid(owner.st_uid)
    if nearest != folder or os.access(folder, os.X_OK, effective_ids=True):
        os.close(descriptor)
        return folder
    return Path(f"/proc/self/fd/{descriptor}")


def _require_library(folder: Path, user: int) -> None:
    """Raise ``StorageError`` if this user cannot read, and so cannot import, Python and Sedge."""
    for path in (os.__file__, __file__):
        if not os.access(path, os.R_OK):
            text = (
                f"{folder} belongs to user {user}; this command now runs as that user, who cannot"
            )
            raise StorageError(f"{text} read {path}: install Python and Sedge where that user can")


@contextlib.contextmanager
def as_caller() -> Generator[None]:
    """Act as the calling user inside this context, to open that user's files."""
    if not hasattr(os, "geteuid"):  # on Windows we never switch to another user
        yield
        return
    user, group = os.geteuid(), os.getegid()
    os.seteuid(os.getuid())
    os.setegid(os.getgid())
    try:
        yield
    finally:
        os.setegid(group)
        os.seteuid(user)
