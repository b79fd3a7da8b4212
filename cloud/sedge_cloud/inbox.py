"""Where updates arrive: offers, chunks, and the one transaction that makes a receipt.

A receipt, good or bad, is stored before it is sent, so the same offer always gets the same answer
and an update counts once however often it comes. Nothing of an update is believed before its bytes
match the manifest, the manifest its order, and the payload decodes to its last element. When the disk
refuses, the upload is forgotten and ``StorageError`` raised: what has arrived lies in its part, and
the next offer goes on from there.
"""

from dataclasses import dataclass

import msgspec

from sedge_cloud.ledger import Ledger, Run
from sedge_cloud.store import MemoryRow, OrderRow, RoundRow, Store, UpdateRow
from sedge_protocol.blobs import BlobFolder
from sedge_protocol.errors import CodecError, Refused, StorageError
from sedge_protocol.frame import Frame
from sedge_protocol.messages import (
    Busy,
    Committed,
    Have,
    Message,
    Offer,
    Reject,
)
from sedge_protocol.transfer import CREDIT, Intake, Manifest
from sedge_protocol.update import MAX_REPORT_BYTES, Report

# A device has one update to send, two when the last round's is still on its way.
MAX_TRANSFERS = 2
# A sender that is there repeats its offer within 2 + 60 seconds (transfer.py); one silent for twice as
# long makes room for another.
IDLE_S = 120.0
RETRY_MS = 30_000
# A coded vector is at most its float32 values and a bitmap; a sixteenth covers codec overhead.
DENSE_SLACK = 16


@dataclass
class Transfer:
    """One upload on its way in."""

    run: str
    round: int
    intake: Intake
    heard: float


@dataclass(frozen=True)
class Answer:
    """What to reply, and the receipt if one was just written; ``report`` only with a good one."""

    reply: Message | None = None
    row: UpdateRow | None = None
    report: Report | None = None


