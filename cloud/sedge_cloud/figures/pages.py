"""The templates shared by all of Sedge's HTML pages, so that they look and format numbers the same way.

All text is escaped, so that a hostile name cannot inject markup. ``templates/macros.html`` draws tables and
plots.
"""

from collections.abc import Iterable
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from sedge_cloud.figures import drawing
from sedge_cloud.figures.numbers import (
    change,
    duration,
    measured,
    natural,
    percent,
    quantity,
    size,
)
from sedge_protocol.wire.objective import Metric

_OURS = PackageLoader("sedge_cloud", "figures/templates")


def environment(
    names: dict[str, Any], filters: dict[str, Any] | None = None, *others: PackageLoader
) -> Environment:
    """Create a Jinja environment with number filters for the templates here and in ``others``."""
    made = Environment(
        loader=ChoiceLoader([_OURS, *others]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters.update(_FILTERS | (filters or {}))
    made.globals.update(_GLOBALS | names)
    return made


def percent_text(share: float) -> str:
    """Format a share as a percentage whose sign cannot be separated from it by a line break."""
    return _unbroken(percent(share))


def natural_order(names: Iterable[str]) -> list[str]:
    """Sort names in natural order: ``pi-2`` before ``pi-10``."""
    return sorted(names, key=natural)


def _measured(value: float, metric: Metric) -> str:
    return _unbroken(measured(value, metric))


def _size(num_bytes: float) -> str:
    return _unbroken(size(num_bytes))


def _unbroken(text: str) -> str:
    """Replace the space between a number and its unit with a no-break space."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _comma(number: float) -> str:
    return f"{number:,.4g}" if isinstance(number, float) else f"{number:,}"


_FILTERS: dict[str, Any] = {
    "of": quantity,
    "percent": percent_text,
    "measured": _measured,
    "size": _size,
    "duration": duration,
    "change": change,
    "natural": natural_order,
    "comma": _comma,
    "px": drawing.pixels,
    "series": drawing.series,
}
_GLOBALS: dict[str, Any] = {
    "WIDTH": drawing.WIDTH,
    "LEFT": drawing.LEFT,
    "RIGHT": drawing.RIGHT,
    "BOTTOM": drawing.BOTTOM,
}
