"""FedOBP's plan and apply: options, first rounds, statistics, hostile values. The paper is in paper/."""

import msgspec
import numpy as np
import pytest
from tests.cloud.contexts import context_of

from sedge_cloud.config import RobustConfig, RunConfig
from sedge_cloud.strategies.fedobp import IMPORTANCE, FedOBP, Scoring
from sedge_cloud.strategy import Assignment, ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError, LocalError, StrategyError
from sedge_protocol.importance import Score
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import DeviceScoring, Work

LAYOUT = Layout.of(
    [
        ("conv.weight", (2, 3), Role.PARAMETER),
        ("norm.num_batches_tracked", (), Role.STATISTIC),
        ("norm.running_var", (2,), Role.STATISTIC),
        ("fc.weight", (2, 2), Role.PARAMETER),
        ("fc.bias", (2,), Role.PARAMETER),
    ]
)
N = 15
THETA = np.zeros(N, np.float32)
CONTEXT = context_of(LAYOUT, THETA)
SCORINGS: tuple[Scoring, ...] = ("cloud", "device")


def trained(**changes: float) -> Theta:
    """The global model with single elements changed: ``trained(i3=2.0)``."""
    theta = THETA.copy()
    for key, value in changes.items():
        theta[int(key[1:])] = value
    return theta


def plan(strategy: FedOBP, client: ClientModel, theta: Theta = THETA) -> Assignment:
    return strategy.plan(context_of(LAYOUT, theta, initial=np.full(N, 5, np.float32)), client)


def personal(assignment: Assignment) -> dict[int, float]:
    """The patch as {index: value}."""
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


def test_patch_carries_absolute_values_of_the_largest_changes() -> None:
    theta = np.arange(N, dtype=np.float32)
    history = theta.copy()
    history[[1, 4, 9, 14]] += np.array([2, -3, 0.5, 1], np.float32)
    assignment = plan(FedOBP(quantile=0.8), ClientModel(history), theta)
    assert personal(assignment) == {1: 3.0, 4: 1.0, 14: 15.0}
    start = theta.copy()
    assert assignment.patch is not None
    assignment.patch.scatter_into(start)
    assert start[4] == history[4]
    assert start[9] == theta[9]


def test_statistics_are_never_scored() -> None:
    assignment = plan(HALF, ClientModel(trained(i6=1e6, i7=9.0, i8=9.0, i0=0.1)))
    assert personal(assignment) == {0: pytest.approx(0.1)}
    assert (assignment.work, assignment.shares_statistics) == (Work(), False)


def test_apply_averages_personal_elements_but_no_statistics() -> None:
    after = HALF.apply(CONTEXT, [Update("a", 1, trained(i0=4, i7=4)), Update("b", 3, THETA)])
    np.testing.assert_array_equal(after.theta, trained(i0=1))


@pytest.mark.parametrize(("quantile", "norm"), [(0.0, "none"), (0.99, "layer"), (1.0, "global")])
def test_equal_models_have_nothing_personal(quantile: float, norm: str) -> None:
    strategy = FedOBP(quantile, norm=norm)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert plan(strategy, ClientModel(THETA)).patch is None


def test_new_device_starts_from_the_global_model_or_with_the_first_as_its_history() -> None:
    theta = np.full(N, 5, np.float32)  # as the first model
    theta[[0, 13]] = 7
    assignment = plan(HALF, ClientModel(), theta)
    assert assignment.patch is None
    assert assignment.arrays == {}
    assignment = plan(FedOBP(quantile=0.5, cold_start="init"), ClientModel(), theta)
    assert personal(assignment) == {0: 5.0, 13: 5.0}


def test_known_device_is_never_given_the_first_model() -> None:
    warm, cold = FedOBP(quantile=0.5), FedOBP(quantile=0.5, cold_start="init")
    client = ClientModel(trained(i2=1.0), round=1)
    assert personal(plan(warm, client)) == personal(plan(cold, client)) == {2: 1.0}