class Inbox:
    """Every upload of the fleet.

    Raises ``FrameError`` for chunks that do not fit their manifest, ``StorageError`` when the disk
    refuses.
    """

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store = store
        self._ledger = ledger
        self._blobs: BlobFolder = store.blobs
        self._transfers: dict[tuple[str, bytes], Transfer] = {}

    def offer(
        self, device: str, transfer: bytes, offer: Offer, run: Run | None, now: float
    ) -> Answer:
        """A device offers an update for an order of ``run`` (None: there is no such run)."""
        known = self._store.update(offer.run, offer.round, device)
        if known is not None:
            return Answer(receipt(known, offer.manifest.sha256))
        sha256, size = offer.manifest.sha256, offer.manifest.size
        try:
            if run is None:
                raise Refused("unknown-run", f"there is no run {offer.run!r}")
            self._order(run.name, offer.round, device)
        except Refused as exc:
            return Answer(_reject(offer.run, offer.round, sha256, exc))
        limit = MAX_REPORT_BYTES + 4 * run.manifest.layout.size * (DENSE_SLACK + 1) // DENSE_SLACK
        if size > limit:
            row = UpdateRow(run.name, offer.round, device, sha256, b"", size, False)
            row = _rejected(row, "too-large", f"{size} bytes, the limit is {limit}")
            self._store.receive(row, None)
            return Answer(receipt(row, sha256), row)
        try:
            return self._begin(device, transfer, offer, run, now)
        except StorageError:
            self._transfers.pop((device, transfer), None)
            raise

    def chunk(self, device: str, frame: Frame, runs: dict[str, Run], now: float) -> Answer:
        """A chunk of an upload; one for a transfer nobody has offered is left to the next offer."""
        found = self._transfers.get((device, frame.transfer))
        if found is None:
            return Answer()
        found.heard = now
        try:
            self._take(device, found.intake, frame.index, frame.body, now)
            if found.intake.complete:
                return self._complete(device, frame.transfer, found, runs[found.run])
        except StorageError:
            del self._transfers[device, frame.transfer]
            raise
        return Answer()

    def poll(self, now: float) -> list[tuple[str, bytes, Have]]:
        """Progress reports that are due: (device, transfer id, message)."""
        return [
            (device, transfer, Have(0, found.intake.bitmap(), CREDIT))
            for (device, transfer), found in self._transfers.items()
            if found.intake.poll(now)
        ]

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = [found.intake.timer() for found in self._transfers.values()]
        return min((at for at in due if at is not None), default=None)

    def _begin(self, device: str, transfer: bytes, offer: Offer, run: Run, now: float) -> Answer:
        manifest = offer.manifest
        found = self._transfers.get((device, transfer))
        if found is None or (found.run, found.round) != (offer.run, offer.round):
            if not self._make_room(device, offer, now):
                return Answer(Busy(RETRY_MS, "too many transfers"))
            intake = Intake(manifest, self._held(device, manifest))
            found = Transfer(offer.run, offer.round, intake, now)
            self._transfers[device, transfer] = found
        found.heard = now
        if offer.data and len(offer.data) == manifest.size:
            for index in range(manifest.count):
                offset, length = manifest.span(index)
                self._take(device, found.intake, index, offer.data[offset : offset + length], now)
        if found.intake.complete:
            return self._complete(device, transfer, found, run)
        return Answer(Have(offer.number, found.intake.bitmap(), CREDIT))

    def _make_room(self, device: str, offer: Offer, now: float) -> bool:
        """Whether the device may begin one more upload, when those that it puts an end to are gone.

        A round takes one update of a device. The same blob cut anew goes on from the same part; another
        blob means that the device has forgotten the one before.
        """
        for key, old in list(self._transfers.items()):
            if key[0] != device:
                continue
            replaced = (old.run, old.round) == (offer.run, offer.round)
            if replaced and old.intake.manifest.sha256 != offer.manifest.sha256:
                self._blobs.discard_part(device, old.intake.manifest)
            if replaced or now - old.heard > IDLE_S:
                del self._transfers[key]
        return sum(1 for owner, _ in self._transfers if owner == device) < MAX_TRANSFERS

    def _order(self, run: str, number: int, device: str) -> tuple[OrderRow, RoundRow]:
        """The device's order, and its round. Raises ``Refused`` when there is none or it is too old."""
        order = self._store.order(run, number, device)
        round_ = self._store.round(run, number)
        if order is None or round_ is None:
            raise Refused("unknown-round", f"round {number} has no order for {device}")
        # The device's memory will name both; a model may outlive its round, for other devices' sake.
        if not all(self._blobs.has(blob) for blob in (round_.model, order.arrays) if blob):
            raise Refused("stale", f"round {number} closed too long ago")
        return order, round_

    def _held(self, device: str, manifest: Manifest) -> set[int]:
        if self._blobs.has(manifest.sha256):  # a crash fell between the blob and its receipt
            return set(range(manifest.count))
        return self._blobs.open_part(device, manifest)

    def _take(self, device: str, intake: Intake, index: int, data: bytes, now: float) -> None:
        if intake.chunk(index, data, now):
            self._blobs.write_part(device, intake.manifest, index, data)

    def _complete(self, device: str, transfer: bytes, found: Transfer, run: Run) -> Answer:
        """All chunks are there: check the whole, write the receipt, and only then answer."""
        manifest = found.intake.manifest
        sha256 = manifest.sha256
        if not self._blobs.finish_part(device, manifest):
            found.intake.have = set()
            return Answer(Have(0, found.intake.bitmap(), CREDIT))
        row, memory, report = self._judge(device, found, run, self._blobs.read(sha256))
        self._store.receive(row, memory)
        del self._transfers[device, transfer]
        return Answer(receipt(row, sha256), row, report)

    def _judge(
        self, device: str, found: Transfer, run: Run, blob: bytes
    ) -> tuple[UpdateRow, MemoryRow | None, Report | None]:
        """The receipt that this update earns."""
        number, sha256 = found.round, found.intake.manifest.sha256
        row = UpdateRow(run.name, number, device, sha256, b"", len(blob), False)
        try:
            order, round_ = self._order(run.name, number, device)
            report = self._ledger.check_update(run, round_, order, blob)
        except Refused as exc:
            return _rejected(row, exc.reason, exc.detail), None, None
        except CodecError as exc:
            return _rejected(row, "malformed", str(exc)), None, None
        row = msgspec.structs.replace(
            row, report=msgspec.msgpack.encode(report), late=not round_.open
        )
        if round_.task != "train":
            return row, None, report
        memory = MemoryRow(
            run.name, device, number, round_.model, order.patch, sha256, order.arrays
        )
        return row, memory, report


def receipt(row: UpdateRow, offered: bytes) -> Message:
    """The answer to an offer of this blob when the round already has this receipt."""
    if row.blob != offered:
        detail = "another update of this device was counted for this round"
        return Reject(row.run, row.round, offered, "duplicate", detail)
    if row.rejected:
        return Reject(row.run, row.round, row.blob, row.rejected, row.detail)
    return Committed(row.run, row.round, row.blob, row.late)


def _rejected(row: UpdateRow, reason: str, detail: str) -> UpdateRow:
    return msgspec.structs.replace(row, rejected=reason, detail=detail[:1000])


def _reject(run: str, number: int, sha256: bytes, why: Refused) -> Reject:
    return Reject(run, number, sha256, why.reason, why.detail[:1000])
