"""The disk of the state folder: how much is used, how fast usage grows, and when the disk will be full."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from sedge_cloud.facts.records import DiskFacts
from sedge_cloud.store.rows import CoordinatorRow, DiskRow

_DAY_S, _HOUR_S = 86_400.0, 3600.0


def disk_of(
    row: CoordinatorRow, running: bool, folder: Path, measured: Sequence[DiskRow]
) -> DiskFacts:
    """Return facts about the disk, as measured by the service or, if it is not running, measured now."""
    free, total = row.free, row.total
    if not running:
        disk = shutil.disk_usage(folder)
        free, total = disk.free, disk.total
    samples = [(sample.at, sample.used) for sample in measured]
    samples += [(row.heard, row.used)] if row.used else []
    daily, watched = daily_growth(samples)
    return DiskFacts(
        path=str(folder),
        used=row.used,
        free=free,
        total=total,
        daily=daily,
        watched_s=watched,
        full_in_days=free / daily if daily is not None and daily > 0 else None,
    )


def daily_growth(samples: Sequence[tuple[float, int]]) -> tuple[float | None, float]:
    """Estimate growth from the (time, bytes) samples of the last week by a linear fit.

    Returns bytes per day, and the number of seconds that the samples span. The growth is None if they span
    less than an hour, because garbage that has not been collected yet would count as growth.
    """
    if not samples:
        return None, 0.0
    week = [(at, used) for at, used in samples if at >= samples[-1][0] - 7 * _DAY_S]
    watched = week[-1][0] - week[0][0]
    if watched < _HOUR_S:
        return None, watched
    mean_at = sum(at for at, _ in week) / len(week)
    mean_used = sum(used for _, used in week) / len(week)
    spread = sum((at - mean_at) ** 2 for at, _ in week)
    slope = sum((at - mean_at) * (used - mean_used) for at, used in week) / spread
    return slope * _DAY_S, watched
