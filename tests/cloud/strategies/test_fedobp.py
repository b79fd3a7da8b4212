"""FedOBP's plan and apply: options, first rounds, statistics, hostile values. The paper is in paper/."""

from math import isqrt

import numpy as np
import pytest
from tests.cloud.contexts import a_layout, context_of

from sedge_cloud.config import RobustConfig, RunConfig
from sedge_cloud.run_file import check_run
from sedge_cloud.strategies.fedobp import IMPORTANCE, FedOBP
from sedge_cloud.strategy import Assignment, ClientModel
from sedge_protocol.errors import ConfigError, LocalError, StrategyError
from sedge_protocol.importance import Score, select
from sedge_protocol.layout import Theta
from sedge_protocol.wire.work import DeviceScoring, Work

LAYOUT = a_layout(
    {
        "conv.weight": (2, 3),
        "norm.num_batches_tracked": (),
        "norm.running_var": (2,),
        "fc.weight": (2, 2),
        "fc.bias": (2,),
    }
)
N = 15
THETA = np.zeros(N, np.float32)


def trained(**changes: float) -> Theta:
    """The global model with single elements changed: ``trained(i3=2.0)``."""
    theta = THETA.copy()
    for key, value in changes.items():
        theta[int(key[1:])] = value
    return theta


def plan(strategy: FedOBP, client: ClientModel, theta: Theta = THETA) -> Assignment:
    return strategy.plan(context_of(LAYOUT, theta, initial=np.full(N, 5, np.float32)), client)


def personal(assignment: Assignment) -> dict[int, float]:
    if assignment.patch is None:
        return {}
    indices, values = assignment.patch.indices, assignment.patch.values
    assert indices is not None
    assert indices.dtype == np.uint32
    assert values.dtype == np.float32
    assert assignment.patch.size == N
    assert (np.diff(indices.astype(np.int64)) > 0).all()
    return {int(i): float(v) for i, v in zip(indices, values, strict=True)}


HALF = FedOBP(quantile=0.5)  # 12 scored elements: at most 11 - floor(5.5) = 6 are personal


def test_statistics_are_never_scored() -> None:
    assignment = plan(HALF, ClientModel(trained(i6=1e6, i7=9.0, i8=9.0, i0=0.1)))
    assert personal(assignment) == {0: pytest.approx(0.1)}
    assert (assignment.work, assignment.shares_statistics) == (Work(), False)


def test_importance_of_another_layout_is_our_bug() -> None:
    client = ClientModel(trained(i0=1.0), arrays={IMPORTANCE: np.ones(3, np.float32)})
    with pytest.raises(StrategyError, match=r"importance: shape \(3,\) in memory, expected \(12"):
        plan(FedOBP(ema=0.5), client)


