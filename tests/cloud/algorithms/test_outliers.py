"""What a strategy is handed of a round's updates, and what it costs."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from sedge_cloud.algorithms import averaging
from sedge_cloud.algorithms.outliers import filter_outliers, lengths
from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Theta

THETA = np.arange(10, dtype=np.float32)


def vector(values: dict[int, float], size: int = 10, scale: float = 1.0) -> SparseVector:
    indices = np.array(sorted(values), np.uint32)
    found = np.array([scale * values[k] for k in sorted(values)], np.float32)
    return SparseVector(size, indices, found)


def moved(device: str, by: float, base: Theta = THETA) -> Update:
    """An update that changed element 2."""
    return Update(device, 7, base, None, vector({2: by}, base.size))


def test_leaves_a_round_as_it_is() -> None:
    updates = [moved(f"d{i}", 1.0) for i in range(4)]
    filtered = filter_outliers(updates, Robust())
    assert [found is given for found, given in zip(filtered, updates, strict=True)] == [True] * 4
    assert filtered.distrusted == {}


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_who_points_elsewhere_is_shortened(scale: float) -> None:
    """Of each width by itself: the others' directions agree with the middle one's."""
    ways = {"a": {2: 3.0}, "b": {2: 1.0, 3: 0.5}, "c": {2: 1.0, 3: -0.5}, "d": {2: 1.0}}
    updates = [Update(name, 7, THETA, None, vector(way, scale=scale)) for name, way in ways.items()]
    aside = Update("aside", 7, THETA, None, vector({2: 0.1, 5: 1.0}, scale=scale))
    against = Update("against", 7, THETA, None, vector({2: -1.0, 5: 0.1}, scale=scale))
    narrow = [replace(moved("n", by, THETA[:5]), width=1) for by in (-scale, scale)]
    everyone = [*updates, aside, against, *narrow, Update("still", 7, THETA)]
    found = filter_outliers(everyone, Robust(clip=2)).factors
    factors = {u.device: factor for u, factor in zip(everyone, found, strict=True)}
    assert 0 < factors.pop("aside") < 1 and factors.pop("against") == 0
    assert factors.pop("a") == pytest.approx(2 / 3, rel=0.2), "clipped, nothing else"
    assert set(factors.values()) == {1.0}
    assert set(filter_outliers(everyone, Robust(clip=0, rule="mean")).factors) == {1.0}


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_a_patch_is_compared_with_those_of_trusted_devices(scale: float) -> None:
    """And with what the others changed if there are none."""
    base, delta = np.zeros(10, np.float32), vector({3: 1000.0}, scale=scale)
    patches = [vector({2: by}, scale=scale) for by in (1.0, 1.0, 100.0, 100.0)]
    for trusts, expected in ((True, (1.0, 1.0, 0.05, 0.05)), (False, (1.0,) * 4)):
        updates = [
            Update(f"d{i}", 7, base, patch, delta, trusted=trusts and i < 2)
            for i, patch in enumerate(patches)
        ]
        found = filter_outliers(updates, Robust(clip=5, rule="mean")).factors
        assert found == pytest.approx(expected)


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


def test_krum_wants_one_width() -> None:
    updates = [moved("a", 1.0), moved("b", 1.0), moved("c", 1.0, THETA[:5])]
    assert len(list(filter_outliers(updates, Robust()))) == 3  # lengths can be compared
    with pytest.raises(StrategyError, match=r"krum: updates of \[5, 10\] elements"):
        filter_outliers(updates, Robust(rule="krum"))


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
    """Sixty updates of 80 kB each: Krum holds a block of 400 kB, once more in float64."""
    monkeypatch.setattr(averaging, "BLOCK_BYTES", 400_000)
    stored = Stored(60, 20_000)
    tracemalloc.start()
    try:
        filtered = filter_outliers(stored, Robust(rule="multi_krum"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(list(filtered)) == 60 - 12 - 2
    assert peak < 2.4 * 10**6


@pytest.mark.parametrize("size", [1, 7, 4096, 4097, 5003, 65_537, 582_026])
def test_a_length_in_little_memory_has_the_bits_of_numpys_own(size: int) -> None:
    values = np.random.default_rng(size).normal(0, 1e-3, size).astype(np.float32)
    whole = float(np.sqrt(np.square(values, dtype=np.float64).sum()))
    update = Update("a", 1, np.zeros(size, np.float32), None, SparseVector(size, None, values))
    assert lengths(update) == (0.0, whole)
