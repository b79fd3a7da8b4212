"""Run-file options to strategies, and the one error that tells what was expected."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.cloud.contexts import a_layout, context_of, follow

from sedge_cloud.strategies import STRATEGIES, make_strategy
from sedge_cloud.strategies.apfl import APFL
from sedge_cloud.strategies.custom import Custom
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategies.fedrep import FedRep
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import ClientModel, Strategy
from sedge_protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "options", "strategy"),
    [
        ("fedavg", {}, FedAvg()),
        ("fedobp", {"quantile": 1}, FedOBP(quantile=1.0)),
        ("fedobp", {"quantile": "paper"}, FedOBP(quantile="paper")),
        ("fedobp", {"norm": "layer", "classifier_only": True}, FedOBP(norm="layer", classifier_only=True)),
        # TOML has no tuples.
        ("fedobp", {"classifier_only": ["fc.bias"]}, FedOBP(classifier_only=("fc.bias",))),
        ("heterofl", {"dropped": [0, 0.5]}, HeteroFL(dropped=(0.0, 0.5))),
        ("fedrep", {"head": ["fc"], "body_epochs": 2}, FedRep(("fc",), 2)),
        ("apfl", {"alpha": 0.1, "adaptive": False}, APFL(0.1, adaptive=False)),
    ],
)  # fmt: skip
def test_builds(name: str, options: Mapping[str, object], strategy: Strategy) -> None:
    made = make_strategy(name, options)
    assert made == strategy
    assert made.name == name


REFUSED: list[tuple[str, dict[str, object], str, str]] = [
    ("fedsgd", {}, "strategy", "one of apfl"),
    ("fedavg", {"quantile": 0.5}, "quantile", "an option of fedavg: it has none"),
    ("fedobp", {"quantil": 0.5}, "quantil", "an option of fedobp: quantile, score, norm,"),
    ("fedobp", {"name": "x"}, "name", "an option of fedobp: quantile, score, norm,"),
    ("fedobp", {"quantile": "0.5"}, "quantile", "a number, or one of 'auto', 'paper'"),
    ("fedobp", {"classifier_only": []}, "classifier_only", "true, false or names of tensors"),
    ("heterofl", {"memory_mb": [100, 200]}, "memory_mb", "falling numbers"),
    ("heterofl", {"memory_mb": [100, 100]}, "memory_mb", "falling numbers"),
    ("heterofl", {"step_s": [2.0, 1.0]}, "step_s", "rising numbers"),
    ("heterofl", {"step_s": [1.0, 1.0]}, "step_s", "rising numbers"),
    ("heterofl", {"dropped": [0.5], "memory_mb": [100]}, "memory_mb, step_s", "neither of them with"),
    ("heterofl", {"dropped": [0.5], "step_s": [1.0]}, "memory_mb, step_s", "neither of them with"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "key", "expected"), REFUSED)
def test_refuses(name: str, options: dict[str, object], key: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(name, options)
    assert caught.value.key == key
    assert caught.value.expected.startswith(expected)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_plays_a_round_without_updates(name: str) -> None:
    layout = a_layout({"conv.weight": (2, 1, 2, 2), "fc.weight": (2, 2)})
    strategy = make_strategy(name, {})
    assert strategy.name == name
    context = context_of(layout, np.ones(12, np.float32))
    context = follow(context, strategy.init(context))
    assert strategy.plan(context, ClientModel()).patch is None
    np.testing.assert_array_equal(strategy.apply(context, []).theta, np.ones(12))


# A strategy of one's own.

OWN = """
from __future__ import annotations
from sedge_cloud import ConfigError, FedAvg

class Mine(FedAvg, frozen=True):
    gain: float = 1.0

class Plain: ...
number = 3

class Needing(FedAvg, frozen=True, kw_only=True):
    share: float

class Ranged(FedAvg, frozen=True):
    share: float = 0.5
    def __post_init__(self):
        if self.share > 2:
            raise ConfigError("share", self.share, "at most 2")
        if self.share > 1:
            raise ValueError("share above 1")
        {}[self.share]

class Unread(FedAvg, frozen=True):
    share: Nowhere = 0

class Twofold(FedAvg, frozen=True):
    share: list[int] | tuple[int, ...] = ()
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
    assert isinstance(made, Custom)
    assert isinstance(made.inner, FedAvg) and getattr(made.inner, "gain", None) == 2.0


@pytest.mark.parametrize(
    ("name", "options", "key", "expected"),
    [
        ("of_mine:Yours", {}, "strategy", "module:Class that can be imported (AttributeError"),
        ("of_mine:", {}, "strategy", "module:Class that can be imported (AttributeError"),
        ("of_yours:Mine", {}, "strategy", "module:Class that can be imported (ModuleNotFoundError"),
        (":Mine", {}, "strategy", "module:Class that can be imported (ValueError"),
        ("broken_one:Mine", {}, "strategy", "module:Class that can be imported (ZeroDivisionError"),
        ("of_mine:number", {}, "strategy", "a subclass of sedge_cloud.Strategy"),
        ("of_mine:Plain", {}, "strategy", "a subclass of sedge_cloud.Strategy"),
        ("of_mine:Unread", {}, "strategy", "a class whose annotations can be read (NameError: "),
        ("of_mine:Mine", {"gain": "much"}, "gain", "`float`, got `str`"),
        ("of_mine:Mine", {"gains": 1}, "gains", "an option of of_mine:Mine: gain"),
        ("of_mine:Needing", {}, "share", "a value: of_mine:Needing has no default"),
        ("of_mine:Ranged", {"share": 3}, "share", "at most 2"),
        (
            "of_mine:Ranged", {"share": 2}, "options",
            "options that of_mine:Ranged accepts (ValueError: share above",
        ),
        ("of_mine:Ranged", {}, "options", "options that of_mine:Ranged accepts (KeyError: 0.5)"),
        ("of_mine:Twofold", {"share": [1]}, "share", "Type unions may not contain more than one"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("own")
def test_what_is_refused_of_ones_own(
    name: str, options: dict[str, object], key: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make_strategy(name, options)
    assert caught.value.key == key
    assert caught.value.expected.startswith(expected)
