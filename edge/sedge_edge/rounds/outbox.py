"""Updates on their way to the coordinator: offered until there is a receipt, chunk by chunk.

All are offered, so that those which the coordinator no longer wants are answered at once; but only one of a
run sends its chunks. Side by side on a link that takes longer for an update than a round lasts, none would
arrive in time.
"""

import logging

import numpy as np

from sedge_edge.rounds.state import DISK_RETRY_S, StateStore, Pending
from sedge_edge.rounds.storage import Blobs
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.messages import Busy, Have, Offer
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import MIN_CHUNK_BYTES, Upload, describe


class Outbox:
    """Every upload of the device, one for each pending update of the state."""

    def __init__(self, memory: StateStore, blobs: Blobs, peer: Peer, rng: np.random.Generator) -> None:
        self._memory = memory
        self._blobs = blobs
        self._peer = peer
        self._rng = rng
        self._uploads: dict[Pending, Upload] = {}
        self._not_before: dict[Pending, float] = {}
        self._connected = False
        self._largest = memory.state.chunk_bytes

    def connected(self, now: float, room: int) -> None:
        """The link is up (again), and carries frames of at most ``room`` bytes: offer everything."""
        self._connected = True
        self._largest = self._memory.state.chunk_bytes
        while self._largest > max(room, MIN_CHUNK_BYTES):
            self._largest //= 2
        for waiting, upload in list(self._uploads.items()):
            upload.connected(now)
            if upload.manifest.chunk_bytes > self._largest:
                del self._uploads[waiting]

    def disconnected(self) -> None:
        """The link is down."""
        self._connected = False
        for upload in self._uploads.values():
            upload.disconnected()

    def have(self, transfer: bytes, message: Have, now: float) -> None:
        """The coordinator says what it holds. Raises ``FrameError`` for a malformed bitmap."""
        for upload in self._uploads.values():
            if upload.manifest.transfer == transfer:
                upload.receive(message.number, message.bitmap, message.credit, now)

    def busy(self, transfer: bytes, message: Busy, now: float) -> None:
        """The coordinator cannot take it now."""
        for upload in self._uploads.values():
            if upload.manifest.transfer == transfer:
                upload.busy(message.retry_ms / 1000, now)

    def poll(self, now: float) -> list[Effect]:
        """Send what is due. An update that the disk does not give waits; the others do not."""
        pending = self._memory.state.outbox
        for waiting in self._uploads.keys() - set(pending):
            del self._uploads[waiting]
        for waiting in self._not_before.keys() - set(pending):
            del self._not_before[waiting]
        found: list[Effect] = []
        sending = self._sending()
        for waiting in pending:
            if now < self._not_before.get(waiting, now):
                continue
            self._not_before.pop(waiting, None)
            try:
                found += self._push(waiting, now, waiting in sending)
            except StorageError as exc:
                found += self._wait_for_disk(waiting, exc, now)
        return found

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due: list[float | None] = list(self._not_before.values())
        due += [u.timer() for w, u in self._uploads.items() if w not in self._not_before]
        return min((at for at in due if at is not None), default=None)

    def _sending(self) -> set[Pending]:
        """Of each run the update that has begun to arrive, else the newest; none waits for the disk."""

        def rank(waiting: Pending) -> tuple[bool, int]:
            upload = self._uploads.get(waiting)
            return upload is not None and upload.begun, waiting.round

        first: dict[str, Pending] = {}
        for waiting in sorted(self._memory.state.outbox, key=rank):
            if waiting not in self._not_before:
                first[waiting.run] = waiting
        return set(first.values())

    def _wait_for_disk(self, waiting: Pending, error: StorageError, now: float) -> list[Effect]:
        """Try again in half a minute; an update that is gone for good would block its round for ever."""
        self._peer.counters["storage_errors"] += 1
        found: list[Effect] = [Note(logging.ERROR, str(error))]
        try:
            if not self._blobs.has(waiting.blob):
                self._memory.deliver(waiting)
                where = f"run {waiting.run}, round {waiting.round}"
                text = f"{where}: the update is lost; it is made again when the coordinator asks"
                return [*found, Note(logging.ERROR, text)]
        except StorageError as exc:
            found.append(Note(logging.ERROR, str(exc)))
        self._not_before[waiting] = now + DISK_RETRY_S
        return found

    def _push(self, waiting: Pending, now: float, sends: bool) -> list[Effect]:
        upload = self._uploads.get(waiting)
        if upload is not None and upload.wants_smaller_chunks:
            self._memory.cut(upload.manifest.chunk_bytes // 2)
            self._largest = self._memory.state.chunk_bytes
            upload = None
        if upload is None:
            upload = Upload(describe(self._blobs.read(waiting.blob), self._largest), self._rng)
            self._uploads[waiting] = upload
            if self._connected:
                upload.connected(now)
        due = upload.timer()
        if not sends and (due is None or now < due):
            return []
        return [self._frame(waiting, upload, index) for index in upload.poll(now)]

    def _frame(self, waiting: Pending, upload: Upload, index: int | None) -> Send:
        manifest = upload.manifest
        if index is not None:
            data = self._blobs.read_span(manifest.sha256, *manifest.span(index))
            if not manifest.matches(index, data):
                # The disk has changed it, and nobody would take it: reading the whole sets that aside.
                offset, length = manifest.span(index)
                data = self._blobs.read(waiting.blob)[offset : offset + length]
            return self._peer.chunk(manifest.transfer, index, data)
        data = self._blobs.read(waiting.blob) if upload.inline else b""
        offer = Offer(waiting.run, waiting.round, manifest, upload.number, data)
        return self._peer.message(offer, manifest.transfer)
