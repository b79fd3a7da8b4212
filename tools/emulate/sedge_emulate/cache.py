"""Caches what an emulation would compute again for the same model: exported bundles and passed checks.

An entry's name is the digest of everything that its content depends on (``training/fingerprint.py``). It is
one file: the SHA-256 of the content, then the content. Emulations may share the folder, because a file is
moved to its place once it is complete. A damaged entry counts as missing. Once all entries together exceed
``MAX_BYTES``, the least recently used ones are deleted; a single entry larger than that is not stored.
"""

import hashlib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MAX_BYTES = 2**30
_DIGEST = 32
# An entry, or a file that will be one once it is complete.
_OWN = re.compile(r"[0-9a-f]{64}(\.[0-9]+)?")


def user_cache() -> Path | None:
    """This user's folder for the cache: in $XDG_CACHE_HOME, otherwise in the system's usual place.

    None for a user without a home.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "sedge"
    with suppress(RuntimeError):
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "sedge"
    return None


class Cache:
    """The entries in ``folder``; ``note`` takes a line about one that cannot be used.

    With ``fresh`` none is found, and all are written again.
    """

    def __init__(
        self,
        folder: Path,
        note: Callable[[str], object],
        fresh: bool = False,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._folder, self.note = folder, note
        self._fresh, self._max_bytes = fresh, max_bytes

    def find(self, key: bytes) -> bytes | None:
        """The content of an entry; None if it is missing or damaged."""
        path = self._folder / key.hex()
        if self._fresh:
            return None
        try:
            data = path.read_bytes()
            os.utime(path)  # mark it as used now
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            self.note(f"cache: {exc}")
            return None
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() == data[:_DIGEST]:
            return content
        self.note(f"cache: {path} is damaged; it is made again")
        return None

    def keep(self, key: bytes, content: bytes, now: bytes | None) -> None:
        """Store an entry, whole or not at all; if that fails, say so and continue.

        ``now`` is the key after the content was made. If it differs, the content may depend on more than
        the key covers.
        """
        if now != key:
            self.note("cache: not used for this model: its code changes while it computes")
            return
        if _DIGEST + len(content) > self._max_bytes:
            self.note(f"cache: not used for {len(content):,} bytes: it has {self._max_bytes:,}")
            return
        path = self._folder / key.hex()
        partial = path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(hashlib.sha256(content).digest() + content)
            partial.replace(path)
            self._evict()
        except OSError as exc:
            self.note(f"cache: {exc}")
            with suppress(OSError):
                partial.unlink()

    def _evict(self) -> None:
        """Delete surplus entries, and files that a killed process has left half-written."""
        used: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._folder):
            if not _OWN.fullmatch(entry.name):
                continue
            with suppress(FileNotFoundError):  # another emulation deletes, too
                status = entry.stat()
                used.append((status.st_mtime, status.st_size, entry.path))
        total = 0
        for _, size, path in sorted(used, reverse=True):
            total += size
            if total > self._max_bytes:
                Path(path).unlink(missing_ok=True)
