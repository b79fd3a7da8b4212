"""What a strategy is handed of a round's updates, and what it costs."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from tests.cloud.helper import LAYOUT, Cloud, update

from sedge_cloud.algorithms import averaging
from sedge_cloud.algorithms.averaging import blocks
from sedge_cloud.algorithms.outliers import filter_outliers, lengths, products
from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.coding import WHOLE
from sedge_cloud.config import RobustConfig, RunConfig
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Theta

THETA = np.arange(10, dtype=np.float32)


def vector(values: dict[int, float], size: int = 10) -> SparseVector:
    indices = np.array(sorted(values), np.uint32)
    return SparseVector(size, indices, np.array([values[k] for k in sorted(values)], np.float32))


def moved(device: str, by: float, base: Theta = THETA) -> Update:
    """An update that changed element 2."""
    return Update(device, 7, base, None, vector({2: by}, base.size))


def test_leaves_a_round_as_it_is() -> None:
    updates = [moved(f"d{i}", 1.0) for i in range(4)]
    filtered = filter_outliers(updates, Robust())
    assert [found is given for found, given in zip(filtered, updates, strict=True)] == [True] * 4
    assert filtered.distrusted == {}


def test_shortens_what_is_far_longer() -> None:
    updates = [moved("a", 1.0), moved("b", -1.0), moved("c", 1.0), moved("d", 100.0)]
    filtered = filter_outliers(iter(updates), Robust(clip=5, rule="mean"))
    for _ in range(2):  # again and again
        last = list(filtered)[-1]
        assert last.trained[2] - THETA[2] == 5 and last.num_examples == 7
        np.testing.assert_array_equal(np.delete(last.trained, 2), np.delete(THETA, 2))
    assert filtered.distrusted == {"d": 0.05}


def test_a_patch_is_measured_among_patches() -> None:
    """Long patches are no reason to shorten one who trained little, nor the other way round."""
    updates = [
        Update(f"d{i}", 1, THETA, vector({k: THETA[k] + 50.0 for k in (1, 2)}), vector({2: 0.5}))
        for i in range(3)
    ]
    assert filter_outliers([*updates, moved("cold", 0.5)], Robust(clip=5)).distrusted == {}
    wrong = Update("e", 1, THETA, vector({1: 2001.0, 2: 2.0}), vector({2: 1.0}))
    filtered = filter_outliers([*updates, wrong], Robust(clip=5))
    last = list(filtered)[-1]
    factor = 5 * np.sqrt(2) * 50 / 2000
    assert filtered.distrusted == {"e": pytest.approx(factor, rel=1e-6)}
    np.testing.assert_allclose(last.trained[1], 1 + factor * 2000, rtol=1e-6)
    np.testing.assert_allclose(last.trained[2], 2 + factor, rtol=1e-6)


def patched(device: str, by: float, trusted: bool = True) -> Update:
    """An update that began so far from the model and changed it by 1."""
    patch = vector({1: 1.0 + by})
    return Update(device, 1, THETA, patch, vector({2: 1.0}), trusted=trusted)


@pytest.mark.parametrize(
    ("others", "factor"),
    [
        # No other has a patch: among what was trained, which is 1 of each.
        ([moved(f"d{i}", 1.0) for i in range(9)], 5 / 64),
        ([moved("a", 1.0), *(patched(f"d{i}", 64.0, False) for i in range(9))], 5 / 64),
        ([moved("a", 1.0), patched("b", 4.0)], 20 / 64),
        ([moved("a", 1.0), patched("b", 64.0)], 1.0),
    ],
)
def test_a_patch_of_a_past_that_is_not_trusted(others: list[Update], factor: float) -> None:
    """It is no measure, of itself or of its like; one of a trusted past may stand alone."""
    filtered = filter_outliers([*others, patched("bad", 64.0, False)], Robust(clip=5))
    assert filtered.factors[-1] == pytest.approx(factor, rel=1e-6)
    assert filter_outliers([*others, patched("good", 64.0)], Robust(clip=5)).factors[-1] == 1


def test_who_claims_too_much_counts_for_less() -> None:
    claims = {"a": 10, "b": 20, "c": 10_000}
    updates = [replace(moved(name, 1.0), num_examples=n) for name, n in claims.items()]
    filtered = filter_outliers(updates, Robust(max_weight=3))
    assert [update.num_examples for update in filtered] == [10, 20, 60]
    assert [update.trained[2] for update in filtered] == [3.0] * 3, "its change is as it was"
    assert filtered.distrusted == {}
    for robust, counted in ((Robust(max_weight=0), 10_000), (Robust(equal_weights=True), 1)):
        filtered = filter_outliers(updates, robust)
        assert list(filtered)[-1].num_examples == counted and filtered.distrusted == {}


def test_who_points_elsewhere_is_shortened() -> None:
    """Of each width by itself: the others' directions agree with the middle one's."""
    ways = {"a": {2: 3.0}, "b": {2: 1.0, 3: 0.5}, "c": {2: 1.0, 3: -0.5}, "d": {2: 1.0}}
    updates = [Update(name, 7, THETA, None, vector(way)) for name, way in ways.items()]
    aside = Update("aside", 7, THETA, None, vector({2: 0.1, 5: 1.0}))
    against = Update("against", 7, THETA, None, vector({2: -1.0, 5: 0.1}))
    narrow = [replace(moved("n", by, THETA[:5]), width=1) for by in (-1.0, 1.0)]
    everyone = [*updates, aside, against, *narrow, Update("still", 7, THETA)]
    factors = dict(
        zip(
            (u.device for u in everyone),
            filter_outliers(everyone, Robust(clip=2)).factors,
            strict=True,
        )
    )
    assert 0 < factors.pop("aside") < 1 and factors.pop("against") == 0
    assert factors.pop("a") == pytest.approx(2 / 3, rel=0.2), "clipped, nothing else"
    assert set(factors.values()) == {1.0}
    assert set(filter_outliers(everyone, Robust(clip=0, rule="mean")).factors) == {1.0}


@pytest.mark.parametrize("seed", range(20))
def test_two_of_ten_pull_less_than_the_eight(seed: int) -> None:
    """Whatever they claim and wherever they point: by length times weight, they do not outweigh the eight.

    Each of the 20 rounds tries every pair of lengths and claims in some direction that the rule accepts.
    """
    rng = np.random.default_rng(seed)
    theta = np.zeros(40, np.float32)
    common = rng.normal(size=40)
    honest = [
        Update(f"d{i}", int(rng.integers(50, 150)), theta, None, SparseVector(40, None, change))
        for i, change in enumerate((rng.normal(size=(8, 40)) + common).astype(np.float32))
    ]
    middle = float(np.median([lengths(update)[1] for update in honest]))
    aside = rng.normal(size=40)
    aside -= (aside @ common) / (common @ common) * common
    worst = 0.0
    for along, length, claim in product(
        np.linspace(0, 1, 6), (0.3, 0.9, 1.4, 2.9, 100), (1, 100, 2**40)
    ):
        direction = along * common / np.linalg.norm(common)
        direction += np.sqrt(1 - along**2) * aside / np.linalg.norm(aside)
        change = SparseVector(40, None, (length * middle * direction).astype(np.float32))
        hostile = [Update(f"bad{i}", claim, theta, None, change) for i in range(2)]
        counted = list(filter_outliers([*hostile, *honest], Robust()))
        pulls = {update.device: update.num_examples * lengths(update)[1] for update in counted}
        bad = sum(pull for name, pull in pulls.items() if name.startswith("bad"))
        worst = max(worst, bad / (sum(pulls.values()) - bad))
    assert 0.2 < worst < 0.5


def test_a_patch_has_no_part_in_the_direction() -> None:
    """What a device begins with may be as unlike the others' as it likes: it was filtered before."""
    patch = vector({1: -9.0, 2: -50.0})
    updates = [replace(moved(f"d{i}", 1.0), patch=patch) for i in range(4)]
    updates[3] = replace(updates[3], patch=vector({1: 11.0, 2: 54.0}))
    assert filter_outliers(updates, Robust()).distrusted == {}


