"""Numbers as people read them, the same in the terminal and in the report."""

from collections.abc import Sequence

# Decimal, as network equipment and data plans count.
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


def percent(share: float, digits: int = 1) -> str:
    """0.9312 -> ``93.1 %``."""
    return f"{100 * share:.{digits}f} %"


def size(num_bytes: float) -> str:
    """2328104 -> ``2.33 MB``: three digits that count."""
    value = float(num_bytes)
    for unit in _BYTE_UNITS[:-1]:
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1000
    return f"{_three(value)} {_BYTE_UNITS[-1]}"


def duration(seconds: float) -> str:
    """75 -> ``1:15``, 3700 -> ``1:01:40``, 4.2 -> ``4.2 s``, 200,000 -> ``2 d 8 h``."""
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


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _three(value: float) -> str:
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"
