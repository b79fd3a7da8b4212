"""Formats numbers for people, the same way in the terminal and in reports."""

import re
from collections.abc import Sequence
from datetime import datetime

from sedge_protocol.wire.objective import Metric

# Decimal units, as used for network equipment and data plans.
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def percent(share: float, digits: int = 1) -> str:
    """Format a share as a percentage: 0.9312 -> ``93.1 %``."""
    return f"{100 * share:.{digits}f} %"


def measured(value: float, metric: Metric) -> str:
    """Format a share as a percentage, and any other metric with four significant digits."""
    return percent(value) if metric.share else f"{value:.4g}"


def change(value: float, metric: Metric, sign: str = "+") -> str:
    """Format the difference of two values, in percentage points for a share: 0.0131 -> ``+1.3``."""
    return f"{100 * value:{sign}.1f}" if metric.share else f"{value:{sign}.3g}"


def size(num_bytes: float) -> str:
    """Format a size with three significant digits: 2328104 -> ``2.33 MB``."""
    value = float(num_bytes)
    for unit in _BYTE_UNITS[:-1]:
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1000
    return f"{_three(value)} {_BYTE_UNITS[-1]}"


def duration(seconds: float) -> str:
    """Format a duration: 75 -> ``1:15``, 3700 -> ``1:01:40``, 4.2 -> ``4.2 s``, 200,000 -> ``2 d 8 h``."""
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02}"
    if minutes < 48 * 60:
        return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24} h"


def age(since: datetime | None, now: datetime) -> str:
    """Format how long ago ``since`` was: ``12 s``, ``4 min``, ``3 h``, ``2 d``; "" for None."""
    if since is None:
        return ""
    seconds = max(0.0, (now - since).total_seconds())
    for unit, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def clock(at: datetime | None, now: datetime) -> str:
    """Format a local time: ``14:05:31``, preceded by the date unless it is today; "" for None."""
    if at is None:
        return ""
    local = at.astimezone()
    return local.strftime(
        "%H:%M:%S" if local.date() == now.astimezone().date() else "%b %d %H:%M:%S"
    )


def quantity(count: int, what: str) -> str:
    """Format a count with its noun: ``1 device``, ``2,000 devices``."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def rounds_text(closed: int, total: int, training: int) -> str:
    """Format how far a run has got: ``2 of 6 (5 train)`` if the sixth round is an evaluation."""
    return f"{closed} of {total}{f' ({training} train)' if training != total else ''}"


def natural(name: str) -> tuple[tuple[str | int, ...], str]:
    """Return a sort key for natural order: ``pi-2`` comes before ``pi-10``."""
    # Text and digits alternate, so comparisons never mix text and numbers.
    parts = re.split(r"([0-9]+)", name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name


def listed(words: Sequence[str]) -> str:
    """Join words as in a sentence: ``a``, ``a and b``, ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def some_of(names: Sequence[str], count: int) -> str:
    """List a few ``names`` out of ``count``: ``a, b and 3 more``."""
    more = count - len(names)
    return listed([*names, *([f"{more:,} more"] if more > 0 else [])])


def _three(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