def test_product_score_weighs_by_the_trained_value() -> None:
    theta = trained(i0=0.0, i1=10.0)
    history = trained(i0=2.0, i1=11.0)
    # squared: 4 and 1; |(th_i - th_g) th_i|: 4 and 11
    assert personal(plan(FedOBP(quantile=0.95), ClientModel(history), theta)) == {0: 2.0}
    product = FedOBP(quantile=0.95, score="product")
    assert personal(plan(product, ClientModel(history), theta)) == {1: 11.0}


def test_layer_norm_lets_each_tensor_compete_alike() -> None:
    client = ClientModel(trained(i0=100.0, i1=60.0, i9=0.1, i14=0.2))
    assert set(personal(plan(FedOBP(quantile=0.85), client))) == {0, 1}
    assert set(personal(plan(FedOBP(quantile=0.7, norm="layer"), client))) == {0, 1, 9, 14}
    # 1 reaches 0.36 inside its tensor, 0, 9 and 14 reach 1.
    assert set(personal(plan(FedOBP(quantile=0.75, norm="layer"), client))) == {0, 9, 14}


def test_global_norm_is_no_norm() -> None:
    client = ClientModel(np.random.default_rng(1).normal(size=N).astype(np.float32))
    assert personal(plan(FedOBP(0.6, norm="global"), client)) == personal(plan(FedOBP(0.6), client))


@pytest.mark.parametrize(
    ("classifier_only", "chosen"),
    [
        (False, {0, 1, 9, 10}),
        (True, {9, 10}),
        (("fc.bias",), set[int]()),
        (("fc.bias", "conv.weight", "fc.bias"), {0, 1}),
    ],
)
def test_classifier_only_scores_and_chooses_among_these(
    classifier_only: bool | tuple[str, ...], chosen: set[int]
) -> None:
    client = ClientModel(trained(i0=9.0, i1=8.0, i9=3.0, i10=2.0))
    strategy = FedOBP(quantile=0.0, classifier_only=classifier_only)
    assert set(personal(plan(strategy, client))) == chosen


def test_classifier_quantile_counts_the_classifier_only() -> None:
    client = ClientModel(np.arange(N, dtype=np.float32))
    # 6 elements: k = 5 - floor(0.6 * 5) = 2; of all 12 it would be 5.
    assert set(personal(plan(FedOBP(0.6, classifier_only=True), client))) == {13, 14}


@pytest.mark.parametrize("name", ["fc.weigth", "norm.running_var"])
def test_init_refuses_names_that_are_no_parameters(name: str) -> None:
    with pytest.raises(ConfigError, match=r"classifier_only.*fc\.bias"):
        FedOBP(classifier_only=("fc.bias", name)).init(CONTEXT)


def test_ema_remembers_what_was_personal() -> None:
    strategy = FedOBP(quantile=0.95, ema=0.5)
    first = plan(strategy, ClientModel(trained(i0=4.0)))
    assert personal(first) == {0: 4.0}
    np.testing.assert_array_equal(first.arrays[IMPORTANCE], [16.0] + [0.0] * 11)
    later = ClientModel(trained(i0=1.0, i9=2.0), round=2, arrays=first.arrays)
    second = plan(strategy, later)
    assert personal(second) == {0: 1.0}  # E_0 = .5 * 1 + .5 * 16 = 8.5 beats E_9 = .5 * 4 = 2
    np.testing.assert_array_equal(second.arrays[IMPORTANCE], [8.5, 0, 0, 0, 0, 0, 2] + [0] * 5)
    np.testing.assert_array_equal(later.arrays[IMPORTANCE], [16.0] + [0.0] * 11)
    assert personal(plan(FedOBP(quantile=0.95), later)) == {9: 2.0}
    assert plan(HALF, later).arrays == {}


