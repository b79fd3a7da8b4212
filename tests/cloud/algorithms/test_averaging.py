"""The running mean against exact arithmetic, its memory, and what it refuses."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest

from sedge_cloud.algorithms.averaging import average, moved, robust_mean, shared_mean, weighted_mean
from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.strategy import State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Layout, Role, Theta

LAYOUT = Layout.of(
    [
        ("norm.weight", (2,), Role.PARAMETER),
        ("norm.running_mean", (3,), Role.STATISTIC),
        ("head.weight", (2,), Role.PARAMETER),
    ]
)


def vector(*values: float) -> Theta:
    return np.array(values, np.float32)


def state(theta: Theta) -> State:
    return State(LAYOUT, theta, initial=np.zeros(7, np.float32), round=4)


def updates(weighted: Iterable[tuple[int, Theta]]) -> Iterator[Update]:
    """Updates of these models, with these numbers of examples."""
    return (Update("d", count, theta) for count, theta in weighted)


@pytest.mark.parametrize("devices", [1, 2, 7])
def test_is_the_exact_mean_rounded_once(devices: int) -> None:
    rng = np.random.default_rng(devices)
    vectors = rng.normal(size=(devices, 50)).astype(np.float32)
    counts = [int(count) for count in rng.integers(1, 5000, devices)]
    old = rng.normal(size=50).astype(np.float32)
    mean = weighted_mean(updates(zip(counts, vectors, strict=True)), old)
    assert mean.dtype == np.float32
    for i in range(50):
        exact = sum(Fraction(float(v[i])) * m for m, v in zip(counts, vectors, strict=True))
        assert mean[i] == np.float32(float(exact / sum(counts)))


def coded(rng: np.random.Generator, size: int, count: int | None) -> SparseVector:
    """Normal values at ``count`` places, None: at all."""
    values = rng.normal(size=size if count is None else count).astype(np.float32)
    if count is None:
        return SparseVector(size, None, values)
    indices = np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)
    return SparseVector(size, indices, values)


@pytest.mark.parametrize("delta", [None, 0, 7, 40, 50])
@pytest.mark.parametrize("patch", [None, 0, 5, 50])
def test_what_was_sent_is_averaged_like_the_whole_models(
    patch: int | None, delta: int | None
) -> None:
    """The mean of patches and deltas on the global is that of the models they make.

    The models are rounded to float32 one by one, the sums only once: half an ulp of a model apart.
    """
    rng = np.random.default_rng(3)
    old = rng.normal(size=50).astype(np.float32)
    sent = [
        Update(
            f"d{i}",
            int(rng.integers(1, 900)),
            old,
            None if patch is None else coded(rng, 50, patch),
            coded(rng, 50, delta) if i else None,
        )
        for i in range(9)
    ]
    found = weighted_mean(sent, old)
    whole = weighted_mean([Update(u.device, u.num_examples, u.trained) for u in sent], old)
    largest = max(float(np.abs(u.trained).max()) for u in sent)
    np.testing.assert_allclose(
        found, whole, rtol=0, atol=2 * float(np.spacing(np.float32(largest)))
    )
    total = sum(u.num_examples for u in sent)
    for k in range(50):
        exact = Fraction(0)
        for u in sent:
            moved = Fraction(float(old[k]))
            if u.patch is not None:
                moved = at(u.patch, k) or moved
            exact += u.num_examples * (moved + (at(u.delta, k) or 0 if u.delta else 0))
        assert found[k] == pytest.approx(float(exact / total), rel=1e-7, abs=1e-9)


def at(vector: SparseVector, place: int) -> Fraction | None:
    """A vector's value at one place, exactly; None where it has none."""
    if vector.indices is None:
        return Fraction(float(vector.values[place]))
    found = np.flatnonzero(vector.indices == place)
    return Fraction(float(vector.values[found[0]])) if found.size else None


def test_trained_is_what_the_device_holds() -> None:
    """Patch over the global, then one float32 addition."""
    rng = np.random.default_rng(4)
    old = rng.normal(size=50).astype(np.float32)
    patch, delta = coded(rng, 50, 9), coded(rng, 50, 20)
    before = old.copy()
    update = Update("d", 3, old, patch, delta)
    expected = old.copy()
    assert patch.indices is not None and delta.indices is not None
    expected[patch.indices] = patch.values
    expected[delta.indices] += delta.values
    assert update.trained.tobytes() == expected.tobytes() and update.trained is update.trained
    np.testing.assert_array_equal(old, before)
    assert Update("d", 3, old).trained is old


