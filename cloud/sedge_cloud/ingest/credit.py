"""Credit of the whole fleet: the chunks on their way to us are fewer than the broker's queue for us holds.

A broker keeps so many messages for a client that reads more slowly than they come, and throws away what is
beyond. Without a bound, a thousand devices that answer at once would send most of their bytes twice. So an
upload begins when there is room for its chunks, in the order of the offers; until then its device is told
to wait.
"""

from collections import OrderedDict
from typing import NamedTuple, TypeAlias

from sedge_protocol.wire.transfer import CREDIT, Intake

# Half of what Sedge's own brokers keep for a client (admin/templates.py): offers and hellos need room, too.
MAX_BYTES, MAX_CHUNKS = 1_000_000, 100
# An upload that was silent for so long has nothing in the queue: its device is gone, or its link is slow.
SILENT_S = 5.0

Key: TypeAlias = tuple[str, bytes]  # device and transfer


class _Grant(NamedTuple):
    chunks: int
    size: int
    heard: float


class Credit:
    """Which uploads may send, and which wait, the first to offer first."""

    def __init__(self) -> None:
        self._granted: OrderedDict[Key, _Grant] = OrderedDict()  # the longest silent first
        self._waiting: OrderedDict[Key, Intake] = OrderedDict()
        self._chunks = self._bytes = 0

    def ask(self, key: Key, intake: Intake, now: float) -> bool:
        """Whether an upload may send now. If not, ``poll`` names it when it may."""
        if key not in self._granted:
            self._waiting.setdefault(key, intake)
            if next(iter(self._waiting)) != key or not self._has_room(intake):
                return False
            del self._waiting[key]
            self._grant(key, intake, now)
        self.hear(key, now)
        return True

    def hear(self, key: Key, now: float) -> None:
        """A chunk of an upload has come."""
        grant = self._granted.get(key)
        if grant is not None:
            self._granted[key] = grant._replace(heard=now)
            self._granted.move_to_end(key)

    def end(self, key: Key) -> None:
        """An upload is over, or forgotten."""
        self._waiting.pop(key, None)
        grant = self._granted.pop(key, None)
        if grant is not None:
            self._chunks -= grant.chunks
            self._bytes -= grant.size

    def poll(self, now: float) -> list[Key]:
        """The uploads that waited and may send now."""
        while self._waiting and self._granted:
            oldest, grant = next(iter(self._granted.items()))
            if now < grant.heard + SILENT_S:
                break
            self.end(oldest)
        found: list[Key] = []
        while self._waiting:
            key, intake = next(iter(self._waiting.items()))
            if not self._has_room(intake):
                break
            del self._waiting[key]
            self._grant(key, intake, now)
            found.append(key)
        return found

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        if not self._waiting or not self._granted:
            return None
        return next(iter(self._granted.values())).heard + SILENT_S

    def _has_room(self, intake: Intake) -> bool:
        chunks, size = _flight(intake)
        fits = self._chunks + chunks <= MAX_CHUNKS and self._bytes + size <= MAX_BYTES
        return fits or not self._granted  # whatever the limits, one is served

    def _grant(self, key: Key, intake: Intake, now: float) -> None:
        chunks, size = _flight(intake)
        self._granted[key] = _Grant(chunks, size, now)
        self._chunks += chunks
        self._bytes += size


def _flight(intake: Intake) -> tuple[int, int]:
    """How many chunks of an upload may be on their way at once, and their bytes."""
    manifest = intake.manifest
    chunks = min(CREDIT, manifest.count - len(intake.have))
    return chunks, min(chunks * manifest.chunk_bytes, manifest.size)
