"""The streams of FL-bench's runs: nothing of them may depend on anything but the seed."""

import pickle
from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from tools.reproduce.released import BATCH, DEVICES, Released, ReleasedSetting, name, partition

from sedge_cloud.config import RunConfig
from sedge_cloud.runs.run import Run, order_seed
from sedge_edge.training.batches import permutations

TARGETS = np.repeat(np.arange(10), 700)


def run(evaluate_every: int) -> Run:
    config = RunConfig(
        strategy="fedavg", num_rounds=5, evaluate_every=evaluate_every, min_available_devices=DEVICES
    )  # fmt: skip
    return cast(Run, SimpleNamespace(config=config))


def test_a_partition_shares_every_example_out_once() -> None:
    parts = partition(TARGETS, 0.5, 42)
    assert len(parts) == DEVICES
    together = np.sort(np.concatenate([np.concatenate(part) for part in parts]))
    np.testing.assert_array_equal(together, np.arange(len(TARGETS)))
    for train, test in parts:
        size = len(train) + len(test)
        assert size >= 10
        assert len(test) == size // 4


def test_a_partition_follows_from_its_seed_and_leaves_numpys_own_stream_alone() -> None:
    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    first, again, other = (partition(TARGETS, 0.5, seed) for seed in (1, 1, 2))
    assert np.random.random() == expected
    np.testing.assert_array_equal(first[3][0], again[3][0])
    assert not np.array_equal(first[3][0], other[3][0])


def test_the_participants_are_a_prefix_whatever_the_length() -> None:
    assert Released(42, 3).cohorts == Released(42, 9).cohorts[:3]
    assert all(len(set(cohort)) == 10 for cohort in Released(42, 9).cohorts)


def test_shuffles_are_permutations_and_leave_torchs_own_stream_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    released = Released(42, 2)
    seed = next(iter(released.shuffle_seeds))
    found = list(released(seed, 50, 5))
    assert torch.equal(torch.rand(1), expected)
    assert len(found) == 5
    for order in found:
        np.testing.assert_array_equal(np.sort(order), np.arange(50))
    assert not np.array_equal(found[0], found[1])


def test_a_last_batch_of_one_is_left_out() -> None:
    released = Released(42, 1)
    seed = next(iter(released.shuffle_seeds))
    assert [len(order) for order in released(seed, BATCH + 1, 2)] == [BATCH, BATCH]


def test_orders_that_are_not_theirs_have_our_own_shuffles() -> None:
    found = list(Released(42, 1)(7, 20, 2))
    np.testing.assert_array_equal(found, list(permutations(7, 20, 2)))


def test_rounds_that_only_measure_shift_the_numbers_of_the_others() -> None:
    plain, measured = Released(42, 4, evaluate_every=0), Released(42, 4, evaluate_every=2)
    third = name(plain.cohorts[2][0])
    expected = plain.shuffle_seeds[order_seed(42, 3, third)]
    assert measured.shuffle_seeds[order_seed(42, 4, third)] == expected


def test_the_draw_is_theirs_and_everyone_where_nothing_is_trained() -> None:
    everyone: Sequence[str] = [name(number) for number in range(DEVICES)]
    released = Released(42, 5, evaluate_every=2)
    cohorts = [sorted(map(name, cohort)) for cohort in released.cohorts]
    assert released.draw(run(2), 1, "train", everyone) == cohorts[0]
    assert released.draw(run(2), 3, "evaluate", everyone) == everyone
    assert released.draw(run(2), 4, "train", everyone) == cohorts[2]
    assert released.draw(run(2), 4, "train", everyone[1:]) == []


def test_workers_can_be_told_of_it() -> None:
    released = Released(42, 1)
    seed = next(iter(released.shuffle_seeds))
    again = pickle.loads(pickle.dumps(released))
    np.testing.assert_array_equal(list(again(seed, 9, 1)), list(released(seed, 9, 1)))


def test_the_setting_has_the_streams_of_its_runs() -> None:
    streams = ReleasedSetting(0.1).streams(42, 3)
    assert streams.shuffles == Released(42, 3)
