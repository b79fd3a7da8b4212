"""The splits: every example once, the same for the same seed, and as skewed as was asked for."""

from hashlib import sha256

import numpy as np
import pytest
from numpy.random import default_rng

from sedge_emulate.data import split
from sedge_emulate.data.datasets import Dataset
from sedge_emulate.data.split import (
    Indices,
    _dirichlet_parts,
    dirichlet,
    pathological,
    subsample,
    train_test,
)
from sedge_protocol.errors import ConfigError, DataError, SedgeError

# Shuffled labels of unequal classes; class 3 of 0 .. 5 does not occur.
_COUNTED = np.repeat(np.array([0, 1, 2, 4, 5]), [700, 500, 400, 300, 100])
TARGETS: Indices = default_rng(7).permutation(_COUNTED).astype(np.int64)


def require_partition(shares: list[Indices], num_examples: int) -> None:
    assert all(share.dtype == np.int64 for share in shares)
    assert all((np.diff(share) > 0).all() for share in shares)
    assert sorted(np.concatenate(shares).tolist()) == list(range(num_examples))


def num_classes(share: Indices) -> int:
    return len(np.unique(TARGETS[share]))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("devices", "alpha"), [(1, 0.1), (7, 0.1), (20, 0.5), (20, 100.0)])
def test_dirichlet_uses_every_example_once(seed: int, devices: int, alpha: float) -> None:
    shares = dirichlet(TARGETS, devices, alpha, default_rng(seed), min_examples=10)
    assert len(shares) == devices
    require_partition(shares, len(TARGETS))
    assert min(len(share) for share in shares) >= 10


def test_a_small_alpha_gives_few_classes_and_a_large_one_all() -> None:
    skewed = dirichlet(TARGETS, 10, 0.05, default_rng(0), min_examples=1)
    even = dirichlet(TARGETS, 10, 1e4, default_rng(0), min_examples=1)
    assert np.mean([num_classes(share) for share in skewed]) < 3.5
    assert all(num_classes(share) == 5 for share in even)
    assert all(abs(len(share) - 200) < 20 for share in even)


@pytest.mark.parametrize(
    ("rows", "devices", "alpha", "least"),
    [(7000, 1000, 0.5, 40), (7000, 10_000, 0.1, 2), (700, 70, 0.001, 100)],
)
def test_large_fleets_are_filled_up(rows: int, devices: int, alpha: float, least: int) -> None:
    targets = np.repeat(np.arange(10), rows).astype(np.int64)
    shares = dirichlet(targets, devices, alpha, default_rng(1), least)
    require_partition(shares, len(targets))
    assert len(shares) == devices
    assert min(len(share) for share in shares) == least


def test_only_devices_that_were_too_small_are_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """By others that give; the label skew stays."""
    targets = np.repeat(np.arange(10), 7000).astype(np.int64)
    counts = np.full(10, 7000)
    monkeypatch.setattr(split, "_MAX_TRIES", 1)
    drawn = _dirichlet_parts(counts, 1000, 0.1, default_rng(5), 0)
    filled = _dirichlet_parts(counts, 1000, 0.1, default_rng(5), 10)
    assert (filled.sum(axis=1) == counts).all()
    before, after = drawn.sum(axis=0), filled.sum(axis=0)
    small = before < 10
    assert 80 < small.sum() < 200  # of sizes with mean 70 and nearly exponential
    assert (after[small] == 10).all()
    assert (filled[:, small] >= drawn[:, small]).all()
    assert (filled[:, ~small] <= drawn[:, ~small]).all()
    # The rich give: most devices keep all they had.
    assert (before[~small] == after[~small]).mean() > 0.8
    shares = dirichlet(targets, 1000, 0.1, default_rng(5), 10)
    assert np.mean([len(np.unique(targets[share])) for share in shares]) < 4.5


def test_of_several_draws_the_best_is_filled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "_MAX_TRIES", 10)
    counts = np.full(10, 7000)
    rng = default_rng(3)
    draws = [_dirichlet_parts(counts, 1000, 0.1, rng, 0) for _ in range(10)]
    best = min(draws, key=lambda parts: int((parts.sum(axis=0) < 10).sum()))
    filled = _dirichlet_parts(counts, 1000, 0.1, default_rng(3), 10)
    alike = [(filled == parts).all(axis=0).mean() for parts in draws]
    assert max(alike) > 0.7
    assert draws[int(np.argmax(alike))] is best


def test_every_example_may_be_needed() -> None:
    """Seven of seven for each device: the whole split is filling up."""
    targets = np.repeat(np.arange(10), 70).astype(np.int64)
    for alpha in (0.001, 0.5):
        shares = dirichlet(targets, 100, alpha, default_rng(0), 7)
        require_partition(shares, 700)
        assert {len(share) for share in shares} == {7}


def test_a_split_that_needs_no_filling_up_is_what_it_always_was() -> None:
    """Seeds of published results keep their devices."""
    digest = sha256()
    for seed, devices, alpha in ((0, 20, 0.1), (42, 12, 0.5), (7, 30, 0.2)):
        for share in dirichlet(TARGETS, devices, alpha, default_rng(seed)):
            digest.update(share.tobytes() + b"/")
    expected = "40f2ad30f791a990ddc83818ba9443779f68a850d733ab934f0f71b931fae72d"
    assert digest.hexdigest() == expected


