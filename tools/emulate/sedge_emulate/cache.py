"""What an emulation would compute again for the same model: exported bundles, and checks that were passed.

An entry's name is the digest of everything that its content depends on (``training/fingerprint.py``). It is
one file: the SHA-256 of the content, then the content. Emulations may share the folder, because a file is
moved to its place once it is whole. A damaged entry counts as none. Once all together have more than
``MAX_BYTES``, those that were used longest ago are deleted.
"""

import hashlib
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 2**30
_DIGEST = 32


def user_cache() -> Path:
    """This user's folder for the cache: in $XDG_CACHE_HOME, otherwise where the system has such folders."""
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    usual = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return (named if named.is_absolute() else usual) / "sedge"


class Cache:
    """The entries in ``folder``; ``note`` takes a line about one that cannot be used.

    With ``fresh`` none is found, and all are written anew.
    """

    def __init__(
        self,
        folder: Path,
        note: Callable[[str], object],
        fresh: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._folder, self._note = folder, note
        self._fresh, self._max_bytes = fresh, max_bytes

    def find(self, key: bytes) -> bytes | None:
        """The content of an entry; None where there is none, or a damaged one."""
        path = self._folder / key.hex()
        if self._fresh or not path.exists():
            return None
        try:
            data = path.read_bytes()
            os.utime(path)  # used now
        except OSError as exc:
            self._note(f"cache: {exc}")
            return None
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() == data[:_DIGEST]:
            return content
        self._note(f"cache: {path} is damaged; it is made again")
        return None

    def keep(self, key: bytes, content: bytes) -> None:
        """Store an entry, whole or not at all; say so where that cannot be done, and go on."""
        path = self._folder / key.hex()
        partial = path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(hashlib.sha256(content).digest() + content)
            partial.replace(path)
            self._evict()
        except OSError as exc:
            self._note(f"cache: {exc}")
            with suppress(OSError):
                partial.unlink()

    def _evict(self) -> None:
        """Delete what is too much, also what a killed process has left half-written."""
        used: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):  # another emulation deletes, too
                status = entry.stat()
                used.append((status.st_mtime, status.st_size, entry.path))
        total = 0
        for _, size, path in sorted(used, reverse=True):
            total += size
            if total > self._max_bytes:
                Path(path).unlink(missing_ok=True)
