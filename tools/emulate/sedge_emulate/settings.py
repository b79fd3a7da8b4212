"""All settings of a run as one list, and what tells two runs apart."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sedge_emulate.config import EmulationConfig
from sedge_emulate.result import Result

# What may differ between runs that are compared: the seed is why there are several, workers change no
# figure, and each strategy is compared by itself.
_FREE = ("seed", "workers", "strategies")
_WIDTHS = "model.widths"


def flat(settings: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting under its dotted key, tables of a list by label, name or number."""
    for key, value in settings.items():
        yield from _flat(f"{under}{key}", value)


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        yield from flat(value, f"{key}.")
    elif (
        isinstance(value, list | tuple)
        and value
        and all(isinstance(item, Mapping) for item in value)
    ):
        for number, item in enumerate(value):
            name = item.get("label") or item.get("name") or number
            yield from flat(item, f"{key}[{name}].")
    else:
        yield key, value


def conditions(result: Result) -> dict[str, Any]:
    """What must be equal in runs that are compared, under the names of the settings."""
    shared = {key: value for key, value in result.settings.items() if key not in _FREE}
    found = dict(flat(shared))
    found.pop(_WIDTHS, None)  # which only the strategies that assign them have
    return {
        **found,
        "data": result.dataset,
        "data_sha256": result.data_sha256,
        "model": result.model.name,
        "model.parameters": result.model.parameters,
        "metric": result.metric.name,
        "link": result.link,
    }


def conditions_of(result: Result, strategy: str) -> dict[str, Any]:
    """What must be equal in a strategy's runs that are compared."""
    named = {found["label"] or found["name"]: found for found in result.settings["strategies"]}
    widths = result.settings.get("model", {}).get("widths")
    return {**dict(flat(named[strategy], f"strategies[{strategy}].")), _WIDTHS: widths}


def differing(old: EmulationConfig, new: EmulationConfig) -> Iterator[tuple[str, object, object]]:
    """Each setting that differs between two fleets, with both values; workers change no figure."""
    pair = [dict(flat(msgspec.to_builtins(each))) for each in (old, new)]
    for key in {**pair[0], **pair[1]}:
        values = [found.get(key) for found in pair]
        if values[0] != values[1] and key != "workers":
            yield key, values[0], values[1]
