"""The strategies that a run file can name, and how its options become one.

A strategy of your own is a frozen dataclass with the four members of ``strategy.Strategy`` in a module
that can be imported where the coordinator runs (beside the fleet file in the emulator); a run file names
it "module:Class". Its fields are its options. Ranges are the strategy's own business (``__post_init__``);
names and types are checked here. Only a run file can name one: nothing that a device sends does.
"""

import importlib
from collections.abc import Mapping
from dataclasses import is_dataclass
from inspect import Parameter, signature
from typing import cast, get_type_hints

import msgspec

from sedge_cloud.strategies.apfl import APFL
from sedge_cloud.strategies.custom import Guarded
from sedge_cloud.strategies.ditto import Ditto
from sedge_cloud.strategies.fedavg import FedAvg, LocalOnly
from sedge_cloud.strategies.fedbn import FedBN
from sedge_cloud.strategies.fedcac import FedCAC
from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategies.fedper import FedPer, LGFedAvg
from sedge_cloud.strategies.fedprox import FedProx
from sedge_cloud.strategies.fedpurin import FedPURIN
from sedge_cloud.strategies.fedrep import FedBABU, FedRep
from sedge_cloud.strategies.fedrolex import FedRolex
from sedge_cloud.strategies.fedselect import FedSelect
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategies.subflot import SubFLOT
from sedge_cloud.strategy import Strategy
from sedge_protocol.errors import ConfigError

STRATEGIES: Mapping[str, type[Strategy]] = {
    "apfl": APFL,
    "ditto": Ditto,
    "fedavg": FedAvg,
    "fedbabu": FedBABU,
    "fedbn": FedBN,
    "fedcac": FedCAC,
    "fedobp": FedOBP,
    "fedper": FedPer,
    "fedprox": FedProx,
    "fedpurin": FedPURIN,
    "fedrep": FedRep,
    "fedrolex": FedRolex,
    "fedselect": FedSelect,
    "heterofl": HeteroFL,
    "lg_fedavg": LGFedAvg,
    "local_only": LocalOnly,
    "subflot": SubFLOT,
}


def make_strategy(name: str, options: Mapping[str, object]) -> Strategy:
    """The named strategy, or your own "module:Class", with these options.

    Raises ``ConfigError``, which lists what exists, for an unknown name, an unknown option or a value
    of the wrong type, one that is missing, and a class that cannot be made; the strategy's own for a
    value out of range.
    """
    kind = _own(name) if ":" in name else STRATEGIES.get(name)
    if kind is None:
        expected = f"one of {', '.join(sorted(STRATEGIES))}, or module:Class"
        raise ConfigError("strategy", name, expected)
    known, types = _options(name, kind)
    usage = f"{name}({', '.join(str(option) for option in known.values())})"
    values: dict[str, object] = {}
    for key, value in options.items():
        if key not in known:
            raise ConfigError(key, value, f"an option of {usage}")
        try:
            values[key] = msgspec.convert(value, types[key])
        except Exception as exc:  # msgspec's errors, or what a type of the user's own raises
            raise ConfigError(key, value, f"{known[key]} as in {usage}") from exc
    for key, option in known.items():
        if key not in values and option.default is Parameter.empty:
            raise ConfigError(key, None, f"a value: {usage} has none of its own")
    try:
        made = kind(**values)
    except ConfigError:
        raise
    except Exception as exc:  # whatever the user's own code raises
        expected = f"what {usage} takes ({type(exc).__name__}: {exc})"
        raise ConfigError("options", dict(options), expected) from exc
    return Guarded(made) if ":" in name else made


def _options(
    name: str, kind: type[Strategy]
) -> tuple[Mapping[str, Parameter], Mapping[str, object]]:
    """The options of a strategy's class, and their types. Raises ``ConfigError``."""
    try:
        return signature(kind).parameters, get_type_hints(kind)
    except Exception as exc:  # whatever stands in the user's own annotations
        why = f"a class whose annotations can be read ({type(exc).__name__}: {exc})"
        raise ConfigError("strategy", name, why) from exc


def _own(name: str) -> type[Strategy]:
    """The class that "module:Class" names. Raises ``ConfigError``."""
    module, _, attribute = name.partition(":")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as exc:  # whatever the user's own code raises
        why = f"module:Class that can be imported ({type(exc).__name__}: {exc})"
        raise ConfigError("strategy", name, why) from exc
    if not isinstance(found, type) or not is_dataclass(found):
        raise ConfigError("strategy", name, "a frozen dataclass")
    missing = [] if hasattr(found, "name") else ["name"]
    called = ("init", "plan", "apply")
    missing += [f"{member}()" for member in called if not callable(getattr(found, member, None))]
    if missing:
        raise ConfigError("strategy", name, f"a class that also has {', '.join(missing)}")
    return cast(type[Strategy], found)
