"""The strategies that a run file can name, and how they are created from its options.

Your own strategy is a subclass of ``Strategy``, or of a strategy in this folder. Its module must be
importable where the coordinator runs (for the emulator: next to the fleet file), and a run file names it as
"module:Class". Only a run file can name code; nothing that a device sends can.
"""

import importlib
import math
from collections.abc import Mapping
from typing import Literal, get_args, get_origin

import msgspec

from sedge_cloud.strategies.apfl import APFL
from sedge_cloud.strategies.blended import Blended
from sedge_cloud.strategies.custom import Custom
from sedge_cloud.strategies.ditto import Ditto
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.fedbn import FedBN
from sedge_cloud.strategies.fedcac import FedCAC
from sedge_cloud.strategies.feddyn import FedDyn
from sedge_cloud.strategies.fedlc import FedLC
from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategies.fedper import FedPer, LGFedAvg
from sedge_cloud.strategies.fedprox import FedProx
from sedge_cloud.strategies.fedpurin import FedPURIN
from sedge_cloud.strategies.fedrep import FedBABU, FedRep
from sedge_cloud.strategies.fedrolex import FedRolex
from sedge_cloud.strategies.fedselect import FedSelect
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategies.local_only import LocalOnly
from sedge_cloud.strategies.scaffold import Scaffold
from sedge_cloud.strategies.subflot import SubFLOT
from sedge_cloud.strategy import Strategy
from sedge_protocol.errors import ConfigError

_KINDS: tuple[type[Strategy], ...] = (
    APFL, Blended, Ditto, FedAvg, FedBABU, FedBN, FedCAC, FedDyn, FedLC, FedOBP, FedPer,
    FedProx, FedPURIN, FedRep, FedRolex, FedSelect, HeteroFL, LGFedAvg, LocalOnly, Scaffold,
    SubFLOT,
)  # fmt: skip
STRATEGIES: Mapping[str, type[Strategy]] = {kind.name: kind for kind in _KINDS}


def make_strategy(name: str, options: Mapping[str, object]) -> Strategy:
    """Create the named strategy, or your own "module:Class", with these options.

    Raises ``ConfigError`` if a name or option is unknown, if a value is missing, has the wrong type or is
    out of range, or if a class is not a strategy or cannot be created. The error lists the valid choices.
    """
    kind = _own(name) if ":" in name else STRATEGIES.get(name)
    if kind is None:
        expected = f"one of {', '.join(sorted(STRATEGIES))}, or module:Class"
        raise ConfigError("strategy", name, expected)
    values = _values(name, kind, options)
    try:
        made = kind(**values)
    except ConfigError:
        raise
    except Exception as exc:  # the user's code may raise anything
        expected = f"options that {name} accepts ({type(exc).__name__}: {exc})"
        raise ConfigError("options", dict(options), expected) from exc
    return Custom(made) if ":" in name else made


def _values(name: str, kind: type[Strategy], options: Mapping[str, object]) -> dict[str, object]:
    """Convert the options of a strategy's class to their types. Raises ``ConfigError``."""
    try:
        fields = {option.name: option for option in msgspec.structs.fields(kind)}
    except Exception as exc:  # the user's annotations may raise anything
        why = f"a class whose annotations can be read ({type(exc).__name__}: {exc})"
        raise ConfigError("strategy", name, why) from exc
    values: dict[str, object] = {}
    for key, value in options.items():
        if key not in fields:
            raise ConfigError(
                key, value, f"an option of {name}: {', '.join(fields) or 'it has none'}"
            )
        try:
            values[key] = msgspec.convert(value, fields[key].type)
            _require_finite(value)
        except Exception as exc:  # msgspec raises ValueErrors; the user's types may raise anything
            raise ConfigError(key, value, _expected(fields[key].type, exc)) from exc
    for key, option in fields.items():
        if key not in values and option.required:
            raise ConfigError(key, None, f"a value: {name} has no default")
    return values


def _expected(annotation: object, error: Exception) -> str:
    """Describe what an option expects; msgspec's own message does not list a Literal's values."""
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(repr, get_args(annotation)))}"
    if str(error).startswith("Invalid enum value"):  # of a union
        named = [
            _expected(kind, error) for kind in get_args(annotation) if get_origin(kind) is Literal
        ]
        return f"a number, or {', '.join(named)}"
    return str(error).removeprefix("Expected ").split(" - at ")[0]


def _require_finite(value: object) -> None:
    """Raise ``ValueError`` for NaN and infinity, which TOML can express and no range excludes."""
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, float) and not math.isfinite(part):
            raise ValueError("a finite number")


def _own(name: str) -> type[Strategy]:
    """Import the class that "module:Class" names. Raises ``ConfigError``."""
    module, _, attribute = name.partition(":")
    try:
        kind: object = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as exc:  # the user's module may raise anything
        why = f"module:Class that can be imported ({type(exc).__name__}: {exc})"
        raise ConfigError("strategy", name, why) from exc
    if not isinstance(kind, type) or not issubclass(kind, Strategy):
        raise ConfigError("strategy", name, "a subclass of sedge_cloud.Strategy")
    return kind
