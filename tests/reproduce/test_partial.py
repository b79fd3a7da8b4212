"""Our own setting: a part of the images, each once, and the same devices whatever the method."""

from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
from tools.reproduce.cells import TABLES
from tools.reproduce.partial import DEVICES, EXAMPLES, PARTICIPANTS, PartialSetting, draw

from sedge_cloud.config import RunConfig
from sedge_cloud.runs.run import Run

TARGETS = np.random.default_rng(0).integers(0, 10, 70_000)
NAMES = [f"device-{i:02d}" for i in range(DEVICES)]


def a_run(seed: int, rounds: int = 40) -> Run:
    config = RunConfig(strategy="fedavg", seed=seed, num_rounds=rounds, evaluate_every=20)
    return cast(Run, SimpleNamespace(config=config))


@pytest.mark.parametrize("alpha", [0.1, 0.5])
def test_each_image_is_in_one_place(alpha: float) -> None:
    parts = PartialSetting(alpha).parts(TARGETS, 1)
    assert len(parts) == DEVICES
    everything = np.concatenate([np.concatenate(part) for part in parts])
    assert len(np.unique(everything)) == len(everything) == EXAMPLES
    assert everything.max() > 60_000  # from all 70,000
    for train, test in parts:
        assert len(train) + len(test) >= 10
        assert len(test) == max(1, (len(train) + len(test)) // 4)


def test_the_seed_decides_what_lies_where() -> None:
    first, again, other = (PartialSetting(0.5).parts(TARGETS, seed) for seed in (1, 1, 2))
    for (train, test), (train_again, test_again) in zip(first, again, strict=True):
        np.testing.assert_array_equal(train, train_again)
        np.testing.assert_array_equal(test, test_again)
    assert len(first[0][0]) != len(other[0][0]) or (first[0][0] != other[0][0]).any()


def test_a_small_alpha_is_more_uneven() -> None:
    def classes(alpha: float) -> float:
        parts = PartialSetting(alpha).parts(TARGETS, 1)
        return float(np.mean([len(np.unique(TARGETS[train])) for train, _ in parts]))

    assert classes(0.1) + 2 < classes(0.5)


def test_ten_train_and_everyone_is_measured() -> None:
    run = a_run(3)
    cohorts = [draw(run, number, "train", NAMES[::-1]) for number in (1, 2, 22)]
    for cohort in cohorts:
        assert len(set(cohort)) == PARTICIPANTS
        assert cohort == sorted(cohort)
    assert cohorts[0] != cohorts[1] != cohorts[2]
    assert draw(run, 21, "evaluate", NAMES[::-1]) == NAMES
    assert draw(run, 1, "train", NAMES[1:]) == []
    assert draw(a_run(4), 1, "train", NAMES) != cohorts[0]
    # Round 22 is the 21st training, whether or not there was a measurement before it.
    plain = cast(Run, SimpleNamespace(config=msgspec.structs.replace(run.config, evaluate_every=0)))
    assert draw(plain, 21, "train", NAMES) == cohorts[2]


def test_orders_and_participants_come_from_the_seed() -> None:
    streams = PartialSetting(0.1).streams(7, 40)
    (one,), (other,) = (list(streams.shuffles(seed, 9, 1)) for seed in (1, 2))
    assert sorted(one) == sorted(other) == list(range(9))
    published = [2, 4, 3, 0, 1]  # numpy's, as the tables had them
    assert next(streams.shuffles(0, 5, 1)).tolist() == published
    assert streams.draw is draw


@pytest.mark.parametrize("name", ["beyond-dir01", "beyond-dir05"])
def test_the_seed_of_the_constants_is_in_no_table(name: str) -> None:
    """They were chosen on seed 0."""
    table = TABLES[name]
    assert table.seeds == (1, 2, 3)
    assert [cell.name for cell in table.cells[:2]] == ["fedavg", "fedobp"]
    assert table.rounds % table.setting.checkpoint == 0
    assert isinstance(table.setting, PartialSetting)
