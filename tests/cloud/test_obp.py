"""FedOBP's plan and apply: options, first rounds, statistics, hostile values. The paper is in paper/."""

import numpy as np
import pytest

from sedge_cloud.obp import IMPORTANCE, FedOBP
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.errors import ConfigError, LocalError
from sedge_protocol.layout import Layout, Role, Theta

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


def trained(**changes: float) -> Theta:
    """The global model with single elements changed: ``trained(i3=2.0)``."""
    theta = THETA.copy()
    for key, value in changes.items():
        theta[int(key[1:])] = value
    return theta


def plan(strategy: FedOBP, memory: Memory, theta: Theta = THETA) -> Assignment:
    return strategy.plan(State(LAYOUT, theta, initial=np.full(N, 5, np.float32)), memory)


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
    assignment = plan(FedOBP(quantile=0.8), Memory(history), theta)
    assert personal(assignment) == {1: 3.0, 4: 1.0, 14: 15.0}
    start = theta.copy()
    assert assignment.patch is not None
    assignment.patch.scatter_into(start)
    assert start[4] == history[4]
    assert start[9] == theta[9]


def test_statistics_are_kept_and_never_scored() -> None:
    assignment = plan(HALF, Memory(trained(i6=1e6, i7=9.0, i8=9.0, i0=0.1)))
    assert personal(assignment) == {0: pytest.approx(0.1)}
    assert assignment.keep == ("norm.num_batches_tracked", "norm.running_var")
    assert assignment.upload


def test_apply_averages_personal_elements_but_no_statistics() -> None:
    state = HALF.init(LAYOUT, THETA)
    after = HALF.apply(state, [Update("a", 1, trained(i0=4, i7=4)), Update("b", 3, THETA)])
    np.testing.assert_array_equal(after.theta, trained(i0=1))
    assert after.round == 1


