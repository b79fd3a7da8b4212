"""Receives updates: handles offers and chunks, and stores a turn's receipts in one transaction.

A receipt says that an update was accepted or rejected, and is stored before it is sent. One transaction
stores the receipts of all updates that arrived in one turn of the loop; each can be rolled back separately
if it fails. The same offer therefore always gets the same answer, and an update counts once however often
it arrives.

Nothing in an update is used before its bytes match the manifest, its report matches the order, and its
payload has been decoded completely. On a disk error the upload is dropped and ``StorageError`` raised. The
part file keeps the chunks that have arrived, so the next offer resumes from there.
"""

import hashlib
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeAlias

import msgspec

from sedge_cloud.ingest.credit import Credit
from sedge_cloud.ingest.incoming import Answer, IncomingUpload, JudgedUpdate
from sedge_cloud.ingest.judge import judge, order_context
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.receipts import TOO_LATE
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import LATE_ROUNDS, OrderRow, RoundRow, UpdateRow
from sedge_protocol.errors import CodecError, StorageError, UpdateRejected
from sedge_protocol.wire.frame import Frame
from sedge_protocol.wire.messages import (
    Busy,
    Committed,
    Have,
    Message,
    Offer,
    Reject,
)
from sedge_protocol.wire.topics import shard_of
from sedge_protocol.wire.transfer import CREDIT, Intake, Manifest
from sedge_protocol.wire.update import max_update_bytes

# A device has one update to send, or two if the one from the previous round is still in transit.
MAX_TRANSFERS = 2
# A live sender repeats its offer within 2 + 60 seconds (transfer.py). An upload that has been silent for
# twice as long makes way for another one.
IDLE_S = 120.0
RETRY_MS = 10_000
# A device whose upload is waiting for its turn (credit.py) repeats its offer after this time, unless it is
# asked for the upload sooner.
TURN_MS = 10_000
# A larger update is stored as a blob. A smaller one is stored in the database, where all updates that
# arrive in one turn of the loop share a flush.
MAX_ROW_BYTES = 2**17
# A turn ends after this many updates, to limit the memory that they take up and how long they wait.
MAX_TURN = 128


# Maps (run, round, device) to the device's order and round while the round is open, without a query.
OpenOrder: TypeAlias = Callable[[str, int, str], tuple[OrderRow, RoundRow] | None]