@pytest.mark.parametrize(("score", "norm"), [("squared", "layer"), ("product", "none")])
def test_enormous_but_finite_models_neither_crash_nor_poison(score: str, norm: str) -> None:
    strategy = FedOBP(quantile=0.5, score=score, norm=norm, ema=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    theta = trained(i0=-3e38, i1=3e38)
    assignment = plan(strategy, ClientModel(trained(i0=3e38, i1=-3e38, i9=1e38, i13=2e19)), theta)
    assert np.isfinite(assignment.arrays[IMPORTANCE]).all()
    assert {0, 1, 9} <= set(personal(assignment))


def test_non_finite_history_is_our_bug() -> None:
    with pytest.raises(LocalError, match="index 2 is not finite"):
        plan(HALF, ClientModel(trained(i2=float("nan"))))


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"classifier_only": ()}, "classifier_only"),
        ({"holdout": 0.2, "scoring": "device"}, "holdout"),
        # Only a device has a gradient, and only the cloud can do what is beyond the papers.
        ({"score": "gradient"}, "score"),
        ({"score": "fisher"}, "score"),
        ({"ema": 0.5, "scoring": "device"}, "ema"),
        ({"cold_start": "init", "scoring": "device"}, "cold_start"),
        ({"energy": 0.5, "scoring": "device"}, "energy"),
        ({"most": 0.5, "scoring": "device"}, "most"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FedOBP(**options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.key == key
    np.testing.assert_equal(caught.value.found, options[key])


@pytest.mark.parametrize("score", ["squared", "fisher"])
def test_a_device_is_told_how_to_score(score: Score) -> None:
    strategy = FedOBP(0.9, score, norm="layer", classifier_only=True, scoring="device")
    assignment = plan(strategy, ClientModel())
    assert assignment.work.scoring == DeviceScoring(0.9, score, "layer", ("fc.weight", "fc.bias"))
    assert assignment.patch is None and assignment.work.upload
    whole = plan(FedOBP("paper", scoring="device"), ClientModel())
    assert whole.work.scoring == DeviceScoring(0.99993)  # all parameters, whatever their names


def test_nothing_is_planned_from_a_device_that_scores_for_itself() -> None:
    """So a coordinator that held no model of any device, but for the sum, would plan the same."""

    class Unread(ClientModel):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"client.{name} was read")

    strategy = FedOBP(scoring="device")
    assert plan(strategy, Unread(trained(i0=1.0))) == plan(strategy, ClientModel())


def test_a_robust_rule_is_followed() -> None:
    check_run(RunConfig(strategy="fedobp", robust=RobustConfig(rule="median")))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("columns", [5, 321, 300_000])
def test_the_default_personalises_a_model_of_any_size(rows: int, columns: int) -> None:
    """The square root of its elements, also where they come in pairs, as in a two-class head."""
    layout = a_layout({"fc.weight": (rows, columns)})
    row = np.random.default_rng(0).permutation(columns).astype(np.float32)
    own = np.concatenate([row, -row][:rows])
    context = context_of(layout, np.zeros(own.size, np.float32))
    patch = FedOBP().plan(context, ClientModel(own)).patch
    assert patch is not None
    assert 0 <= isqrt(own.size) - patch.values.size < rows
    scoring = FedOBP(scoring="device").plan(context, ClientModel()).work.scoring
    assert scoring is not None
    assert select(np.square(own), scoring.quantile).size == patch.values.size


@pytest.mark.parametrize(
    ("strategy", "elements", "said"),
    [
        (FedOBP("paper"), 577, "at most 1 personal, which amounts to FedAvg"),
        (FedOBP("paper"), 577, "omit quantile to keep 24"),
        (FedOBP(quantile=1), 577, "quantile 1 of 577 elements keeps at most 0 personal"),
        (FedOBP("paper", scoring="device"), 577, "quantile 0.99993 of 577 elements keeps at most 1 per"),
        (FedOBP(energy=0.5, most=0.001), 577, "most = 0.001 of 577 elements keeps at most 0 personal"),
        (FedOBP(quantile=0.95), 577, ""),
        (FedOBP(), 577, ""),
        (FedOBP(energy=0.5), 577, ""),
        (FedOBP("paper"), 582_026, ""),
    ],
)  # fmt: skip
def test_a_personal_set_next_to_nothing_is_said(strategy: FedOBP, elements: int, said: str) -> None:
    layout = a_layout({"w": (elements,)})
    remarks = strategy.remarks([layout])
    assert len(remarks) == bool(said)
    assert all(remark.startswith("fedobp: ") and said in remark for remark in remarks)


def test_a_tie_does_not_empty_the_personal_set_without_a_word() -> None:
    """The rows of a two-class head move by opposite amounts: the largest score is there twice."""
    layout = a_layout({"fc.weight": (2, 3)})
    context = context_of(layout, np.zeros(6, np.float32))
    client = ClientModel(np.array([0.5, -2, 1, -0.5, 2, -1], np.float32))
    one, three = FedOBP(quantile=0.8), FedOBP(quantile=0.5)
    assert one.plan(context, client).patch is None  # one by the definition
    patch = three.plan(context, client).patch  # three by the definition
    assert patch is not None and patch.indices is not None and patch.indices.tolist() == [1, 4]
    for strategy in (one, three):
        (said,) = strategy.remarks([layout], 0)[-1:]
        assert said.startswith("fedobp: no element is personal, as in FedAvg; tied scores")
    assert not three.remarks([layout], 1)
    by_device = FedOBP(quantile=0.5, scoring="device")
    assert not by_device.remarks([layout], 0)  # the cloud does not know