def test_lengths_of_patch_and_delta() -> None:
    update = Update("d", 1, THETA, vector({0: 3.0, 1: 5.0}), vector({5: -12.0}))
    assert lengths(update) == (5.0, 12.0)
    assert lengths(Update("d", 1, THETA)) == (0.0, 0.0)
    huge = SparseVector(10, None, np.full(10, 3e38, np.float32))
    assert lengths(Update("d", 1, THETA, None, huge))[1] == pytest.approx(3e38 * np.sqrt(10))


def test_what_is_not_finite_is_left_out() -> None:
    filtered = filter_outliers(
        [moved("a", 1.0), moved("b", np.inf), moved("c", np.nan)], Robust(clip=0)
    )
    assert [update.device for update in filtered] == ["a"]
    assert filtered.distrusted == {"b": 0.0, "c": 0.0}


def test_krum_wants_one_width() -> None:
    updates = [moved("a", 1.0), moved("b", 1.0), moved("c", 1.0, THETA[:5])]
    assert (
        len(list(filter_outliers(updates, Robust()))) == 3
    )  # lengths can be compared, places cannot
    with pytest.raises(StrategyError, match=r"krum: updates of \[5, 10\] elements"):
        filter_outliers(updates, Robust(rule="krum"))


@pytest.mark.parametrize("limit", [1, 40, 100, 10**6])
def test_blocks_are_the_changes_in_order(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(averaging, "BLOCK_BYTES", limit)
    rng = np.random.default_rng(0)
    base = rng.normal(size=23).astype(np.float32)
    updates = [
        Update("a", 1, base, vector({3: 9.0, 20: 1.0}, 23), vector({3: 1.0, 4: 1.0}, 23)),
        Update("b", 1, base, None, SparseVector(23, None, rng.normal(size=23).astype(np.float32))),
        Update("c", 1, base),
    ]
    found = np.concatenate([block.copy() for block in blocks(updates, 3, 23, base)], axis=1)
    np.testing.assert_allclose(found, [u.trained - base for u in updates], atol=2e-6)
    elsewhere = base + 1
    found = np.concatenate([block.copy() for block in blocks(updates, 3, 23, elsewhere)], axis=1)
    np.testing.assert_allclose(found, [u.trained - elsewhere for u in updates], atol=2e-6)
    changes = np.array([u.trained - base for u in updates], np.float64)
    np.testing.assert_allclose(products(updates, [23] * 3), changes @ changes.T, rtol=1e-5)


def test_no_update_at_all() -> None:
    assert list(filter_outliers([], Robust(rule="krum"))) == []


class Stored:
    """Updates that are made anew whenever they are gone through."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.base = count, np.zeros(size, np.float32)

    def __iter__(self) -> Iterator[Update]:
        for i in range(self.count):
            values = np.random.default_rng(i).normal(size=self.base.size).astype(np.float32)
            yield Update(f"d{i}", 1, self.base, None, SparseVector(values.size, None, values))


def test_a_round_need_not_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty updates of 400 kB each: Krum holds a block of two megabytes, once more in float64."""
    monkeypatch.setattr(averaging, "BLOCK_BYTES", 2**21)
    stored = Stored(60, 100_000)
    tracemalloc.start()
    try:
        filtered = filter_outliers(stored, Robust(rule="multi_krum"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(list(filtered)) == 60 - 12 - 2
    assert peak < 12 * 2**20


@pytest.mark.parametrize(("clip", "largest"), [(5.0, 2.5), (0.0, 500.0)])
def test_a_coordinator_vets_every_round(clip: float, largest: float, tmp_path: Path) -> None:
    """Four devices change element 0 by .5, .5, .5 and 500; FedAvg gives each a quarter."""
    robust = RobustConfig(clip=clip)
    names = ("a", "b", "c", "d")
    cloud = Cloud(
        tmp_path, RunConfig(strategy="fedavg", num_rounds=2, robust=robust, broadcast=WHOLE), names
    )
    cloud.hello()
    before = cloud.model(cloud.state().model)
    for name in names:
        delta = np.zeros(LAYOUT.size, np.float32)
        delta[0] = 500 if name == "d" else 0.5
        cloud.offer(name, update(cloud.order(name), delta))
    cloud.poll()
    change = cloud.model(cloud.state().model) - before
    assert change[0] == pytest.approx((1.5 + largest) / 4, rel=1e-5)
    assert not change[1:].any()
    distrusted = cloud.summaries()[0].distrusted
    assert distrusted == ({"d": pytest.approx(0.005, rel=1e-6)} if clip else {})
    cloud.store.close()


@pytest.mark.parametrize("size", [1, 7, 4096, 4097, 5003, 65_537, 582_026])
def test_a_length_in_little_memory_has_the_bits_of_numpys_own(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1e-3, size).astype(np.float32)
    whole = float(np.sqrt(np.square(values, dtype=np.float64).sum()))
    update = Update("a", 1, np.zeros(size, np.float32), None, SparseVector(size, None, values))
    assert lengths(update) == (0.0, whole)
