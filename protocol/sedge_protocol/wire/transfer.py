"""Resumable transfer of blobs in both directions, without I/O.

A ``Manifest`` describes a blob: its size, its SHA-256, and a 128-bit digest of every chunk. The same bytes
in the same chunks are always the same transfer, so a transfer can resume after a crash of either side. The
receiver is in control: it reports the chunks that it has (``Have``) or lacks (``Get``). To find out, it
checks the digests of the bytes on its disk and never relies on a record of them.

    Upload  (device -> coordinator)       offline -> offered -> sending -> (receipt)
    Intake  (its receiving end)           every good chunk sets a bit; answers Have
    Fetch   (coordinator -> device)       asks for missing chunks until none is missing
    Serving (its sending end)             in serving.py
"""

import hashlib
import itertools
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from sedge_protocol.codec import bitmaps
from sedge_protocol.errors import FrameError, LocalError
from sedge_protocol.wire.frame import HEADER

DIGEST_BYTES = 16
MIN_CHUNK_BYTES = 2**12
DEFAULT_CHUNK_BYTES = 2**16
MAX_CHUNK_BYTES = 2**18
# The maximum size of the topic, the MQTT properties and our own header in a chunk's packet.
PACKET_OVERHEAD = HEADER.size + 4096
# With 4096 chunks, a manifest has 64 KiB of digests, and a blob in chunks of 256 KiB can be 1 GiB long.
MAX_CHUNKS = 4096
# A blob of up to this size may be sent inside its offer, and a patch inside its order. Below half a chunk,
# another round trip costs more than sending the bytes.
MAX_INLINE_BYTES = 2**15

# How many chunks a receiver allows in flight. Four chunks of 64 KiB keep a link of 25 Mbit/s with a round
# trip of 80 ms busy, and an interruption loses no more than these.
CREDIT = 4
SILENCE_S = 2.0
RETRY_FIRST_S = 0.5
RETRY_MAX_S = 60.0