def test_the_shares_follow_the_distribution() -> None:
    # A share of Dir(a, ..., a) over d devices has mean 1/d and variance (1/d)(1 - 1/d) / (a d + 1).
    targets = np.zeros(2000, np.int64)
    rng = default_rng(3)
    draws = [dirichlet(targets, 4, 0.5, rng, min_examples=0) for _ in range(800)]
    shares = np.array([[len(part) / 2000 for part in draw] for draw in draws])
    assert np.allclose(shares.mean(axis=0), 0.25, atol=0.03)
    assert np.allclose(shares.var(axis=0), 0.25 * 0.75 / 3, atol=0.012)


def test_within_a_class_the_examples_are_drawn_at_random() -> None:
    targets = np.zeros(1000, np.int64)
    first, second = dirichlet(targets, 2, 1e6, default_rng(0))
    # In order, the first device would hold 0 to 499.
    assert 400 < first.mean() < 600
    assert 400 < second.mean() < 600


@pytest.mark.parametrize(
    ("devices", "alpha", "least", "message"),
    [
        (0, 0.1, 1, "devices: found 0"),
        (5, 0.0, 1, "alpha: found 0.0"),
        (5, float("nan"), 1, "alpha: found nan"),
        (5, 0.1, 401, "2000 examples, expected 401 or more for each of 5 devices"),
    ],
)
def test_dirichlet_refuses(devices: int, alpha: float, least: int, message: str) -> None:
    with pytest.raises(SedgeError, match=message):
        dirichlet(TARGETS, devices, alpha, default_rng(0), least)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("devices", "classes"), [(3, 2), (5, 1), (20, 2), (20, 3), (7, 5), (1, 5)])
def test_each_device_has_so_many_classes(seed: int, devices: int, classes: int) -> None:
    shares = pathological(TARGETS, devices, classes, default_rng(seed))
    assert len(shares) == devices
    require_partition(shares, len(TARGETS))
    assert [num_classes(share) for share in shares] == [classes] * devices


def test_pathological_shards_are_about_equal() -> None:
    targets = np.repeat(np.arange(10), 700).astype(np.int64)
    shares = pathological(targets, 100, 2, default_rng(0))
    assert {len(share) for share in shares} == {70}
    # Dealt at random: many of the 45 pairs of classes occur, not the same few again and again.
    assert len({tuple(np.unique(targets[share])) for share in shares}) > 20


@pytest.mark.parametrize(
    ("devices", "classes", "error", "said"),
    [
        (0, 1, ConfigError, "devices: found 0"),
        (5, 0, ConfigError, "classes_per_device: found 0, expected 1 to 5"),
        (5, 6, ConfigError, "classes_per_device: found 6, expected 1 to 5"),
        (2, 2, DataError, "2 devices with 2 classes each cannot hold all 5 classes"),
        (3000, 1, DataError, "2000 examples are too few for 3000 devices"),
    ],
)
def test_pathological_refuses(
    devices: int, classes: int, error: type[SedgeError], said: str
) -> None:
    with pytest.raises(error, match=said):
        pathological(TARGETS, devices, classes, default_rng(0))


@pytest.mark.parametrize(
    ("num_examples", "fraction", "num_test"),
    [(2, 0.25, 1), (3, 0.9, 2), (4, 0.25, 1), (11, 0.25, 2), (10, 0.999, 9), (100, 0.25, 25)],
)
def test_train_and_test(num_examples: int, fraction: float, num_test: int) -> None:
    indices = np.arange(50, 50 + num_examples).astype(np.int64)
    train, test = train_test(indices, fraction, default_rng(0))
    assert len(test) == num_test
    assert sorted([*train.tolist(), *test.tolist()]) == indices.tolist()


def test_train_and_test_need_two_examples_and_a_fraction() -> None:
    with pytest.raises(DataError, match="1 examples, expected 2"):
        train_test(np.zeros(1, np.int64), 0.25, default_rng(0))
    for fraction in (0.0, 1.0, -0.1):
        with pytest.raises(ConfigError, match="test_fraction"):
            train_test(np.zeros(9, np.int64), fraction, default_rng(0))


def a_dataset() -> Dataset:
    inputs = np.arange(len(TARGETS), dtype=np.float32).reshape(-1, 1, 1, 1)
    return Dataset("mine", inputs, TARGETS, 6)


@pytest.mark.parametrize("num_examples", [6, 20, 100, 777, 2000])
def test_a_subsample_keeps_the_proportions(num_examples: int) -> None:
    part = subsample(a_dataset(), num_examples, default_rng(1))
    assert len(part.targets) == num_examples
    expected = np.bincount(TARGETS) * num_examples / len(TARGETS)
    assert (np.abs(np.bincount(part.targets, minlength=6) - expected) <= 1).all()
    chosen = part.inputs.reshape(-1).astype(np.int64)
    assert len(np.unique(chosen)) == num_examples
    assert np.array_equal(TARGETS[chosen], part.targets)


def test_a_subsample_is_random_and_within_bounds() -> None:
    first, second = (subsample(a_dataset(), 100, default_rng(seed)) for seed in (1, 2))
    assert not np.array_equal(first.inputs, second.inputs)
    for num_examples in (5, 2001):
        with pytest.raises(ConfigError, match=r"num_examples.*expected 6 to 2000"):
            subsample(a_dataset(), num_examples, default_rng(0))