class Uploads:
    """All uploads in progress. A complete update is checked at once, and answered at the end of the turn.

    That is when ``commit`` writes its receipt. Methods raise ``FrameError`` for a chunk that does not match
    its manifest, and ``StorageError`` for a disk error.
    """

    def __init__(self, store: Rows, run_store: RunStore, open_order: OpenOrder) -> None:
        self._store = store
        self._run_store = run_store
        self._open_order = open_order
        self._blobs, self._parts = store.blobs, store.parts
        self._transfers: dict[str, dict[bytes, IncomingUpload]] = {}
        self._judged: dict[tuple[str, int, str], JudgedUpdate] = {}  # by (run, round, device)
        # _fresh: uploads that have received a chunk since the last poll. _quiet: other uploads that have
        # received one since their last report, the longest silent first.
        self._fresh: dict[tuple[str, bytes], Intake] = {}
        self._quiet: OrderedDict[tuple[str, bytes], Intake] = OrderedDict()
        self._credit = Credit()

    def offer(
        self, device: str, transfer: bytes, offer: Offer, run: Run | None, now: float
    ) -> Answer:
        """Handle a device's offer of an update for an order in ``run``; None means there is no such run."""
        if (offer.run, offer.round, device) in self._judged:
            return Answer()
        row = self._store.update(offer.run, offer.round, device)
        if row is not None:
            return Answer(receipt(row, offer.manifest.sha256))
        sha256, size = offer.manifest.sha256, offer.manifest.size
        try:
            if run is None:
                raise UpdateRejected("unknown-run", f"there is no run {offer.run!r}")
            order, _ = self._order(run, offer.round, device)
        except UpdateRejected as exc:
            return Answer(_reject(offer.run, offer.round, sha256, exc))
        limit = max_update_bytes(run.layout(order.width).size, order.read_work())
        if size > limit:
            why = f"{size} bytes, the limit is {limit}"
            return self._reject(
                device, transfer, run, offer.round, offer.manifest, "too-large", why
            )
        try:
            return self._begin(device, transfer, offer, run, now)
        except StorageError:
            self._forget(device, transfer)
            raise

    def chunk(
        self, device: str, frame: Frame, find_run: Callable[[str], Run | None], now: float
    ) -> Answer:
        """Handle a chunk of an upload.

        A chunk of an unknown transfer is ignored; the next offer recovers it.
        """
        upload = self._transfers.get(device, {}).get(frame.transfer)
        if upload is None or (upload.run, upload.round, device) in self._judged:
            return Answer()
        upload.heard = now
        try:
            self._take(device, frame.transfer, upload, frame.index, frame.body, now)
            run = find_run(upload.run) if upload.intake.complete else None
            if run is not None:
                return self._complete(device, frame.transfer, upload, run)
        except StorageError:
            self._forget(device, frame.transfer)
            raise
        return Answer()

    def drop(self, shards: Collection[str]) -> None:
        """Drop the uploads of devices in these shards; another process resumes them from its part files."""
        for device in [name for name in self._transfers if shard_of(name) in shards]:
            for transfer in list(self._transfers[device]):
                self._forget(device, transfer)

    @property
    def is_turn_full(self) -> bool:
        """Return True if so many updates have arrived in this turn that it should end."""
        return len(self._judged) >= MAX_TURN

    def commit(self) -> Iterator[tuple[str, bytes, Answer | StorageError]]:
        """End the turn: write the receipts of all updates in one transaction, then yield the answers.

        An answer is yielded as (device, transfer, answer), where the answer may be a ``StorageError``. An
        upload that met a disk error is dropped, but its chunks stay on disk, and the next offer resumes
        from there.
        """
        judged, self._judged = list(self._judged.values()), {}
        if not judged:
            return
        stored: Sequence[UpdateRow | StorageError]
        try:
            stored = self._store.commit_receipts(
                [(each.row, each.client, each.small) for each in judged]
            )
        except StorageError as exc:
            stored = [exc] * len(judged)
        for each, row in zip(judged, stored, strict=True):
            self._forget(each.device, each.transfer)
            yield each.device, each.transfer, self._answer(each, row)

    def _answer(self, judged: JudgedUpdate, row: UpdateRow | StorageError) -> Answer | StorageError:
        if isinstance(row, StorageError):
            return row
        sha256, left = judged.manifest.sha256, None
        try:
            if judged.has_part:
                self._parts.discard_part(judged.device, judged.manifest)
        except StorageError as exc:
            left = exc
        if row.blob != sha256:  # another process stored a different update
            return Answer(receipt(row, sha256), left=left)
        report = None if row.rejected else judged.report
        return Answer(receipt(row, sha256), row, report, left)

    def poll(self, now: float) -> list[tuple[str, bytes, Have]]:
        """Return the progress reports that are due as (device, transfer id, message)."""
        due = self._fresh
        self._fresh = {}
        for key, intake in self._quiet.items():
            at = intake.timer()
            if at is None or at > now:
                break
            due[key] = intake
        reports: list[tuple[str, bytes, Have]] = []
        for key, intake in due.items():
            if intake.poll(now):
                self._quiet.pop(key, None)
                reports.append((*key, Have(0, intake.bitmap(), CREDIT)))
        for device, transfer in self._credit.poll(now):
            intake = self._transfers[device][transfer].intake
            reports.append((device, transfer, Have(0, intake.bitmap(), CREDIT)))
        return reports

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        if self._judged:
            return -math.inf
        quiet = next(iter(self._quiet.values())).timer() if self._quiet else None
        due = [at for at in (quiet, self._credit.timer()) if at is not None]
        return min(due, default=None)

    def _begin(self, device: str, transfer: bytes, offer: Offer, run: Run, now: float) -> Answer:
        manifest = offer.manifest
        upload = self._transfers.get(device, {}).get(transfer)
        if upload is None or (upload.run, upload.round) != (offer.run, offer.round):
            if not self._make_room(device, offer, now):
                return Answer(Busy(RETRY_MS, "too many transfers"))
            if hashlib.sha256(offer.data).digest() == manifest.sha256:
                return self._whole(device, transfer, offer, run)
            self._parts.trim_parts(device, manifest, MAX_TRANSFERS - 1)
            intake = Intake(manifest, self._parts.open_part(device, manifest))
            upload = IncomingUpload(offer.run, offer.round, intake, now)
            self._transfers.setdefault(device, {})[transfer] = upload
        upload.heard = now
        if offer.data and len(offer.data) == manifest.size:
            for index in range(manifest.count):
                offset, length = manifest.span(index)
                data = offer.data[offset : offset + length]
                self._take(device, transfer, upload, index, data, now)
        if upload.intake.complete:
            return self._complete(device, transfer, upload, run)
        if not self._credit.ask((device, transfer), upload.intake, now):
            return Answer(Busy(TURN_MS, "others are first"))
        return Answer(Have(offer.number, upload.intake.bitmap(), CREDIT))

    def _whole(self, device: str, transfer: bytes, offer: Offer, run: Run) -> Answer:
        """Receive a new update whose data is contained in its offer."""
        manifest = offer.manifest
        for index in range(manifest.count):
            offset, length = manifest.span(index)
            manifest.check(index, offer.data[offset : offset + length])
        self._parts.require_room(manifest.size)
        return self._receive(device, transfer, run, offer.round, manifest, offer.data)

    def _make_room(self, device: str, offer: Offer, now: float) -> bool:
        """Drop the uploads that this offer replaces. Returns True if the device may then begin a new one.

        A round accepts one update per device. If the same blob is offered in chunks of a different size,
        the upload resumes from the same part file. If a different blob is offered, the device has lost the
        previous one.
        """
        mine = self._transfers.get(device, {})
        for transfer, old in list(mine.items()):
            replaced = (old.run, old.round) == (offer.run, offer.round)
            if replaced and old.intake.manifest.sha256 != offer.manifest.sha256:
                self._parts.discard_part(device, old.intake.manifest)
            if replaced or now - old.heard > IDLE_S:
                self._forget(device, transfer)
        return len(mine) < MAX_TRANSFERS

    def _forget(self, device: str, transfer: bytes) -> None:
        """Drop an upload that has ended, or that the next offer will start again."""
        mine = self._transfers.get(device, {})
        mine.pop(transfer, None)
        if not mine:
            self._transfers.pop(device, None)
        self._fresh.pop((device, transfer), None)
        self._quiet.pop((device, transfer), None)
        self._credit.end((device, transfer))

    def _order(self, run: Run, number: int, device: str) -> tuple[OrderRow, RoundRow]:
        """Return the device's order and its round.

        Raises ``UpdateRejected`` if there is no such order or the round closed too long ago.
        """
        given = self._open_order(run.name, number, device)
        if given is not None:
            return given
        order = self._store.order(run.name, number, device)
        round_ = self._store.round(run.name, number)
        if order is None or round_ is None:
            raise UpdateRejected("unknown-round", f"round {number} has no order for {device}")
        # The client model would refer to these blobs, so all of them must exist. The model from an old
        # round may have been kept for other devices, so its existence does not prove that the round is
        # recent.
        late = not round_.open and number + LATE_ROUNDS < self._store.coming_round(run.name)
        if late or not all(self._blobs.has(blob) for blob in order.blobs(round_.model)):
            raise UpdateRejected("stale", TOO_LATE.format(number))
        return order, round_

    def _take(
        self,
        device: str,
        transfer: bytes,
        upload: IncomingUpload,
        index: int,
        data: bytes,
        now: float,
    ) -> None:
        manifest = upload.intake.manifest
        if upload.intake.chunk(index, data, now):
            self._credit.hear((device, transfer), now)
            if manifest.count == 1 and manifest.size <= MAX_ROW_BYTES:
                upload.data = data  # complete after one chunk, so no file is needed
            else:
                self._parts.write_part(device, manifest, index, data)
        self._fresh[device, transfer] = upload.intake
        self._quiet[device, transfer] = upload.intake
        self._quiet.move_to_end((device, transfer))

    def _complete(self, device: str, transfer: bytes, upload: IncomingUpload, run: Run) -> Answer:
        """Check an upload whose chunks have all arrived. Its receipt is written at the end of the turn."""
        manifest = upload.intake.manifest
        is_small = manifest.size <= MAX_ROW_BYTES
        blob: bytes | None = upload.data
        if not blob:
            take = self._parts.read_part if is_small else self._parts.take_part
            blob = take(device, manifest)
        elif hashlib.sha256(blob).digest() != manifest.sha256:
            blob = None
        if blob is None and not upload.damaged:  # our disk may be to blame, so try once more
            upload.damaged, upload.intake.have, upload.data = True, set(), b""
            return Answer(Have(0, upload.intake.bitmap(), CREDIT))
        if blob is None:
            why = "its chunks do not match this SHA-256"
            return self._reject(device, transfer, run, upload.round, manifest, "malformed", why)
        return self._receive(device, transfer, run, upload.round, manifest, blob, not upload.data)

    def _reject(
        self, device: str, transfer: bytes, run: Run, number: int, manifest: Manifest, reason: str, why: str
    ) -> Answer:  # fmt: skip
        """Reject an update permanently without checking its contents."""
        row = UpdateRow(run.name, number, device, manifest.sha256, b"", manifest.size, 0)
        return self._queue(JudgedUpdate(device, transfer, manifest, row.refused(reason, why)))

    def _receive(
        self, device: str, transfer: bytes, run: Run, number: int, manifest: Manifest, blob: bytes,
        has_part: bool = False,
    ) -> Answer:  # fmt: skip
        """Check an update that has arrived completely."""
        sha256 = manifest.sha256
        row = UpdateRow(run.name, number, device, sha256, b"", len(blob), 0)
        try:
            order, round_ = self._order(run, number, device)
            judged = judge(order_context(self._run_store, run, round_, order), blob)
        except UpdateRejected as exc:
            refused = row.refused(exc.reason, exc.detail)
            return self._queue(JudgedUpdate(device, transfer, manifest, refused, has_part=has_part))
        except CodecError as exc:
            refused = row.refused("malformed", str(exc))
            return self._queue(JudgedUpdate(device, transfer, manifest, refused, has_part=has_part))
        if judged.delta is not None:
            self._run_store.keep_delta(sha256, order.context, judged.delta)
        if judged.mask:
            self._blobs.write(judged.mask)
        patch_length, delta_length = judged.lengths or (None, None)
        row = msgspec.structs.replace(
            row,
            report=msgspec.msgpack.encode(judged.report),
            patch_length=patch_length,
            delta_length=delta_length,
        )
        small = blob if len(blob) <= MAX_ROW_BYTES else b""
        return self._queue(
            JudgedUpdate(
                device, transfer, manifest, row, judged.client, small, judged.report, has_part
            )
        )

    def _queue(self, judged: JudgedUpdate) -> Answer:
        """Queue a checked update, which is answered at the end of the turn."""
        row = judged.row
        self._judged[row.run, row.round, row.device] = judged
        return Answer()


def receipt(row: UpdateRow, offered: bytes) -> Message:
    """Return the answer to an offer whose device already has this receipt for the round."""
    if row.blob != offered:
        detail = "another update from this device was counted for this round"
        return Reject(row.run, row.round, offered, "duplicate", detail)
    if row.rejected:
        return Reject(row.run, row.round, row.blob, row.rejected, row.detail)
    return Committed(row.run, row.round, row.blob, row.late > 0)


def _reject(run: str, number: int, sha256: bytes, why: UpdateRejected) -> Reject:
    return Reject(run, number, sha256, why.reason, why.detail[:1000])
