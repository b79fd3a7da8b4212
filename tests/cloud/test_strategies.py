"""Run-file options to strategies, and the one error that tells what exists."""

from collections.abc import Mapping

import numpy as np
import pytest

from sedge_cloud.baselines import FedAvg, LocalOnly
from sedge_cloud.obp import FedOBP
from sedge_cloud.strategies import STRATEGIES, make_strategy
from sedge_cloud.strategy import Memory, Strategy
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role


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
    ],
)
def test_builds(name: str, options: Mapping[str, object], strategy: Strategy) -> None:
    made = make_strategy(name, options)
    assert made == strategy
    assert made.name == name


@pytest.mark.parametrize(
    ("name", "options", "key", "found"),
    [
        ("fedprox", {}, "strategy", "fedprox"),
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
    with pytest.raises(ConfigError, match="fedavg, fedobp, local_only"):
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
    layout = Layout.of([("fc.weight", (2, 2), Role.PARAMETER)])
    strategy = make_strategy(name, {})
    assert strategy.name == name
    state = strategy.init(layout, np.ones(4, np.float32))
    assert strategy.plan(state, Memory()).patch is None
    state = strategy.apply(state, [])
    assert state.round == 1
    np.testing.assert_array_equal(state.theta, np.ones(4))
