"""Limits uploads across the fleet, so that their chunks fit in the broker's queue for the coordinator.

A broker queues a limited number of messages for a client that reads more slowly than they arrive, and drops
the rest. Without a limit on uploads, a thousand devices that answer at once would have to send most of
their bytes twice. Uploads therefore begin in the order of their offers, each as soon as there is room for
its chunks. Until then, the device is told to wait.
"""

from collections import OrderedDict
from typing import NamedTuple, TypeAlias

from sedge_protocol.wire.transfer import CREDIT, Intake

# Half of what Sedge's own brokers queue for a client (admin/templates.py), because offers and hellos need
# room too.
MAX_BYTES, MAX_CHUNKS = 1_000_000, 100
# While other uploads wait, a turn ends after SILENT_S without a chunk, because the device is gone or its
# link is too slow to fill the queue. It ends after TURN_S in any case. The upload may still continue, but
# no longer counts against the limit.
SILENT_S, TURN_S = 5.0, 60.0
# A waiting device repeats its offer every ten seconds. If it has been silent for this long, it is assumed
# to be gone.
GONE_S = 40.0

Key: TypeAlias = tuple[str, bytes]  # (device, transfer)


class _Grant(NamedTuple):
    chunks: int
    size: int
    given: float
    heard: float


class _Wait(NamedTuple):
    intake: Intake
    asked: float


class Credit:
    """Tracks which uploads may send, and which wait, in the order of their offers."""

    def __init__(self) -> None:
        self._granted: dict[Key, _Grant] = {}  # at most MAX_CHUNKS
        self._waiting: OrderedDict[Key, _Wait] = OrderedDict()
        self._chunks = self._bytes = 0

    def ask(self, key: Key, intake: Intake, now: float) -> bool:
        """Return True if an upload may send now. Otherwise ``poll`` returns it when its turn comes."""
        if key not in self._granted:
            self._waiting[key] = _Wait(intake, now)  # one that is already waiting keeps its place
            if next(iter(self._waiting)) != key or not self._has_room(intake):
                return False
            del self._waiting[key]
            self._grant(key, intake, now)
        return True

    def hear(self, key: Key, now: float) -> None:
        """Record that a chunk of an upload has arrived. Chunks prolong its turn; repeated offers do not."""
        grant = self._granted.get(key)
        if grant is not None:
            self._granted[key] = grant._replace(heard=now)

    def end(self, key: Key) -> None:
        """Release an upload that is complete or abandoned."""
        self._waiting.pop(key, None)
        grant = self._granted.pop(key, None)
        if grant is not None:
            self._chunks -= grant.chunks
            self._bytes -= grant.size

    def poll(self, now: float) -> list[Key]:
        """Return the uploads that were waiting and may send now."""
        if self._waiting:
            for key in [key for key, it in self._granted.items() if now >= _over(it)]:
                self.end(key)
        found: list[Key] = []
        while self._waiting:
            key, (intake, asked) = next(iter(self._waiting.items()))
            if now >= asked + GONE_S:
                del self._waiting[key]
                continue
            if not self._has_room(intake):
                break
            del self._waiting[key]
            self._grant(key, intake, now)
            found.append(key)
        return found

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        if not self._waiting or not self._granted:
            return None
        return min(map(_over, self._granted.values()))

    def _has_room(self, intake: Intake) -> bool:
        chunks, size = _flight(intake)
        fits = self._chunks + chunks <= MAX_CHUNKS and self._bytes + size <= MAX_BYTES
        return fits or not self._granted  # one upload is always served, however large

    def _grant(self, key: Key, intake: Intake, now: float) -> None:
        chunks, size = _flight(intake)
        self._granted[key] = _Grant(chunks, size, now, now)
        self._chunks += chunks
        self._bytes += size


def _over(grant: _Grant) -> float:
    """Return the latest time at which a turn ends."""
    return min(grant.heard + SILENT_S, grant.given + TURN_S)


def _flight(intake: Intake) -> tuple[int, int]:
    """Return the number of an upload's chunks that may be in flight at once, and their size in bytes."""
    manifest = intake.manifest
    chunks = min(CREDIT, manifest.count - len(intake.have))
    return chunks, min(chunks * manifest.chunk_bytes, manifest.size)