@pytest.mark.parametrize("quantile", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("norm", ["none", "global", "layer"])
def test_equal_models_have_nothing_personal(quantile: float, norm: str) -> None:
    strategy = FedOBP(quantile, norm=norm)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert plan(strategy, Memory(THETA)).patch is None


def test_new_device_starts_from_the_global_model_or_with_the_first_as_its_history() -> None:
    theta = np.full(N, 5, np.float32)  # as the first model
    theta[[0, 13]] = 7
    assignment = plan(HALF, Memory(), theta)
    assert assignment.patch is None
    assert assignment.keep == LAYOUT.statistics
    assert assignment.arrays == {}
    assignment = plan(FedOBP(quantile=0.5, cold_start="init"), Memory(), theta)
    assert personal(assignment) == {0: 5.0, 13: 5.0}
    assert assignment.keep == LAYOUT.statistics


def test_known_device_is_never_given_the_first_model() -> None:
    warm, cold = FedOBP(quantile=0.5), FedOBP(quantile=0.5, cold_start="init")
    memory = Memory(trained(i2=1.0), round=1)
    assert personal(plan(warm, memory)) == personal(plan(cold, memory)) == {2: 1.0}


def test_product_score_weighs_by_the_trained_value() -> None:
    theta = trained(i0=0.0, i1=10.0)
    history = trained(i0=2.0, i1=11.0)
    # squared: 4 and 1; |(th_i - th_g) th_i|: 4 and 11
    assert personal(plan(FedOBP(quantile=0.95), Memory(history), theta)) == {0: 2.0}
    product = FedOBP(quantile=0.95, score="product")
    assert personal(plan(product, Memory(history), theta)) == {1: 11.0}


def test_layer_norm_lets_each_tensor_compete_alike() -> None:
    memory = Memory(trained(i0=100.0, i1=60.0, i9=0.1, i14=0.2))
    assert set(personal(plan(FedOBP(quantile=0.85), memory))) == {0, 1}
    assert set(personal(plan(FedOBP(quantile=0.7, norm="layer"), memory))) == {0, 1, 9, 14}
    # 1 reaches 0.36 inside its tensor, 0, 9 and 14 reach 1.
    assert set(personal(plan(FedOBP(quantile=0.75, norm="layer"), memory))) == {0, 9, 14}


def test_global_norm_is_no_norm() -> None:
    memory = Memory(np.random.default_rng(1).normal(size=N).astype(np.float32))
    assert personal(plan(FedOBP(0.6, norm="global"), memory)) == personal(plan(FedOBP(0.6), memory))


@pytest.mark.parametrize(
    ("classifier_only", "chosen"),
    [
        (False, {0, 1, 9, 10}),
        (True, {9, 10}),
        (("fc.weight", "fc.bias"), {9, 10}),
        (("fc.bias",), set[int]()),
        (("conv.weight", "fc.bias"), {0, 1}),
        (("fc.bias", "conv.weight", "fc.bias"), {0, 1}),
    ],
)
def test_classifier_only_scores_and_chooses_among_these(
    classifier_only: bool | tuple[str, ...], chosen: set[int]
) -> None:
    memory = Memory(trained(i0=9.0, i1=8.0, i9=3.0, i10=2.0))
    strategy = FedOBP(quantile=0.0, classifier_only=classifier_only)
    assert set(personal(plan(strategy, memory))) == chosen


def test_classifier_quantile_counts_the_classifier_only() -> None:
    memory = Memory(np.arange(N, dtype=np.float32))
    # 6 elements: k = 5 - floor(0.6 * 5) = 2; of all 12 it would be 5.
    assert set(personal(plan(FedOBP(0.6, classifier_only=True), memory))) == {13, 14}


@pytest.mark.parametrize("name", ["fc.weigth", "norm.running_var"])
def test_init_refuses_names_that_are_no_parameters(name: str) -> None:
    with pytest.raises(ConfigError, match=r"classifier_only.*fc\.bias"):
        FedOBP(classifier_only=("fc.bias", name)).init(LAYOUT, THETA)


def test_without_ema_nothing_is_stored() -> None:
    assert plan(HALF, Memory(trained(i0=1.0))).arrays == {}


def test_ema_remembers_what_was_personal() -> None:
    strategy = FedOBP(quantile=0.95, ema=0.5)
    first = plan(strategy, Memory(trained(i0=4.0)))
    assert personal(first) == {0: 4.0}
    np.testing.assert_array_equal(first.arrays[IMPORTANCE], [16.0] + [0.0] * 11)
    later = Memory(trained(i0=1.0, i9=2.0), round=2, arrays=first.arrays)
    second = plan(strategy, later)
    assert personal(second) == {0: 1.0}  # E_0 = .5 * 1 + .5 * 16 = 8.5 beats E_9 = .5 * 4 = 2
    np.testing.assert_array_equal(second.arrays[IMPORTANCE], [8.5, 0, 0, 0, 0, 0, 2] + [0] * 5)
    np.testing.assert_array_equal(later.arrays[IMPORTANCE], [16.0] + [0.0] * 11)
    assert personal(plan(FedOBP(quantile=0.95), later)) == {9: 2.0}


def test_planning_twice_is_planning_once() -> None:
    strategy = FedOBP(quantile=0.5, ema=0.3)
    memory = Memory(trained(i0=1.0), arrays={IMPORTANCE: np.ones(12, np.float32)})
    first, second = plan(strategy, memory), plan(strategy, memory)
    assert personal(first) == personal(second)
    np.testing.assert_array_equal(first.arrays[IMPORTANCE], second.arrays[IMPORTANCE])


def test_stored_importance_is_not_normalised() -> None:
    strategy = FedOBP(quantile=0.5, ema=0.5, norm="layer")
    stored = plan(strategy, Memory(trained(i0=4.0, i14=2.0))).arrays[IMPORTANCE]
    np.testing.assert_array_equal(stored, [16.0] + [0.0] * 10 + [4.0])


def test_importance_of_another_layout_is_our_bug() -> None:
    memory = Memory(trained(i0=1.0), arrays={IMPORTANCE: np.ones(3, np.float32)})
    with pytest.raises(LocalError, match=r"importance: shape \(3,\) in memory, expected \(12,\)"):
        plan(FedOBP(ema=0.5), memory)


@pytest.mark.parametrize("score", ["squared", "product"])
@pytest.mark.parametrize("norm", ["none", "layer"])
def test_enormous_but_finite_models_neither_crash_nor_poison(score: str, norm: str) -> None:
    strategy = FedOBP(quantile=0.5, score=score, norm=norm, ema=0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    theta = trained(i0=-3e38, i1=3e38)
    assignment = plan(strategy, Memory(trained(i0=3e38, i1=-3e38, i9=1e38, i13=2e19)), theta)
    assert np.isfinite(assignment.arrays[IMPORTANCE]).all()
    assert {0, 1, 9} <= set(personal(assignment))


def test_non_finite_history_is_our_bug() -> None:
    with pytest.raises(LocalError, match="index 2 is not finite"):
        plan(HALF, Memory(trained(i2=float("nan"))))


def test_model_of_statistics_only_has_nothing_to_choose() -> None:
    layout = Layout.of([("norm.running_mean", (3,), Role.STATISTIC)])
    state = HALF.init(layout, np.zeros(3, np.float32))
    assert HALF.plan(state, Memory(np.ones(3, np.float32))).patch is None


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"quantile": -0.1}, "quantile"),
        ({"quantile": 1.0001}, "quantile"),
        ({"quantile": float("nan")}, "quantile"),
        ({"score": "cubed"}, "score"),
        ({"norm": "batch"}, "norm"),
        ({"cold_start": "zero"}, "cold_start"),
        ({"ema": 1.0}, "ema"),
        ({"ema": -0.1}, "ema"),
        ({"ema": float("nan")}, "ema"),
        ({"classifier_only": ()}, "classifier_only"),
    ],
)
def test_options_out_of_range(options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FedOBP(**options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.key == key
    np.testing.assert_equal(caught.value.found, options[key])
