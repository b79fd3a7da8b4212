"""Run-file options to strategies, and the one error that tells what exists."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sedge_cloud.strategies.apfl import APFL
from sedge_cloud.strategies.custom import Guarded
from sedge_cloud.strategies.fedavg import FedAvg, LocalOnly
from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategies.fedper import FedPer
from sedge_cloud.strategies.fedrep import FedRep
from sedge_cloud.strategies.registry import STRATEGIES, make_strategy
from sedge_cloud.strategy import Memory, Strategy
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Training


@pytest.mark.parametrize(
    ("name", "options", "strategy"),
    [
        ("fedavg", {}, FedAvg()),
        ("local_only", {}, LocalOnly()),
        ("fedobp", {}, FedOBP()),
        ("fedobp", {"quantile": 1}, FedOBP(quantile=1.0)),
        ("fedobp", {"quantile": 0.9999, "ema": 0.5}, FedOBP(quantile=0.9999, ema=0.5)),
        (
            "fedobp",
            {"score": "product", "norm": "layer", "cold_start": "init", "classifier_only": True},
            FedOBP(score="product", norm="layer", cold_start="init", classifier_only=True),
        ),
        # TOML has no tuples.
        ("fedobp", {"classifier_only": ["fc.bias"]}, FedOBP(classifier_only=("fc.bias",))),
        ("fedper", {"head": ["fc"]}, FedPer(head=("fc",))),
        ("fedrep", {"head": ["fc"], "body_epochs": 2}, FedRep(("fc",), 2)),
        ("apfl", {"alpha": 0.1, "adaptive": False}, APFL(0.1, adaptive=False)),
    ],
)
def test_builds(name: str, options: Mapping[str, object], strategy: Strategy) -> None:
    made = make_strategy(name, options)
    assert made == strategy
    assert made.name == name


@pytest.mark.parametrize(
    ("name", "options", "key", "found"),
    [
        ("fedsgd", {}, "strategy", "fedsgd"),
        ("fedavg", {"quantile": 0.5}, "quantile", 0.5),
        ("fedobp", {"quantil": 0.5}, "quantil", 0.5),
        ("fedobp", {"name": "x"}, "name", "x"),
        ("fedobp", {"quantile": "0.5"}, "quantile", "0.5"),
        ("fedobp", {"quantile": True}, "quantile", True),
        ("fedobp", {"ema": None}, "ema", None),
        ("fedobp", {"score": "cubed"}, "score", "cubed"),
        ("fedobp", {"norm": 1}, "norm", 1),
        ("fedobp", {"classifier_only": 1}, "classifier_only", 1),
        ("fedobp", {"classifier_only": "fc.bias"}, "classifier_only", "fc.bias"),
        ("fedobp", {"classifier_only": [1]}, "classifier_only", [1]),
        ("fedobp", {"classifier_only": []}, "classifier_only", ()),
        ("fedobp", {"quantile": 1.5}, "quantile", 1.5),
        ("fedobp", {"ema": 1.0}, "ema", 1.0),
    ],
)
def test_refuses(name: str, options: Mapping[str, object], key: str, found: object) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(name, options)
    assert caught.value.key == key
    assert caught.value.found == found


def test_unknown_name_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=", ".join(sorted(STRATEGIES)) + ", or module:Class"):
        make_strategy("fedsgd", {})


@pytest.mark.parametrize("options", [{"alpha": 1}, {"norm": "batch"}])
def test_wrong_option_lists_every_option(options: Mapping[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy("fedobp", options)
    for option in ("quantile: float = 0.99993", "classifier_only: bool | tuple[str, ...] = False"):
        assert option in str(caught.value)
    assert "norm: Literal['none', 'global', 'layer'] = 'none'" in str(caught.value)


def test_a_strategy_without_options_says_so() -> None:
    with pytest.raises(ConfigError, match=r"an option of fedavg\(\)"):
        make_strategy("fedavg", {"alpha": 1})


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_plays_a_round_without_updates(name: str) -> None:
    layout = Layout.of(
        [("conv.weight", (2, 1, 2, 2), Role.PARAMETER), ("fc.weight", (2, 2), Role.PARAMETER)]
    )
    strategy = make_strategy(name, {})
    assert strategy.name == name
    state = strategy.init(layout, np.ones(12, np.float32))
    assert strategy.plan(state, Memory(), Training()).patch is None
    state = strategy.apply(state, [])
    assert state.round == 1
    np.testing.assert_array_equal(state.theta, np.ones(12))


# A strategy of one's own.

OWN = """
from __future__ import annotations
from dataclasses import dataclass
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_protocol.errors import ConfigError

