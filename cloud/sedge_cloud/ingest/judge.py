"""Checks a received update once, against its order and all limits, before anything uses it.

    order_context   reads the vectors that the order refers to
    judge           decodes, checks and measures the update, without access to the store

n is the number of elements in the device's form of the model.
"""

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sedge_cloud.algorithms.outliers import lengths
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.vectors import DecodedModel, magnitude
from sedge_cloud.store.rows import ClientModelRow, OrderRow, RoundRow
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector, decode, mask_bitmap
from sedge_protocol.codec.blockwise import blocks
from sedge_protocol.errors import CodecError, UpdateRejected
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.update import Report, decode_arrays, decode_update

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class OrderContext:
    """A device's order in a round, with everything needed to check the update.

    ``start`` (n,) is the decoded model that the device starts from, or None if it sends no change.
    ``patch`` is the order's patch, and ``mask`` the contents of the order's ``context`` blob. ``last_mask``
    names the blob with the mask that the device has kept; it is only needed if the order selects elements.
    """

    run: Run
    round: RoundRow
    order: OrderRow
    start: DecodedModel | None
    patch: SparseVector | None = None
    mask: bytes | None = None
    last_mask: bytes = b""


class Judged(NamedTuple):
    """An update that matches its order.

    ``client`` is the client model after the update, or None after an evaluation. ``mask`` has the contents
    of the mask blob that ``client`` names, or is empty if that blob is already stored. ``lengths`` are the
    lengths of the update's patch and delta (outliers.py).
    """

    report: Report
    delta: SparseVector | None
    client: ClientModelRow | None
    mask: bytes
    lengths: tuple[float, float] | None


def order_context(run_store: RunStore, run: Run, round_: RoundRow, order: OrderRow) -> OrderContext:
    """Read an order and its vectors, from the store or its caches. Raises ``StorageError``."""
    work = order.read_work()
    if round_.task != TRAIN or not work.upload:
        return OrderContext(run, round_, order, None)
    size = run.layout(order.width).size
    client = None
    if work.select is not None:
        client = run_store.store.client_model(run.name, order.device)
    return OrderContext(
        run,
        round_,
        order,
        run_store.decoded_model(order.model or round_.model, size),
        run_store.patch(order, size, keep=True),
        run_store.store.blobs.read(order.context) if order.context else None,
        client.mask if client is not None and client.width == order.width else b"",
    )


def judge(given: OrderContext, blob: bytes) -> Judged:
    """Validate a received update completely, decoding every element. Returns its contents.

    Nothing is read or written. Raises ``UpdateRejected`` when the update does not match this order, and
    ``CodecError`` when its bytes are malformed.
    """
    report, payload = decode_update(blob)
    run, round_, order = given.run, given.round, given.order
    layout = run.layout(order.width)
    expected: list[tuple[str, object, object]] = [
        ("run", report.run, run.name),
        ("round", report.round, round_.round),
        ("task", report.task, round_.task),
        ("layout_hash", report.layout_hash, layout.hash),
        ("model_hash", report.model_hash, order.model_hash or round_.model_hash),
        ("patch_hash", report.patch_hash, order.patch_hash),
    ]
    for name, reported, wanted in expected:
        if reported != wanted:
            raise UpdateRejected(
                "mismatch", f"update.{name}: {_show(reported)}, expected {_show(wanted)}"
            )
    _require_share(report, run.manifest.metric)
    _require_choice(order, report.patched)
    if report.num_examples < 1:
        raise UpdateRejected("invalid", "update.num_examples: 0, expected at least 1")
    _require_arrays(given, report, blob)
    if bool(payload) != (given.start is not None):
        raise UpdateRejected("mismatch", f"update has {len(payload)} payload bytes, not as ordered")
    if given.start is None:
        return _judged(given, report, None, hashlib.sha256(blob).digest())
    delta = decode(payload, layout.size, given.mask)
    patch = None if report.patched is False else given.patch
    update = Update(order.device, 0, given.start.theta, patch, delta)
    _require_finite(run.name, update, given.start.largest, delta)
    measured = _judged(given, report, delta, hashlib.sha256(blob).digest())
    return measured._replace(lengths=lengths(update))


def _judged(given: OrderContext, report: Report, delta: SparseVector | None, blob: bytes) -> Judged:
    """Return an update with unmeasured lengths. It has a mask only if its order selects elements."""
    order, round_, work = given.order, given.round, given.order.read_work()
    if round_.task != TRAIN:
        return Judged(report, delta, None, b"", None)
    patch, patch_blob, patch_context = order.patch, order.patch_blob, order.patch_context
    if report.patched is False:  # the device chose to start without the patch
        patch = patch_blob = patch_context = b""
    mask, named = b"", b""
    # The device keeps the mask of its last update that sent some elements but not all.
    if work.select is not None:
        is_part = delta is not None and 0 < delta.count < delta.size
        mask = mask_bitmap(delta) if delta is not None and is_part else b""
        named = hashlib.sha256(mask).digest() if mask else given.last_mask
    client = ClientModelRow(
        run=given.run.name,
        device=order.device,
        round=round_.round,
        model=order.model or round_.model,
        patch=patch,
        blob=blob,
        arrays=order.arrays,
        mask=named,
        context=order.context,
        width=order.width,
        patch_blob=patch_blob,
        patch_context=patch_context,
        mix=report.mix,
        step_s=report.step_s or (report.seconds / report.steps if report.steps else 0.0),
        remembered=work.remember and delta is not None,
        steps=report.steps,
    )
    return Judged(report, delta, client, mask, None)


def _require_share(report: Report, metric: Metric) -> None:
    """Raise ``UpdateRejected`` for a metric outside [0, 1] if the run's metric is a share."""
    found = {"before": report.before, "after": report.after, "sparse": report.sparse}
    for name, metrics in found.items():
        if metrics is not None and metric.share and not 0 <= metrics.metric <= 1:
            what = f"update.{name}.metric: {metrics.metric}"
            raise UpdateRejected("invalid", f"{what}, expected {metric.words} from 0 to 1")


def _require_choice(order: OrderRow, patched: bool | None) -> None:
    """Raise ``UpdateRejected`` unless the device has chosen a start that its order offers."""
    expected: tuple[bool | None, ...] = (None,)
    if order.read_work().choice is not None:
        expected = (False, True) if order.patch_hash else (False,)
    if patched not in expected:
        shown = " or ".join(map(str, expected))
        raise UpdateRejected("mismatch", f"update.patched: {patched}, expected {shown}")


def _require_arrays(given: OrderContext, report: Report, blob: bytes) -> None:
    """Raise ``UpdateRejected`` unless the update has the arrays that its order asks for.

    Raises ``CodecError`` if an array contains NaN.
    """
    wanted = given.order.read_work().returns if given.round.task == TRAIN else {}
    if report.arrays != wanted:
        raise UpdateRejected("mismatch", f"update.arrays: {report.arrays}, expected {wanted}")
    if wanted:
        decode_arrays(blob)


def _require_finite(run: str, update: Update, largest: float, delta: SparseVector) -> None:
    """Raise ``CodecError`` unless start + delta is finite.

    Usually the largest values of both are enough to prove it. If not, every element is checked.
    """
    start = max(largest, 0.0 if update.patch is None else magnitude(update.patch.values))
    if start + magnitude(delta.values) <= _LARGEST:
        return
    with np.errstate(over="ignore"):
        finite = (np.isfinite(update.trained_within(b)).all() for b in blocks(update.base.size))
        if not all(finite):
            raise CodecError(f"run {run}: an update makes the model non-finite")


def _show(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)
