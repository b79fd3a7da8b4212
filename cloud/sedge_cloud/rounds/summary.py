"""Summarises a closed round: means over its devices, and which tensors the personal parameters are in."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.records import DeviceSummary, Summary
from sedge_cloud.store.rows import OrderRow, RoundRow, UpdateRow
from sedge_protocol.wire.reasons import without_numbers
from sedge_protocol.wire.update import Report


def summarise(
    run: Run,
    run_store: RunStore,
    row: RoundRow,
    orders: Sequence[OrderRow],
    updates: Sequence[UpdateRow],
) -> Summary:
    """Return the summary of a round with these orders and accepted updates; each device counts once."""
    reports = [(update, msgspec.msgpack.decode(update.report, type=Report)) for update in updates]
    picked = {update.device: report.patched for update, report in reports}
    withheld = run.config.withholds
    devices = tuple(
        DeviceSummary(
            update.device,
            0 if withheld else report.num_examples,
            0.0 if withheld else report.before.metric,
            0.0 if withheld else report.after.metric,
            update.size,
            report.step_s,
            report.temperature_c,
            report.energy_j,
        )
        for update, report in reports
    )
    count = max(1, len(reports))
    sent = {device.device for device in devices}
    declined = {order.device for order in orders if order.declined} - sent
    return Summary(
        run=run.name,
        round=row.round,
        task=row.task,
        cohort=len(orders),
        declined=len(declined),
        devices=devices,
        train_loss=0.0
        if withheld
        else math.fsum(report.train_loss / count for _, report in reports),
        before=sum(device.before for device in devices) / count,
        after=sum(device.after for device in devices) / count,
        update_bytes=sum(device.update_bytes for device in devices),
        personal=personal_elements(run, run_store, orders, picked),
        metric=run.manifest.metric,
        withheld=withheld,
        why_declined=_commonest([order.declined for order in orders if order.device in declined]),
    )


def _commonest(reasons: Sequence[str]) -> str:
    """Return the most common reason, in its first wording, and its count; "" if there are no reasons."""
    if not reasons:
        return ""
    ((kind, count),) = Counter(map(without_numbers, reasons)).most_common(1)
    reason = next(reason for reason in reasons if without_numbers(reason) == kind)
    return f"{reason!r} ({count} of {len(reasons)})"


def personal_elements(
    run: Run, run_store: RunStore, orders: Sequence[OrderRow], picked: Mapping[str, bool | None]
) -> dict[str, int]:
    """Count the patch elements in each tensor, summed over the orders.

    If a device may choose whether to apply its patch, the patch only counts if ``picked`` says that the
    device did.
    """
    elements: Counter[str] = Counter()
    for order in orders:
        layout, patched = run.layout(order.width), picked.get(order.device)
        unknown = patched is None and order.read_work().choice is not None
        patch = None if unknown or patched is False else run_store.patch(order, layout.size)
        if patch is None:
            continue
        ends = layout.ends
        # The indices are sorted, so count the ones before each tensor's end.
        if patch.indices is not None:
            ends = np.searchsorted(patch.indices, ends)
        counts = np.diff(ends, prepend=0).tolist()
        elements.update({t.name: k for t, k in zip(layout.tensors, counts, strict=True) if k})
    return {t.name: elements[t.name] for t in run.manifest.layout.tensors if elements[t.name]}
