"""Where updates arrive: offers, chunks, and the one transaction that makes a receipt.

A receipt, good or bad, is stored before it is sent, so the same offer always gets the same answer
and an update counts once however often it comes. Nothing of an update is believed before its bytes
match the manifest, the manifest its order, and the payload decodes to its last element.
"""

from dataclasses import dataclass

import msgspec

from sedge_cloud.ledger import Ledger, Run
from sedge_cloud.store import MemoryRow, Store, UpdateRow
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
RETRY_MS = 30_000
# A coded vector is at most its float32 values and a bitmap; a sixteenth covers codec overhead.
DENSE_SLACK = 16


@dataclass
class Transfer:
    """One upload on its way in."""

    run: str
    round: int
    intake: Intake


@dataclass(frozen=True)
class Answer:
    """What to reply, and the receipt if one was just written; ``report`` only with a good one."""

    reply: Message | None = None
    row: UpdateRow | None = None
    report: Report | None = None


class Inbox:
    """Every upload of the fleet. Raises ``FrameError`` for chunks that do not fit their manifest."""

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
        try:
            if run is None:
                raise Refused("unknown-run", f"there is no run {offer.run!r}")
            if self._store.order(offer.run, offer.round, device) is None:
                raise Refused("unknown-round", f"round {offer.round} has no order for {device}")
            limit = (
                MAX_REPORT_BYTES + 4 * run.manifest.layout.size * (DENSE_SLACK + 1) // DENSE_SLACK
            )
            if offer.manifest.size > limit:
                raise Refused("too-large", f"{offer.manifest.size} bytes, the limit is {limit}")
        except Refused as exc:
            return Answer(_reject(offer.run, offer.round, offer.manifest.sha256, exc))
        try:
            return self._begin(device, transfer, offer, run, now)
        except StorageError as exc:
            return Answer(Busy(RETRY_MS, str(exc)[:64]))

    def chunk(self, device: str, frame: Frame, runs: dict[str, Run], now: float) -> Answer:
        """A chunk of an upload; one for a transfer nobody has offered is left to the next offer."""
        found = self._transfers.get((device, frame.transfer))
        if found is None:
            return Answer()
        manifest = found.intake.manifest
        try:
            self._take(device, found.intake, frame.index, frame.body, now)
            if found.intake.complete:
                return self._complete(device, frame.transfer, found, runs[found.run])
        except StorageError as exc:
            found.intake.have = self._held(device, manifest)
            return Answer(Busy(RETRY_MS, str(exc)[:64]))
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
        if found is None:
            for key in [
                k for k, t in self._transfers.items() if k[0] == device and t.run == run.name
            ]:
                if self._transfers[key].intake.manifest.sha256 == manifest.sha256:
                    del self._transfers[
                        key
                    ]  # the same blob, cut anew: its bytes are in the same part
            if sum(1 for owner, _ in self._transfers if owner == device) >= MAX_TRANSFERS:
                return Answer(Busy(RETRY_MS, "too many transfers"))
            found = Transfer(offer.run, offer.round, Intake(manifest, self._held(device, manifest)))
            self._transfers[device, transfer] = found
        if offer.data and len(offer.data) == manifest.size:
            for index in range(manifest.count):
                offset, length = manifest.span(index)
                self._take(device, found.intake, index, offer.data[offset : offset + length], now)
        if found.intake.complete:
            return self._complete(device, transfer, found, run)
        return Answer(Have(offer.number, found.intake.bitmap(), CREDIT))

    def _held(self, device: str, manifest: Manifest) -> set[int]:
        if self._blobs.has(manifest.sha256):  # a crash fell between the blob and its receipt
            return set(range(manifest.count))
        return self._blobs.open_part(device, manifest)

    def _take(self, device: str, intake: Intake, index: int, data: bytes, now: float) -> None:
        if intake.chunk(index, data, now):
            try:
                self._blobs.write_part(device, intake.manifest, index, data)
            except StorageError:
                intake.have.discard(index)
                raise

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
        order = self._store.order(run.name, number, device)
        round_ = self._store.round(run.name, number)
        row = UpdateRow(run.name, number, device, sha256, b"", len(blob), False)
        try:
            if order is None or round_ is None:
                raise Refused("unknown-round", f"round {number} has no order for {device}")
            if not self._blobs.has(round_.model):
                raise Refused("stale", f"round {number} closed too long ago")
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
