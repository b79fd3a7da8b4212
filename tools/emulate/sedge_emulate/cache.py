"""Caches what an emulation would otherwise recompute for a model: exported bundles and passed checks.

An entry is one file: the SHA-256 of its content, then the content. Its name is the digest of everything
that the content depends on (``training/fingerprint.py``). Several emulations may share the folder,
because a file is renamed to its final name only when it is complete. A damaged entry counts as missing.
Once all entries together exceed ``MAX_BYTES``, the least recently used ones are deleted. A single entry
larger than that is not stored.
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
# Matches the name of an entry, or of a partial file that is renamed to an entry once complete.
_OWN = re.compile(r"[0-9a-f]{64}(\.[0-9]+)?")


def user_cache() -> Path | None:
    """Return the user's cache folder: $XDG_CACHE_HOME/sedge, or the system's usual place if that is unset.

    Returns None for a user without a home directory.
    """
    named = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if named.is_absolute():
        return named / "sedge"
    with suppress(RuntimeError):
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "sedge"
    return None


class FolderCache:
    """A cache in ``folder``. ``note`` is called with one line for each entry that cannot be used.

    With ``fresh``, every lookup misses, so all entries are computed and written again.
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
        """Return the content of an entry, or None if it is missing or damaged."""
        path = self._folder / key.hex()
        if self._fresh:
            return None
        try:
            data = path.read_bytes()
            os.utime(path)  # marks the entry as recently used
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as exc:
            self.note(f"cache: {exc}")
            return None
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() == data[:_DIGEST]:
            return content
        self.note(f"cache: {path} is damaged; rebuilding it")
        return None

    def keep(self, key: bytes, content: bytes, now: bytes | None) -> None:
        """Store an entry atomically. If that fails, call ``note`` and continue.

        ``now`` is the key, computed again after the content was made. If it differs from ``key``, the
        content may depend on more than the key covers, and nothing is stored.
        """
        if now != key:
            self.note("cache: not used for this model: its code changes when it runs")
            return
        if _DIGEST + len(content) > self._max_bytes:
            self.note(
                f"cache: no room for {len(content):,} bytes and a checksum in {self._max_bytes:,}"
            )
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
        """Delete partial files and the least recently used entries until the rest fit in ``max_bytes``."""
        used: list[tuple[float, int, str]] = []
        for entry in os.scandir(self._folder):
            if not _OWN.fullmatch(entry.name):
                continue
            with suppress(FileNotFoundError):  # another emulation may have deleted it
                status = entry.stat()
                used.append((status.st_mtime, status.st_size, entry.path))
        total = 0
        for _, size, path in sorted(used, reverse=True):
            total += size
            if total > self._max_bytes:
                Path(path).unlink(missing_ok=True)
