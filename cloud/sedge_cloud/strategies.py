"""The strategies that a run file can name, and how its options become one.

A strategy of your own needs a frozen dataclass with the four members of ``strategy.Strategy`` and a
line in ``STRATEGIES``; its fields are its options. Ranges are the strategy's own business
(``__post_init__``); names and types are checked here.
"""

from collections.abc import Mapping
from inspect import signature

import msgspec

from sedge_cloud.baselines import FedAvg, LocalOnly
from sedge_cloud.obp import FedOBP
from sedge_cloud.strategy import Strategy
from sedge_protocol.errors import ConfigError

STRATEGIES: Mapping[str, type[Strategy]] = {
    "fedavg": FedAvg,
    "fedobp": FedOBP,
    "local_only": LocalOnly,
}


def make_strategy(name: str, options: Mapping[str, object]) -> Strategy:
    """The named strategy with these options.

    Raises ``ConfigError``, which lists what exists, for an unknown name, an unknown option or a value
    of the wrong type, and the strategy's own for a value out of range.
    """
    if name not in STRATEGIES:
        raise ConfigError("strategy", name, f"one of {', '.join(sorted(STRATEGIES))}")
    kind = STRATEGIES[name]
    known = signature(kind).parameters
    usage = f"{name}({', '.join(str(option) for option in known.values())})"
    for key, value in options.items():
        if key not in known:
            raise ConfigError(key, value, f"an option of {usage}")
        try:
            msgspec.convert(value, known[key].annotation)
        except msgspec.ValidationError as exc:
            raise ConfigError(key, value, f"{known[key]} as in {usage}") from exc
    return msgspec.convert(dict(options), kind)