def test_only_what_was_sent_is_touched() -> None:
    """A sum that is NaN elsewhere stays so: nothing reads or writes there."""
    old = np.ones(50, np.float32)
    total = np.full(50, np.nan)
    places = np.array([3, 40], np.uint32)
    total[places] = 0
    sent = SparseVector(50, places, np.array([2, 4], np.float32))
    Update("d", 3, old, None, sent).add_change(total, 3.0, old)
    assert total[3] == 6 and total[40] == 12 and np.isnan(total).sum() == 48
    Update("d", 3, old, sent, None).add_change(total, 10.0, old)
    assert total[3] == 16 and total[40] == 42 and np.isnan(total).sum() == 48


def test_equal_vectors_keep_every_bit() -> None:
    theta = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    old = np.random.default_rng(1).normal(size=1000).astype(np.float32)
    mean = weighted_mean(updates([(3, theta), (7, theta), (13, theta)]), old)
    np.testing.assert_array_equal(mean, theta)


def test_small_update_next_to_a_large_one_is_not_lost() -> None:
    # float32 sums stop counting at 2**24: 2**24 + 1 = 2**24.
    many = [(2**24, vector(1.0)), (1, vector(1.0)), (1, vector(1.0))]
    assert weighted_mean(updates(many), vector(0.0))[0] == 1.0


@pytest.mark.parametrize("weighted", [[], [(0, vector(9, 9))]])
def test_nothing_to_average_gives_a_copy_of_the_old(weighted: list[tuple[int, Theta]]) -> None:
    old = vector(1, 2)
    mean = weighted_mean(updates(weighted), old)
    np.testing.assert_array_equal(mean, old)
    assert not np.shares_memory(mean, old)


def test_holds_one_vector_at_a_time() -> None:
    seen: list[weakref.ref[Theta]] = []
    most_alive = 0

    def models() -> Iterator[Update]:
        nonlocal most_alive
        for i in range(6):
            theta = np.full(100, i, np.float32)
            seen.append(weakref.ref(theta))
            most_alive = max(most_alive, sum(ref() is not None for ref in seen))
            yield Update("d", 1, theta)

    weighted_mean(models(), np.zeros(100, np.float32))
    assert most_alive <= 2  # the one just made, and the last, still bound in the loop


@pytest.mark.parametrize(
    ("weight", "theta", "message"),
    [
        (1, vector(1, np.nan), "element 1 is nan"),
        (1, vector(np.inf, 1), "element 0 is inf"),
        (-1, vector(1, 1), "weight -1"),
        (1, vector(1), r"shape \(1,\), expected \(2,\)"),
        (1, vector(1, 1).reshape(1, 2), r"shape \(1, 2\), expected \(2,\)"),
    ],
)
def test_refuses(weight: int, theta: Theta, message: str) -> None:
    with pytest.raises(LocalError, match=message):
        weighted_mean(updates([(3, vector(1, 1)), (weight, theta)]), vector(0, 0))


def test_a_mean_beyond_float32_is_refused() -> None:
    """Two finite models: their unrounded sum may still end a hair above the largest float32."""
    largest = float(np.finfo(np.float32).max)
    old = vector(largest)
    sent = SparseVector(1, None, vector(largest))
    with pytest.raises(LocalError, match=r"element 0 is 6\.8"):
        weighted_mean([Update("d", 1, old, None, sent)], old)


def test_average_weighs_by_examples_and_leaves_statistics() -> None:
    old = np.arange(7, dtype=np.float32)
    before = state(old)
    after = average(
        before,
        [
            Update("a", 1, np.full(7, 10, np.float32)),
            Update("b", 3, np.full(7, 20, np.float32)),
        ],
    )
    np.testing.assert_array_equal(after.theta, vector(17.5, 17.5, 2, 3, 4, 17.5, 17.5))
    assert after.round == 5
    assert after.initial is before.initial
    np.testing.assert_array_equal(before.theta, np.arange(7))


def test_average_of_no_update_counts_the_round() -> None:
    after = average(state(np.ones(7, np.float32)), [])
    np.testing.assert_array_equal(after.theta, np.ones(7))
    assert after.round == 5


def test_fixed_tensors_stay() -> None:
    before = state(np.arange(7, dtype=np.float32))
    after = average(before, [Update("a", 1, np.full(7, 9, np.float32))], fixed=("head.weight",))
    np.testing.assert_array_equal(after.theta, vector(9, 9, 2, 3, 4, 5, 6))
    after = moved(before, np.full(7, 9, np.float32), fixed=("norm.weight",))
    np.testing.assert_array_equal(after.theta, vector(0, 1, 2, 3, 4, 9, 9))
    assert after.round == 5


