"""The sending end of downloads, without I/O. The other ends of transfers are in transfer.py."""

import itertools

from sedge_protocol.wire.transfer import Manifest, from_bitmap


class Serving:
    """The sending end of one blob's downloads. Chunks that several devices request are sent only once.

    Sending begins when all expected devices have made a request, but no later than ``gather_s`` after the
    first one.
    """

    def __init__(self, manifest: Manifest, gather_s: float) -> None:
        self.manifest = manifest
        self._gather_s = gather_s
        self._wanted: dict[int, None] = {}  # chunks in the order in which they were requested
        self._askers: set[str] = set()
        self._due: float | None = None

    def request(self, asker: str, missing: bytes, expected: int, now: float) -> int:
        """Add the chunks that the device ``asker`` lacks. Returns how many of them are new.

        ``expected`` is the number of devices that will make requests. Raises ``FrameError`` for a malformed
        bitmap.
        """
        wanted, before = from_bitmap(missing, self.manifest.count), len(self._wanted)
        if not wanted:
            return 0
        self._wanted |= dict.fromkeys(sorted(wanted))
        self._askers.add(asker)
        if self._due is None:
            self._due = now + self._gather_s
        if len(self._askers) >= expected:
            self._due = min(self._due, now)
        return len(self._wanted) - before

    def poll(self, now: float, room: int) -> list[int]:
        """Return up to ``room`` chunks to send now, in the order of the first requests."""
        if self._due is None or now < self._due:
            return []
        chunks = list(itertools.islice(self._wanted, room))
        for index in chunks:
            del self._wanted[index]
        if not self._wanted:
            self._due = None
            self._askers.clear()
        return chunks

    def timer(self) -> float | None:
        """Return when to call ``poll`` next."""
        return self._due
