"""Uploads updates. Each pending update is offered until its receipt arrives, and sent chunk by chunk.

All updates are offered, so that the coordinator can immediately reject those that it no longer wants. But
only one update per run sends its chunks at a time. If an upload takes longer than a round, parallel uploads
would all be late.
"""

import logging

import numpy as np

from sedge_edge.jobs.storage import Blobs
from sedge_edge.rounds.state import DISK_RETRY_S, Pending, StateStore
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import MAX_PACKET_BYTES, packet_bytes
from sedge_protocol.wire.messages import Busy, Decline, Have, Offer
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.refusals import MESSAGE_TOO_LARGE
from sedge_protocol.wire.transfer import DIGEST_BYTES, Upload, chunk_size, describe, fitting_chunk

# The maximum size of an OFFER's packet, not counting the digests.
OFFER_BYTES = 1024


class Outbox:
    """All uploads of the device, one for each pending update in the state."""

    def __init__(
        self, store: StateStore, blobs: Blobs, peer: Peer, rng: np.random.Generator
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._peer = peer
        self._rng = rng
        self._uploads: dict[Pending, Upload] = {}
        self._disk_retry_at: dict[Pending, float] = {}
        self._connected = False
        self._announced = self._welcomed = MAX_PACKET_BYTES

    @property
    def _max_packet(self) -> int:
        """The size of the largest MQTT packet that gets through."""
        return min(self._announced, self._welcomed)

    @property
    def _max_chunk_bytes(self) -> int:
        return fitting_chunk(self._max_packet, self._store.state.chunk_bytes)

    def connected(self, now: float, max_packet: int) -> None:
        """Handle a new connection: offer all updates.

        ``max_packet`` is the packet size that the broker announces.
        """
        self._connected = True
        self._announced = max_packet
        for upload in self._uploads.values():
            upload.connected(now)
        self._cut_again()

    def limit(self, max_packet: int) -> None:
        """Limit packets to the size that the coordinator's broker lets through. 0 means unknown."""
        self._welcomed = max_packet or MAX_PACKET_BYTES
        self._cut_again()

    def _cut_again(self) -> None:
        """Drop uploads whose chunks are now too large. ``poll`` recreates them with smaller chunks."""
        for waiting, upload in list(self._uploads.items()):
            manifest = upload.manifest
            if manifest.chunk_bytes > chunk_size(manifest.size, self._max_chunk_bytes):
                del self._uploads[waiting]

    def woken(self, now: float) -> None:
        """Repeat offers that are unanswered, because the coordinator is known to be online."""
        for upload in self._uploads.values():
            upload.woken(now)

    def disconnected(self) -> None:
        """Handle the loss of the connection."""
        self._connected = False
        for upload in self._uploads.values():
            upload.disconnected()

    def have(self, transfer: bytes, message: Have, now: float) -> None:
        """Handle the coordinator's report on which chunks it has.

        Raises ``FrameError`` for a malformed bitmap.
        """
        for upload in self._uploads.values():
            if upload.manifest.transfer == transfer:
                upload.receive(message.number, message.bitmap, message.credit, now)

    def busy(self, transfer: bytes, message: Busy, now: float) -> None:
        """Postpone an upload, because the coordinator cannot take it now."""
        for upload in self._uploads.values():
            if upload.manifest.transfer == transfer:
                upload.busy(message.retry_ms / 1000, now)

    def poll(self, now: float) -> list[Effect]:
        """Send due messages. An update that cannot be read from disk does not delay the others."""
        pending = self._store.state.outbox
        for waiting in self._uploads.keys() - set(pending):
            del self._uploads[waiting]
        for waiting in self._disk_retry_at.keys() - set(pending):
            del self._disk_retry_at[waiting]
        effects: list[Effect] = []
        sending = self._sending()
        for waiting in pending:
            if now < self._disk_retry_at.get(waiting, now):
                continue
            self._disk_retry_at.pop(waiting, None)
            try:
                effects += self._push(waiting, now, waiting in sending)
            except StorageError as exc:
                effects += self._wait_for_disk(waiting, exc, now)
        return effects

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        due: list[float | None] = list(self._disk_retry_at.values())
        due += [u.timer() for w, u in self._uploads.items() if w not in self._disk_retry_at]
        return min((at for at in due if at is not None), default=None)

    def _sending(self) -> set[Pending]:
        """Return the update to send for each run: the one whose upload has begun, otherwise the newest.

        Updates that are waiting for the disk are left out. An update that the coordinator has postponed is
        chosen only if its run has no other, because the coordinator may be waiting for one of the others to
        be transferred.
        """

        def rank(waiting: Pending) -> tuple[bool, bool, int]:
            upload = self._uploads.get(waiting)
            if upload is None:
                return True, False, waiting.round
            return not upload.put_off, upload.begun, waiting.round

        first: dict[str, Pending] = {}
        for waiting in sorted(self._store.state.outbox, key=rank):
            if waiting not in self._disk_retry_at:
                first[waiting.run] = waiting
        return set(first.values())

    def _wait_for_disk(self, waiting: Pending, error: StorageError, now: float) -> list[Effect]:
        """Try again later. Drop an update whose blob is lost, because it would block its round forever."""
        self._peer.counters["storage_errors"] += 1
        effects: list[Effect] = [Note(logging.ERROR, str(error))]
        try:
            if not self._blobs.has(waiting.blob):
                self._store.remove_update(waiting)
                where = f"run {waiting.run}, round {waiting.round}"
                text = f"{where}: the update is lost; the order runs again if the coordinator resends it"
                return [*effects, Note(logging.ERROR, text)]
        except StorageError as exc:
            effects.append(Note(logging.ERROR, str(exc)))
        self._disk_retry_at[waiting] = now + DISK_RETRY_S
        return effects

    def _push(self, waiting: Pending, now: float, sends: bool) -> list[Effect]:
        upload = self._uploads.get(waiting)
        if upload is not None and upload.wants_smaller_chunks and self._can_halve(upload):
            self._store.set_chunk_bytes(upload.manifest.chunk_bytes // 2)
            upload = None
        if upload is None:
            upload = Upload(
                describe(self._blobs.read(waiting.blob), self._max_chunk_bytes), self._rng
            )
            self._uploads[waiting] = upload
            if self._connected:
                upload.connected(now)
        due = upload.timer()
        if not sends and (due is None or now < due):
            return []
        frames = [self._frame(waiting, upload, index) for index in upload.poll(now)]
        sizes = (packet_bytes(frame.topic, frame.payload) for frame in frames)
        if (largest := max(sizes, default=0)) > self._max_packet:
            return self._give_up(waiting, upload.manifest.size, largest)
        return [*frames]

    def _can_halve(self, upload: Upload) -> bool:
        """Return True if an offer that has twice as many chunks and digests still fits into a packet."""
        return 2 * DIGEST_BYTES * upload.manifest.count + OFFER_BYTES <= self._max_packet

    def _give_up(self, waiting: Pending, size: int, packet: int) -> list[Effect]:
        """Drop an update for which no chunk size is small enough. Informs the coordinator and the log."""
        self._store.remove_update(waiting)
        text = MESSAGE_TOO_LARGE.format(size=size, packet=packet, most=self._max_packet)
        decline = Decline(waiting.run, waiting.round, "MessageTooLarge", text)
        note = Note(logging.ERROR, f"run {waiting.run}, round {waiting.round}: {text}")
        return [note, self._peer.message(decline)]

    def _frame(self, waiting: Pending, upload: Upload, index: int | None) -> Send:
        manifest = upload.manifest
        if index is not None:
            data = self._blobs.read_span(manifest.sha256, *manifest.span(index))
            if not manifest.matches(index, data):
                # The disk has corrupted the chunk. Reading the whole blob checks its hash and removes it.
                offset, length = manifest.span(index)
                data = self._blobs.read(waiting.blob)[offset : offset + length]
            return self._peer.chunk(manifest.transfer, index, data)
        data = self._blobs.read(waiting.blob) if upload.inline else b""
        offer = Offer(waiting.run, waiting.round, manifest, upload.number, data)
        return self._peer.message(offer, manifest.transfer)