@pytest.mark.parametrize("part", [slice(None), slice(0, 20), slice(17, 18), slice(20, 50)])
@pytest.mark.parametrize("delta", [None, 0, 7, 50])
@pytest.mark.parametrize("patch", [None, 0, 5, 50])
def test_a_change_is_the_way_to_the_trained_model(
    patch: int | None, delta: int | None, part: slice
) -> None:
    rng = np.random.default_rng(6)
    old = rng.normal(size=50).astype(np.float32)
    update = Update(
        "d",
        1,
        old,
        None if patch is None else coded(rng, 50, patch),
        None if delta is None else coded(rng, 50, delta),
    )
    for theta in (old, old.copy(), np.zeros(50, np.float32)):
        found = update.change(theta, part)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, (update.trained - theta)[part], atol=2e-6)
        assert not np.shares_memory(found, update.trained)


def test_a_scaled_update_goes_part_of_the_way() -> None:
    rng = np.random.default_rng(7)
    old = rng.normal(size=50).astype(np.float32)
    update = Update("d", 3, old, coded(rng, 50, 9), coded(rng, 50, 20))
    way = update.trained - old
    scaled = update.scaled(0.25)
    np.testing.assert_allclose(scaled.trained - old, way / 4, atol=1e-6)
    assert (scaled.num_examples, scaled.base) == (3, update.base)
    np.testing.assert_allclose(update.trained - old, way)
    assert Update("d", 3, old).scaled(0.5).trained is old


@pytest.mark.parametrize("seed", range(5))
def test_shared_mean_leaves_out_whose_own_it_is(seed: int) -> None:
    """Of each element the exact mean over the devices whose patch lacks it."""
    rng = np.random.default_rng(seed)
    old = rng.normal(size=12).astype(np.float32)
    sent = [
        Update(f"d{i}", int(rng.integers(1, 9)), old, coded(rng, 12, 6), coded(rng, 12, 12))
        for i in range(4)
    ]
    sent.append(Update("dense", 0, old, SparseVector(12, None, old + 1), None))
    found = shared_mean(sent, old)
    for k in range(12):
        sharing = [u for u in sent if u.patch is not None and at(u.patch, k) is None]
        if not sharing:
            assert found[k] == old[k]
            continue
        exact = sum(u.num_examples * Fraction(float(u.trained[k])) for u in sharing)
        mean = float(exact / sum(u.num_examples for u in sharing))
        assert found[k] == pytest.approx(mean, rel=1e-6, abs=1e-6)
    np.testing.assert_array_equal(shared_mean([], old), old)


def by_median(updates: Iterable[Update], theta: Theta) -> Theta:
    return robust_mean(updates, theta, Robust(rule="median"))


@pytest.mark.parametrize("call", [shared_mean, by_median])
def test_other_means_refuse_likewise(call: Callable[[Iterable[Update], Theta], Theta]) -> None:
    for weight, theta, message in (
        (-1, vector(1, 1), "weight -1"),
        (1, vector(1), r"shape \(1,\), expected \(2,\)"),
        (1, vector(1, np.nan), "element 1 is nan"),
    ):
        with pytest.raises(LocalError, match=message):
            call(updates([(weight, theta)]), vector(0, 0))


@pytest.mark.parametrize(("rule", "middle"), [("median", 2), ("trimmed_mean", 4)])
def test_a_rule_takes_the_means_place(rule: Literal["median", "trimmed_mean"], middle: int) -> None:
    """Every device counts the same, whatever number of examples it claims; statistics stay."""
    before = replace(state(np.zeros(7, np.float32)), robust=Robust(rule=rule, byzantine=0.2))
    models = [np.full(7, x, np.float32) for x in (1, 2, 9, -99, 1000)]
    after = average(before, updates((10**i, model) for i, model in enumerate(models)))
    expected = vector(middle, middle, 0, 0, 0, middle, middle)
    np.testing.assert_array_equal(after.theta, expected)
    assert (after.round, after.robust) == (5, before.robust)
    np.testing.assert_array_equal(average(before, []).theta, before.theta)


def test_order_of_the_call_fixes_the_bits() -> None:
    rng = np.random.default_rng(5)
    models = [
        Update(f"d{i}", int(rng.integers(1, 900)), rng.normal(size=7).astype(np.float32))
        for i in range(20)
    ]
    first = average(state(np.zeros(7, np.float32)), iter(models)).theta
    again = average(state(np.zeros(7, np.float32)), iter(models)).theta
    assert first.tobytes() == again.tobytes()
