"""Flattens a run's settings to a list, and compares the settings of two runs."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import msgspec.inspect

from sedge_emulate.config import EmulationConfig
from sedge_emulate.result import Result

# Settings that may differ between compared runs: seeds are meant to differ, workers do not affect the
# results, and each strategy is compared separately.
_FREE = ("seed", "workers", "strategies")
_WIDTHS = "model.widths"


def flat(settings: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting under its dotted key. A table in a list is identified by label, name or index."""
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
    """Return the settings that all compared runs must share, by dotted key."""
    settings = of_this_version(result.settings)
    shared = {key: value for key, value in settings.items() if key not in _FREE}
    found = dict(flat(shared))
    found.pop(_WIDTHS, None)  # compared only for strategies that assign widths
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
    """Return the settings that compared runs of this strategy must share, by dotted key."""
    settings = of_this_version(result.settings)
    named = {found["label"] or found["name"]: found for found in settings["strategies"]}
    widths = settings.get("model", {}).get("widths")
    return {**dict(flat(named[strategy], f"strategies[{strategy}].")), _WIDTHS: widths}


def differing(old: Mapping[str, Any], new: EmulationConfig) -> Iterator[tuple[str, object, object]]:
    """Yield the key and both values of each setting that differs between a result and ``new``.

    ``workers`` is ignored, because it does not affect the results.
    """
    pair = [dict(flat(of_this_version(each))) for each in (old, msgspec.to_builtins(new))]
    for key in {**pair[0], **pair[1]}:
        values = [found.get(key) for found in pair]
        if values[0] != values[1] and key != "workers":
            yield key, values[0], values[1]


def of_this_version(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert settings to this version: missing keys get their defaults, and unknown keys are dropped.

    If a value is invalid in this version, the settings are returned unchanged.
    """
    known = _known(settings, msgspec.inspect.type_info(EmulationConfig))
    try:
        config = msgspec.convert(known, EmulationConfig)
    except msgspec.ValidationError:
        return settings
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return found


def _known(value: Any, kind: msgspec.inspect.Type) -> Any:
    """Return a copy of ``value`` without the keys that its type ``kind`` does not have."""
    match kind:
        case msgspec.inspect.StructType(fields=fields) if isinstance(value, Mapping):
            types = {field.encode_name: field.type for field in fields}
            return {key: _known(each, types[key]) for key, each in value.items() if key in types}
        case msgspec.inspect.VarTupleType(item_type=item) if isinstance(value, list | tuple):
            return [_known(each, item) for each in value]
        case msgspec.inspect.UnionType(types=types) if isinstance(value, Mapping):
            of_struct = (each for each in types if isinstance(each, msgspec.inspect.StructType))
            return next((_known(value, each) for each in of_struct), value)
        case _:
            return value
