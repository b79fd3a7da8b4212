"""A received update is checked against its order and every limit before anything uses it."""

from typing import NamedTuple

import numpy as np

from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.vectors import magnitude
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.codec.blockwise import blocks
from sedge_protocol.errors import CodecError, UpdateRejected
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.update import Report, decode_update

_LARGEST = float(np.finfo(np.float32).max)


class Checked(NamedTuple):
    """An update that belongs to its order: its report and its delta, if it has one."""

    report: Report
    delta: SparseVector | None


def check_update(
    run_store: RunStore, run: Run, round_: RoundRow, order: OrderRow, blob: bytes
) -> Checked:
    """The contents of a received update, fully validated; the payload is decoded to its last element.

    Raises ``UpdateRejected`` when it does not belong to this order and ``CodecError`` when its bytes are
    malformed.
    """
    report, payload = decode_update(blob)
    layout = run.layout(order.width)
    expected: list[tuple[str, object, object]] = [
        ("run", report.run, run.name),
        ("round", report.round, round_.round),
        ("task", report.task, round_.task),
        ("layout_hash", report.layout_hash, layout.hash),
        ("model_hash", report.model_hash, order.model_hash or round_.model_hash),
        ("patch_hash", report.patch_hash, order.patch_hash),
    ]
    for name, reported, ordered in expected:
        if reported != ordered:
            raise UpdateRejected(
                "mismatch", f"update.{name}: {_show(reported)}, expected {_show(ordered)}"
            )
    _require_share(report, run.manifest.metric)
    _require_choice(order, report.patched)
    if report.num_examples < 1:
        raise UpdateRejected("invalid", "update.num_examples: 0, expected at least 1")
    if bool(payload) != (order.read_work().upload and round_.task == TRAIN):
        raise UpdateRejected("mismatch", f"update has {len(payload)} payload bytes, not as ordered")
    if not payload:
        return Checked(report, None)
    delta = run_store.decode(payload, layout.size, order.context)
    _require_finite(run_store, run, order, order.model or round_.model, delta, report.patched)
    return Checked(report, delta)


def _require_share(report: Report, metric: Metric) -> None:
    """Raise ``UpdateRejected`` for a metric outside of [0, 1] where the run's is a share."""
    found = {"before": report.before, "after": report.after, "sparse": report.sparse}
    for name, metrics in found.items():
        if metrics is not None and metric.share and not 0 <= metrics.metric <= 1:
            what = f"update.{name}.metric: {metrics.metric}"
            raise UpdateRejected("invalid", f"{what}, expected {metric.words} from 0 to 1")


def _require_choice(order: OrderRow, patched: bool | None) -> None:
    """Raise ``UpdateRejected`` unless the device has picked a start that its order offers."""
    expected: tuple[bool | None, ...] = (None,)
    if order.read_work().choice is not None:
        expected = (False, True) if order.patch_hash else (False,)
    if patched not in expected:
        shown = " or ".join(map(str, expected))
        raise UpdateRejected("mismatch", f"update.patched: {patched}, expected {shown}")


def _require_finite(
    run_store: RunStore,
    run: Run,
    order: OrderRow,
    model: bytes,
    delta: SparseVector,
    patched: bool | None,
) -> None:
    """Raise ``CodecError`` unless start + delta is finite. Their largest values almost always prove it."""
    size = run.layout(order.width).size
    decoded, patch = (
        run_store.decoded_model(model, size),
        run_store.applied_patch(order, size, patched, keep=True),
    )
    start = max(decoded.largest, 0.0 if patch is None else magnitude(patch.values))
    if start + magnitude(delta.values) <= _LARGEST:
        return
    update = Update(order.device, 0, decoded.theta, patch, delta)
    with np.errstate(over="ignore"):
        finite = (np.isfinite(update.trained_within(block)).all() for block in blocks(size))
        if not all(finite):
            raise CodecError(f"run {run.name}: an update makes a model that is not finite")


def _show(value: object) -> str:
    return value.hex()[:16] if isinstance(value, bytes) else repr(value)
