"""Where updates arrive: offers, chunks, and the one transaction that makes a receipt.

A receipt, good or bad, is stored before it is sent. So the same offer always gets the same answer, and an
update counts once however often it comes. Nothing in an update is used before its bytes match the manifest,
its report matches the order, and its payload has been decoded completely. When the disk refuses, the upload
is forgotten and ``StorageError`` raised; the part file keeps what has arrived, and the next offer goes on
from there.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from sedge_cloud.ingest.judge import Checked, check_update
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.receipts import LATE_ROUNDS
from sedge_cloud.store.rows import ClientModelRow, OrderRow, RoundRow, UpdateRow
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import CodecError, StorageError, UpdateRejected
from sedge_protocol.wire.frame import Frame
from sedge_protocol.wire.messages import (
    TRAIN,
    Busy,
    Committed,
    Have,
    Message,
    Offer,
    Reject,
)
from sedge_protocol.wire.transfer import CREDIT, Intake, Manifest
from sedge_protocol.wire.update import Report, max_coded_bytes

# A device has one update to send, or two while the last round's is still on its way.
MAX_TRANSFERS = 2
# A live sender repeats its offer within 2 + 60 seconds (transfer.py); an upload silent for twice as long
# makes room for another.
IDLE_S = 120.0
RETRY_MS = 30_000


# (run, round, device) -> the device's order and its round while that is open, without asking the store.
OpenOrder: TypeAlias = Callable[[str, int, str], tuple[OrderRow, RoundRow] | None]


@dataclass
class Upload:
    """One upload in progress; ``damaged`` once all its chunks were right and the whole was not."""

    run: str
    round: int
    intake: Intake
    heard: float
    damaged: bool = False


@dataclass(frozen=True)
class Answer:
    """The reply, and the receipt if one was just written; ``report`` comes with a good one only."""

    reply: Message | None = None
    row: UpdateRow | None = None
    report: Report | None = None


class Uploads:
    """Every upload of the fleet.

    Raises ``FrameError`` for a chunk that does not fit its manifest, ``StorageError`` for a disk error.
    """

    def __init__(self, store: Store, run_store: RunStore, open_order: OpenOrder) -> None:
        self._store = store
        self._run_store = run_store
        self._open_order = open_order
        self._blobs, self._parts = store.blobs, store.parts
        self._transfers: dict[str, dict[bytes, Upload]] = {}
        # Uploads with a chunk since the last poll, and those since the last report, longest silent first.
        self._fresh: dict[tuple[str, bytes], Intake] = {}
        self._quiet: OrderedDict[tuple[str, bytes], Intake] = OrderedDict()

    def offer(
        self, device: str, transfer: bytes, offer: Offer, run: Run | None, now: float
    ) -> Answer:
        """A device offers an update for an order of ``run`` (None: there is no such run)."""
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
        limit = max_coded_bytes(run.layout(order.width).size)
        if size > limit:
            why = f"{size} bytes, the limit is {limit}"
            return self._reject(device, run, offer.round, offer.manifest, "too-large", why)
        try:
            return self._begin(device, transfer, offer, run, now)
        except StorageError:
            self._forget(device, transfer)
            raise

    def chunk(
        self, device: str, frame: Frame, find_run: Callable[[str], Run | None], now: float
    ) -> Answer:
        """A chunk of an upload; one of an unknown transfer is ignored: the next offer sorts it out."""
        upload = self._transfers.get(device, {}).get(frame.transfer)
        if upload is None:
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

    def poll(self, now: float) -> list[tuple[str, bytes, Have]]:
        """Progress reports that are due: (device, transfer id, message)."""
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
        return reports

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return next(iter(self._quiet.values())).timer() if self._quiet else None

    def _begin(self, device: str, transfer: bytes, offer: Offer, run: Run, now: float) -> Answer:
        manifest = offer.manifest
        upload = self._transfers.get(device, {}).get(transfer)
        if upload is None or (upload.run, upload.round) != (offer.run, offer.round):
            if not self._make_room(device, offer, now):
                return Answer(Busy(RETRY_MS, "too many transfers"))
            if hashlib.sha256(offer.data).digest() == manifest.sha256:
                return self._whole(device, offer, run)
            self._parts.trim_parts(device, manifest, MAX_TRANSFERS - 1)
            intake = Intake(manifest, self._parts.open_part(device, manifest))
            upload = Upload(offer.run, offer.round, intake, now)
            self._transfers.setdefault(device, {})[transfer] = upload
        upload.heard = now
        if offer.data and len(offer.data) == manifest.size:
            for index in range(manifest.count):
                offset, length = manifest.span(index)
                data = offer.data[offset : offset + length]
                self._take(device, transfer, upload, index, data, now)
        if upload.intake.complete:
            return self._complete(device, transfer, upload, run)
        return Answer(Have(offer.number, upload.intake.bitmap(), CREDIT))

    def _whole(self, device: str, offer: Offer, run: Run) -> Answer:
        """A new upload that is whole in its offer: it is stored in the transaction of its receipt."""
        manifest = offer.manifest
        for index in range(manifest.count):
            offset, length = manifest.span(index)
            manifest.check(index, offer.data[offset : offset + length])
        self._parts.require_room(manifest.size)
        upload = Upload(offer.run, offer.round, Intake(manifest, set()), 0.0)
        return self._receive(device, run, upload, offer.data, offer.data)

    def _make_room(self, device: str, offer: Offer, now: float) -> bool:
        """Whether the device may begin one more upload, after dropping those that it replaces.

        A round takes one update from a device. The same blob in other chunks goes on from the same part
        file; another blob means that the device has lost the previous one.
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
        """Forget an upload that has ended, or that starts again with its next offer."""
        mine = self._transfers.get(device, {})
        mine.pop(transfer, None)
        if not mine:
            self._transfers.pop(device, None)
        self._fresh.pop((device, transfer), None)
        self._quiet.pop((device, transfer), None)

    def _order(self, run: Run, number: int, device: str) -> tuple[OrderRow, RoundRow]:
        """The device's order and its round. Raises ``UpdateRejected`` for none, or one too old."""
        given = self._open_order(run.name, number, device)
        if given is not None:
            return given
        order = self._store.order(run.name, number, device)
        round_ = self._store.round(run.name, number)
        if order is None or round_ is None:
            raise UpdateRejected("unknown-round", f"round {number} has no order for {device}")
        # The client model will name these blobs. A round's model may be kept for other devices' sake, so
        # that its presence does not say that the round is recent.
        gone = not round_.open and number + LATE_ROUNDS <= run.state.round
        if gone or not all(self._blobs.has(blob) for blob in order.blobs(round_.model)):
            raise UpdateRejected("stale", f"round {number} closed too long ago")
        return order, round_

    def _take(
        self, device: str, transfer: bytes, upload: Upload, index: int, data: bytes, now: float
    ) -> None:
        if upload.intake.chunk(index, data, now):
            self._parts.write_part(device, upload.intake.manifest, index, data)
        self._fresh[device, transfer] = upload.intake
        self._quiet[device, transfer] = upload.intake
        self._quiet.move_to_end((device, transfer))

    def _complete(self, device: str, transfer: bytes, upload: Upload, run: Run) -> Answer:
        """All chunks have arrived: check the whole, write the receipt, and only then answer."""
        manifest = upload.intake.manifest
        blob = self._parts.take_part(device, manifest)
        if blob is None and not upload.damaged:  # perhaps this disk is at fault: once more
            upload.damaged, upload.intake.have = True, set()
            return Answer(Have(0, upload.intake.bitmap(), CREDIT))
        if blob is None:
            why = "its chunks do not make the blob of this SHA-256"
            answer = self._reject(device, run, upload.round, manifest, "malformed", why)
        else:
            answer = self._receive(device, run, upload, blob)
        self._parts.discard_part(device, manifest)
        self._forget(device, transfer)
        return answer

    def _reject(
        self, device: str, run: Run, number: int, manifest: Manifest, reason: str, why: str
    ) -> Answer:
        """Refuse an update for good, whatever it holds."""
        row = UpdateRow(run.name, number, device, manifest.sha256, b"", manifest.size, 0)
        row = self._store.receive(row.refused(reason, why))
        return Answer(receipt(row, manifest.sha256), row)

    def _receive(
        self, device: str, run: Run, upload: Upload, blob: bytes, small: bytes = b""
    ) -> Answer:
        """Check an update that is completely on disk, or ``small``, and write its receipt."""
        number, sha256 = upload.round, upload.intake.manifest.sha256
        row = UpdateRow(run.name, number, device, sha256, b"", len(blob), 0)
        report: Report | None = None
        client: ClientModelRow | None = None
        try:
            order, round_ = self._order(run, number, device)
            checked = check_update(self._run_store, run, round_, order, blob)
        except UpdateRejected as exc:
            row = row.refused(exc.reason, exc.detail)
        except CodecError as exc:
            row = row.refused("malformed", str(exc))
        else:
            report = checked.report
            coded = msgspec.msgpack.encode(report)
            row = msgspec.structs.replace(row, report=coded)
            if checked.delta is not None:
                self._run_store.keep_delta(sha256, order.context, checked.delta)
            if round_.task == TRAIN:
                client = self._client_model(run, round_, order, checked, sha256)
        stored = self._store.receive(row, client, small)
        if stored.blob != sha256:  # of an update that another process has received meanwhile
            return Answer(receipt(stored, sha256))
        return Answer(receipt(stored, sha256), stored, None if stored.rejected else report)

    def _client_model(
        self, run: Run, round_: RoundRow, order: OrderRow, checked: Checked, blob: bytes
    ) -> ClientModelRow:
        """The device's client model after this update; with a mask only where the order selects."""
        report, delta, work = checked.report, checked.delta, order.read_work()
        patch, patch_blob, patch_context = order.patch, order.patch_blob, order.patch_context
        if report.patched is False:  # the device chose to start without it
            patch = patch_blob = patch_context = b""
        return ClientModelRow(
            run=run.name,
            device=order.device,
            round=round_.round,
            model=order.model or round_.model,
            patch=patch,
            blob=blob,
            arrays=order.arrays,
            mask=b"" if work.select is None else self._mask(run, order, delta),
            context=order.context,
            width=order.width,
            patch_blob=patch_blob,
            patch_context=patch_context,
            mix=report.mix,
            step_s=report.step_s or (report.seconds / report.steps if report.steps else 0.0),
            remembered=work.remember and delta is not None,
            steps=report.steps,
        )

    def _mask(self, run: Run, order: OrderRow, delta: SparseVector | None) -> bytes:
        """The mask that the device keeps, too: that of its last update with 0 < k < n."""
        mask = b"" if delta is None else self._run_store.write_mask(delta)
        if mask:
            return mask
        client = self._store.client_model(run.name, order.device)
        return client.mask if client is not None and client.width == order.width else b""


def receipt(row: UpdateRow, offered: bytes) -> Message:
    """The answer to an offer of a blob when the round already has this receipt."""
    if row.blob != offered:
        detail = "another update of this device was counted for this round"
        return Reject(row.run, row.round, offered, "duplicate", detail)
    if row.rejected:
        return Reject(row.run, row.round, row.blob, row.rejected, row.detail)
    return Committed(row.run, row.round, row.blob, row.late > 0)


def _reject(run: str, number: int, sha256: bytes, why: UpdateRejected) -> Reject:
    return Reject(run, number, sha256, why.reason, why.detail[:1000])