@dataclass(frozen=True)
class Mine(FedAvg):
    gain: float = 1.0

@dataclass(frozen=True)
class Half:
    def init(self): ...
    def plan(self): ...

class Plain: ...
number = 3

@dataclass(frozen=True)
class Needing(FedAvg):
    rate: float

@dataclass(frozen=True)
class Ranged(FedAvg):
    rate: float = 0.5
    def __post_init__(self):
        if self.rate > 2:
            raise ConfigError("rate", self.rate, "at most 2")
        if self.rate > 1:
            raise ValueError("rate above 1")
        {}[self.rate]

@dataclass(frozen=True)
class Unread(FedAvg):
    rate: Nowhere = 0

@dataclass(frozen=True)
class Uncalled:
    name: str = "x"
    init: int = 0
    plan: int = 0
    def apply(self): ...

@dataclass(frozen=True)
class Twofold(FedAvg):
    rate: list[int] | tuple[int, ...] = ()
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module with strategies, good and bad, that can be imported; its name."""
    (tmp_path / "of_mine.py").write_text(OWN)
    (tmp_path / "broken_one.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    return "of_mine"


def test_a_strategy_of_ones_own(own: str) -> None:
    made = make_strategy(f"{own}:Mine", {"gain": 2})
    assert isinstance(made, Guarded)
    assert isinstance(made.inner, FedAvg) and getattr(made.inner, "gain", None) == 2.0
    for options, key in (({"gain": "much"}, "gain"), ({"gains": 1}, "gains")):
        with pytest.raises(ConfigError, match=r"of_mine:Mine\(gain: 'float' = 1.0\)") as caught:
            make_strategy(f"{own}:Mine", options)
        assert caught.value.key == key


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("of_mine:Yours", "module:Class that can be imported (AttributeError"),
        ("of_mine:", "module:Class that can be imported (AttributeError"),
        ("of_yours:Mine", "module:Class that can be imported (ModuleNotFoundError"),
        (":Mine", "module:Class that can be imported (ValueError"),
        ("broken_one:Mine", "module:Class that can be imported (ZeroDivisionError"),
        ("of_mine:number", "a frozen dataclass"),
        ("of_mine:Plain", "a frozen dataclass"),
        ("of_mine:Half", "a class that also has name, apply()"),
        ("of_mine:Uncalled", "a class that also has init(), plan()"),
        (
            "of_mine:Unread",
            "a class whose annotations can be read (NameError: name 'Nowhere' is not defined)",
        ),
    ],
)
@pytest.mark.usefixtures("own")
def test_what_is_no_strategy(name: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(name, {})
    assert (caught.value.key, caught.value.found) == ("strategy", name)
    assert caught.value.expected.startswith(expected)


@pytest.mark.parametrize(
    ("name", "options", "key", "found", "expected"),
    [
        (
            "Needing",
            {},
            "rate",
            None,
            "a value: of_mine:Needing(rate: 'float') has none of its own",
        ),
        ("Ranged", {"rate": 3}, "rate", 3.0, "at most 2"),
        (
            "Ranged",
            {"rate": 2},
            "options",
            {"rate": 2},
            "what of_mine:Ranged(rate: 'float' = 0.5) takes (ValueError: rate above 1)",
        ),
        (
            "Ranged",
            {},
            "options",
            {},
            "what of_mine:Ranged(rate: 'float' = 0.5) takes (KeyError: 0.5)",
        ),
        ("Twofold", {"rate": [1]}, "rate", [1], "rate: 'list[int] | tuple[int, ...]' = () as in"),
    ],
)
@pytest.mark.usefixtures("own")
def test_options_that_a_strategy_of_ones_own_refuses(
    name: str, options: Mapping[str, object], key: str, found: object, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(f"of_mine:{name}", options)
    assert (caught.value.key, caught.value.found) == (key, found)
    assert caught.value.expected.startswith(expected)