class Manifest(msgspec.Struct, frozen=True, dict=True):
    """A blob's identity, and the digests with which each chunk is checked on arrival."""

    sha256: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """The SHA-256 of the blob."""
    size: Annotated[int, Meta(ge=1, le=MAX_CHUNKS * MAX_CHUNK_BYTES)]
    """The blob's length in bytes."""
    chunk_bytes: Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)]
    """The length of every chunk but the last, a power of two."""
    digests: Annotated[bytes, Meta(min_length=16, max_length=MAX_CHUNKS * DIGEST_BYTES)]
    """For each chunk in order, the first 16 bytes of its SHA-256."""

    def __post_init__(self) -> None:
        if self.chunk_bytes & (self.chunk_bytes - 1):
            raise ValueError(f"chunk_bytes {self.chunk_bytes} is not a power of two")
        if len(self.digests) != self.count * DIGEST_BYTES:
            raise ValueError(f"{len(self.digests)} digest bytes for {self.count} chunks")

    @property
    def count(self) -> int:
        """Number of chunks."""
        return -(-self.size // self.chunk_bytes)

    @cached_property
    def transfer(self) -> bytes:
        """The transfer id (16 bytes): a hash of the manifest."""
        return hashlib.sha256(msgspec.msgpack.encode(self)).digest()[:16]

    def span(self, index: int) -> tuple[int, int]:
        """Return the offset and length of a chunk in bytes."""
        offset = index * self.chunk_bytes
        return offset, min(self.chunk_bytes, self.size - offset)

    def matches(self, index: int, data: bytes) -> bool:
        """Return True if ``data`` is chunk ``index``."""
        expected = self.digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
        return _digest(data) == expected

    def check(self, index: int, data: bytes) -> None:
        """Raise ``FrameError`` unless ``data`` is chunk ``index`` of this blob."""
        if index >= self.count:
            raise FrameError(f"chunk {index} of a blob of {self.count} chunks")
        if len(data) != self.span(index)[1]:
            raise FrameError(f"chunk {index}: {len(data)} bytes, expected {self.span(index)[1]}")
        if not self.matches(index, data):
            raise FrameError(f"chunk {index}: the digest does not match")


@lru_cache(maxsize=1)
def _digest(chunk: bytes) -> bytes:
    # Cached for the last chunk, because all devices of an emulated fleet receive the same chunk.
    return hashlib.sha256(chunk).digest()[:DIGEST_BYTES]


def chunk_size(size: int, wanted: int) -> int:
    """Return the ``wanted`` chunk size, or a larger one if ``size`` bytes would need over 4096 chunks."""
    return max(wanted, 1 << (-(-size // MAX_CHUNKS) - 1).bit_length())


def fitting_chunk(max_packet: int, wanted: int = DEFAULT_CHUNK_BYTES) -> int:
    """Halve the ``wanted`` chunk size until its packet fits ``max_packet`` bytes or it is the minimum."""
    while wanted > max(max_packet - PACKET_OVERHEAD, MIN_CHUNK_BYTES):
        wanted //= 2
    return wanted


def describe(blob: bytes, chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> Manifest:
    """Return the manifest of a blob.

    Chunks are larger than ``chunk_bytes`` if there would be more than 4096 of them otherwise. Raises
    ``LocalError`` for a blob that no manifest can describe.
    """
    if not 0 < len(blob) <= MAX_CHUNKS * MAX_CHUNK_BYTES:
        raise LocalError(f"a blob of {len(blob)} bytes, limit {MAX_CHUNKS * MAX_CHUNK_BYTES}")
    chunk_bytes = chunk_size(len(blob), chunk_bytes)
    digests = b"".join(
        hashlib.sha256(blob[i : i + chunk_bytes]).digest()[:DIGEST_BYTES]
        for i in range(0, len(blob), chunk_bytes)
    )
    return Manifest(hashlib.sha256(blob).digest(), len(blob), chunk_bytes, digests)


def to_bitmap(indices: Iterable[int], count: int) -> bytes:
    """Return a bitmap of ``count`` bits, least significant bit first, in which ``indices`` are set."""
    return bitmaps.to_bitmap(np.array(sorted(indices), np.uint32), count)


def from_bitmap(bitmap: bytes, count: int) -> set[int]:
    """Return the indices of the set bits. Raises ``FrameError`` for a wrong length or bits past the end."""
    if not bitmaps.is_bitmap(bitmap, count):
        raise FrameError(f"bitmap: {len(bitmap)} bytes do not match {count} chunks")
    return set(bitmaps.from_bitmap(bitmap, count).tolist())


def backoff(attempt: int, rng: np.random.Generator) -> float:
    """Return the seconds to wait before retry ``attempt`` (0, 1, …).

    They are random, below a ceiling that doubles up to a limit. The jitter spreads the retries of a fleet
    that was disconnected at once (AWS, "Exponential backoff and jitter", 2015). The minimum of a tenth of
    the ceiling keeps one device from retrying too fast.
    """
    ceiling = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(attempt, 10))
    return float(rng.uniform(0.1 * ceiling, ceiling))


class Upload:
    """The sending end of one blob.

    ``poll`` returns the messages to send now: ``None`` stands for the offer, a number for a chunk. A
    connection keeps messages in order, so a chunk is lost if a later one has arrived without it, or if the
    answer to a later offer lacks it.
    """

    def __init__(self, manifest: Manifest, rng: np.random.Generator) -> None:
        self.manifest = manifest
        self.number = 0
        self.fruitless = 0
        self._rng = rng
        self._due: float | None = None
        self._unanswered_since: float | None = None  # when the newest offer was sent
        self._attempt = 0
        self._answered = True
        self._tried = self._progress = False
        self._credit = 0
        self.put_off = False  # the receiver's last answer was BUSY
        self._have: set[int] = set()
        self._in_flight: list[tuple[int, int]] = []  # (chunk, number of the last offer before it)

    @property
    def wants_smaller_chunks(self) -> bool:
        """True if all chunks were lost twice in a row: this size does not get through (fault N7)."""
        least = chunk_size(self.manifest.size, MIN_CHUNK_BYTES)
        return self.fruitless >= 2 and self.manifest.chunk_bytes > least

    @property
    def begun(self) -> bool:
        """True if the receiver is known to have part of the blob."""
        return bool(self._have)

    @property
    def inline(self) -> bool:
        """True if the current offer includes the blob, which the first one does if the blob is small.

        A slow link, or one that drops large frames, must not have to carry the same bytes again and again.
        """
        limit = min(MAX_INLINE_BYTES, self.manifest.chunk_bytes)
        return self.number == 1 and self.manifest.size <= limit

    def connected(self, now: float) -> None:
        """Offer the blob at once, now that the link is up (again)."""
        self.fruitless = 0 if self._progress else self.fruitless + self._tried
        self._tried = self._progress = self.put_off = False
        self._attempt = self._credit = 0
        self._due, self._unanswered_since = now, None

    def woken(self, now: float) -> None:
        """Repeat an unanswered offer, now that the receiver has come online.

        A recent offer is not repeated yet, because the answer may be on its way.
        """
        if self._due is not None and self._unanswered_since is not None:
            self._attempt = 0
            self._due = min(self._due, max(now, self._unanswered_since + SILENCE_S))

    def disconnected(self) -> None:
        """Forget the chunks in flight, and send nothing until the link is back."""
        self._due = None
        self._in_flight.clear()

    def receive(self, number: int, bitmap: bytes, credit: int, now: float) -> None:
        """Process the receiver's report of the chunks that it has.

        ``number`` is the number of the offer that the report answers, or 0 for an unsolicited report.
        Raises ``FrameError`` for a malformed bitmap.
        """
        received = from_bitmap(bitmap, self.manifest.count)
        if self._due is None or number > self.number:  # it answers an offer of an earlier process
            return
        first = number == self.number and not self._answered
        if received - self._have:
            self._progress, self._tried = True, False
            self._attempt = self.fruitless = 0
        elif first and self._tried:  # none of the chunks sent before this offer arrived
            self.fruitless += 1
            self._tried = False
        self._have = received if first else self._have | received
        self._answered = self._answered or first
        settled = [
            place
            for place, (index, offered) in enumerate(self._in_flight)
            if index in received or offered < number
        ]
        self._in_flight = self._in_flight[max(settled, default=-1) + 1 :]
        self._credit, self.put_off = credit, False
        self._due, self._unanswered_since = now + SILENCE_S, None

    def busy(self, retry_s: float, now: float) -> None:
        """Offer the blob again after ``retry_s``, because the receiver is busy."""
        if self._due is not None:
            self._credit, self._due, self.put_off = 0, now + retry_s, True
            self._unanswered_since = None

    def poll(self, now: float) -> list[int | None]:
        """Return the messages to send now: chunk indices, or None for an offer."""
        if self._due is None:
            return []
        if now >= self._due:
            self._due = now + SILENCE_S + backoff(self._attempt, self._rng)
            self._unanswered_since = now
            self._attempt += 1
            self.number += 1
            self._credit, self._answered = 0, False
            return [None]
        skip = self._have.union(index for index, _ in self._in_flight)
        room = max(0, self._credit - len(self._in_flight))
        missing = (i for i in range(self.manifest.count) if i not in skip)
        chunks = list(itertools.islice(missing, room))
        self._in_flight += [(index, self.number) for index in chunks]
        self._tried = self._tried or bool(chunks)
        return list(chunks)

    def timer(self) -> float | None:
        """Return when to call ``poll`` next."""
        return self._due


class Intake:
    """The receiving end of an upload. The caller writes each new chunk to disk before ``poll``."""

    QUIET_S = 1.0

    def __init__(self, manifest: Manifest, have: set[int]) -> None:
        self.manifest = manifest
        self.have = have
        self._unreported = 0
        self._due: float | None = None

    @property
    def complete(self) -> bool:
        """True if every chunk has arrived."""
        return len(self.have) == self.manifest.count

    def bitmap(self) -> bytes:
        """Return the bitmap for a ``Have`` message."""
        return to_bitmap(self.have, self.manifest.count)

    def chunk(self, index: int, data: bytes, now: float) -> bool:
        """Add a chunk. Returns True if it is new. Raises ``FrameError``, and adds nothing, if it is bad."""
        self.manifest.check(index, data)
        self._due = now + self.QUIET_S
        if index in self.have:
            return False
        self.have.add(index)
        self._unreported += 1
        return True

    def poll(self, now: float) -> bool:
        """Return True if a report is due: after half a window of new chunks, or when no more arrive."""
        quiet = self._due is not None and now >= self._due
        if not quiet and self._unreported < CREDIT // 2:
            return False
        self._unreported, self._due = 0, None
        return True

    def timer(self) -> float | None:
        """Return when to call ``poll`` next."""
        return self._due


class Fetch:
    """The receiving end of a download. It requests missing chunks, and repeats requests that bring none.

    A request repeated too soon would fill a slow link with duplicates of chunks in flight. So a request
    waits four times as long as the last chunk took, and until the first chunk arrives only one chunk is
    requested.
    """

    def __init__(self, manifest: Manifest, have: set[int], rng: np.random.Generator) -> None:
        self.manifest = manifest
        self.have = have
        self._rng = rng
        self._attempt = 0
        self._due: float | None = None
        self._asked: set[int] = set()
        self._unanswered_since: float | None = None  # when it last made a request
        self._heard = False
        self._waiting_since: float | None = None
        self._silence_s = SILENCE_S

    @property
    def complete(self) -> bool:
        """True if every chunk has arrived."""
        return len(self.have) == self.manifest.count

    def connected(self, now: float) -> None:
        """Make a request at once, now that the link is up (again)."""
        self._attempt = 0
        self._due = now
        self._asked.clear()
        self._heard = False
        self._unanswered_since = self._waiting_since = None
        self._silence_s = SILENCE_S

    def woken(self, now: float) -> None:
        """Repeat unanswered requests, except recent ones, now that the sender has come online."""
        if self._due is None or self._unanswered_since is None:
            return
        self._attempt = 0
        again = self._unanswered_since + self._silence_s
        if now >= again:  # the sender was offline, so that time says nothing about the link's speed
            self._waiting_since = None
        self._due = min(self._due, max(now, again))

    def disconnected(self) -> None:
        """Make no requests until the link is back."""
        self._due = None

    def chunk(self, index: int, data: bytes, now: float) -> bool:
        """Add a chunk. Returns True if it is new. Raises ``FrameError``, and adds nothing, if it is bad."""
        self.manifest.check(index, data)
        new = index not in self.have
        self.have.add(index)
        if self._due is not None:
            self._note_arrival(now)
        return new

    def poll(self, now: float) -> bytes | None:
        """Return the bitmap of the chunks to request, or None if it is not time yet."""
        if self._due is None or self.complete or now < self._due:
            return None
        missing = sorted(set(range(self.manifest.count)) - self.have)
        self._asked = set(missing if self._heard else missing[:1])
        if self._waiting_since is None:
            self._waiting_since = now
        self._unanswered_since = now
        self._due = now + self._silence_s + backoff(self._attempt, self._rng)
        self._attempt += 1
        return to_bitmap(self._asked, self.manifest.count)

    def timer(self) -> float | None:
        """Return when to call ``poll`` next."""
        return None if self.complete else self._due

    def _note_arrival(self, now: float) -> None:
        """Schedule the next request: at once if all requested chunks have arrived."""
        took = 0.0 if self._waiting_since is None else now - self._waiting_since
        self._silence_s = min(RETRY_MAX_S, max(SILENCE_S, 4 * took, self._silence_s / 2))
        self._waiting_since, self._unanswered_since = now, None
        self._heard, self._attempt = True, 0
        answered = bool(self._asked) and self._asked <= self.have
        self._due = now if answered else now + self._silence_s