def test_planning_twice_is_planning_once() -> None:
    strategy = FedOBP(quantile=0.5, ema=0.3)
    client = ClientModel(trained(i0=1.0), arrays={IMPORTANCE: np.ones(12, np.float32)})
    first, second = plan(strategy, client), plan(strategy, client)
    assert personal(first) == personal(second)
    np.testing.assert_array_equal(first.arrays[IMPORTANCE], second.arrays[IMPORTANCE])


def test_stored_importance_is_not_normalised() -> None:
    strategy = FedOBP(quantile=0.5, ema=0.5, norm="layer")
    stored = plan(strategy, ClientModel(trained(i0=4.0, i14=2.0))).arrays[IMPORTANCE]
    np.testing.assert_array_equal(stored, [16.0] + [0.0] * 10 + [4.0])


def test_importance_of_another_layout_is_refused() -> None:
    client = ClientModel(trained(i0=1.0), arrays={IMPORTANCE: np.ones(3, np.float32)})
    with pytest.raises(
        StrategyError, match=r"importance: shape \(3,\) in memory, expected \(12,\)"
    ):
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


def test_model_of_statistics_only_has_nothing_to_choose() -> None:
    layout = Layout.of([("norm.running_mean", (3,), Role.STATISTIC)])
    context = context_of(layout, np.zeros(3, np.float32))
    assert HALF.plan(context, ClientModel(np.ones(3, np.float32))).patch is None


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"classifier_only": ()}, "classifier_only"),
        ({"prefixes": ()}, "prefixes"),
        ({"prefixes": (4, 2)}, "prefixes"),
        # Of two ways to tell how many are personal only one can hold.
        ({"energy": 0.5, "prefixes": True}, "energy"),
        ({"prefixes": True, "scoring": "device"}, "prefixes"),
        ({"holdout": 0.2, "scoring": "device"}, "holdout"),
        # Only a device has a gradient, and only the cloud can do what is beyond the papers.
        ({"score": "gradient"}, "score"),
        ({"score": "fisher"}, "score"),
        ({"ema": 0.5, "scoring": "device"}, "ema"),
        ({"cold_start": "init", "scoring": "device"}, "cold_start"),
        ({"energy": 0.5, "scoring": "device"}, "energy"),
        ({"most": 0.5, "scoring": "device"}, "most"),
        ({"exclude_personal": True, "scoring": "device"}, "exclude_personal"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FedOBP(**options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.key == key
    np.testing.assert_equal(caught.value.found, options[key])


# A device scores for itself.


@pytest.mark.parametrize("score", ["squared", "fisher"])
def test_a_device_is_told_how_to_score(score: Score) -> None:
    strategy = FedOBP(0.9, score, norm="layer", classifier_only=True, scoring="device")
    assignment = plan(strategy, ClientModel())
    assert assignment.work.scoring == DeviceScoring(0.9, score, "layer", ("fc.weight", "fc.bias"))
    assert assignment.patch is None and assignment.work.upload
    whole = plan(FedOBP(scoring="device"), ClientModel())
    assert whole.work.scoring == DeviceScoring(0.99993)  # all parameters, whatever their names


def test_nothing_is_planned_from_a_device_that_scores_for_itself() -> None:
    """So a coordinator that held no model of any device, but for the sum, would plan the same."""

    class Unread(ClientModel):
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"client.{name} was read")

    strategy = FedOBP(scoring="device")
    assert plan(strategy, Unread(trained(i0=1.0))) == plan(strategy, ClientModel())


def test_a_device_that_scores_for_itself_is_averaged_like_any_other() -> None:
    updates = [Update("a", 1, trained(i0=4, i7=4)), Update("b", 3, THETA)]
    for scoring in SCORINGS:
        after = FedOBP(scoring=scoring).apply(CONTEXT, updates)
        np.testing.assert_array_equal(after.theta, trained(i0=1))


def test_names_of_tensors_are_checked_whoever_scores() -> None:
    for scoring in SCORINGS:
        with pytest.raises(ConfigError, match=r"classifier_only.*fc\.bias"):
            FedOBP(classifier_only=("fc.weigth",), scoring=scoring).init(CONTEXT)


# Beyond the papers; whole runs are in paper/test_beyond_paper.py.


def test_so_many_as_hold_a_share_of_the_scores() -> None:
    client = ClientModel(trained(i0=4.0, i9=2.0, i13=1.0))  # 16, 4 and 1 of 21
    for energy, expected in ((0.7, {0}), (0.8, {0, 9}), (0.96, {0, 9, 13})):
        assert set(personal(plan(FedOBP(energy=energy, most=0.5), client))) == expected
    assert set(personal(plan(FedOBP(energy=0.96, most=0.2), client))) == {0, 9}
    assert plan(FedOBP(energy=0.5, most=0.5), ClientModel(THETA)).patch is None


def test_a_share_of_scores_that_are_no_numbers_is_our_bug() -> None:
    with pytest.raises(LocalError, match="index 2 is not finite"):
        plan(FedOBP(energy=0.5), ClientModel(trained(i2=float("nan"))))


def test_the_device_may_pick_how_many_are_personal() -> None:
    strategy = FedOBP(quantile=0.5, prefixes=(0, 1, 3), holdout=0.25)
    cold = plan(strategy, ClientModel())
    assert (cold.patch, cold.levels, cold.holdout) == (None, None, 0.25)
    found = plan(strategy, ClientModel(trained(i0=4.0, i6=99.0, i9=-2.0, i13=1.0, i14=0.5)))
    assert personal(found) == {0: 4.0, 9: -2.0, 13: 1.0}
    assert found.levels is not None
    assert (found.levels.tolist(), found.holdout) == ([1, 2, 2], 0.25)
    alike = plan(strategy, ClientModel(THETA))
    assert (alike.patch, alike.levels, alike.holdout) == (None, None, 0.25)


@pytest.mark.parametrize("more", [{}, {"norm": "layer"}, {"ema": 0.5}, {"classifier_only": True}])
def test_one_size_is_the_quantile_that_keeps_as_many(more: dict[str, object]) -> None:
    """Of 12 elements 5, of 6 in the classifier 2; ties with the next one go in both."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        client = ClientModel(rng.integers(-3, 4, N).astype(np.float32))
        count = 2 if more.get("classifier_only") else 5
        plain = plan(FedOBP(quantile=0.6, **more), client)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        one = plan(FedOBP(prefixes=(count,), **more), client)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        assert personal(one) == personal(plain)
        assert one.levels is None or not one.levels.any()
        assert one.arrays.keys() == plain.arrays.keys()


def test_personal_elements_can_stay_out_of_the_average() -> None:
    strategy = FedOBP(exclude_personal=True)
    patch = SparseVector(N, np.array([0, 1], np.uint32), np.array([8, 8], np.float32))
    other = SparseVector(N, np.array([1], np.uint32), np.array([6], np.float32))
    change = SparseVector(N, None, np.ones(N, np.float32))
    updates = [Update("a", 1, THETA, patch, change), Update("b", 3, THETA, other, change)]
    after = strategy.apply(CONTEXT, updates)
    expected = np.where(LAYOUT.mask(LAYOUT.statistics), 0, 1).astype(np.float32)
    expected[1] = 0  # everybody's own
    np.testing.assert_array_equal(after.theta, expected)
    assert not strategy.coordinate_rules and FedOBP().coordinate_rules


def test_a_rule_that_is_not_followed_is_refused() -> None:
    config = RunConfig(strategy="fedobp", robust=RobustConfig(rule="median"))
    config.check()
    config = msgspec.structs.replace(config, options={"exclude_personal": True})
    with pytest.raises(ConfigError, match=r"robust\.rule"):
        config.check()
