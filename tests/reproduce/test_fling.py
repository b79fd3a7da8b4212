"""FedPURIN's data: equal sizes, equal proportions for training and testing, devices that overlap."""

import numpy as np
from tools.reproduce.fling import DEVICES, TEST, TRAIN, TRAIN_SET, FlingSetting, sample

TARGETS = np.tile(np.arange(10), 7000)


def shares(targets: np.ndarray, indices: np.ndarray) -> np.ndarray:
    return np.bincount(targets[indices], minlength=10) / len(indices)


def test_every_device_has_its_number_of_examples_from_the_right_set() -> None:
    parts = FlingSetting(0.5).parts(TARGETS, 1)
    assert len(parts) == DEVICES
    for train, test in parts:
        assert (len(train), len(test)) == (TRAIN, TEST)
        assert train.max() < TRAIN_SET <= test.min()
        assert test.max() < len(TARGETS)
        # Tested on what it trains on. Rounding moves a class by half an example, the last by the rest.
        np.testing.assert_allclose(shares(TARGETS, train), shares(TARGETS, test), atol=0.05)


def test_a_class_that_runs_out_is_drawn_with_repetition() -> None:
    few = np.repeat(np.arange(2), 5)
    for indices in sample(few, 0.1, 40, seed=3):
        assert len(indices) == 40
        assert len(np.unique(indices)) <= 10


def test_examples_are_not_repeated_while_there_are_enough() -> None:
    for indices in sample(TARGETS[:TRAIN_SET], 1.0, TRAIN, seed=1):
        assert len(np.unique(indices)) == TRAIN


def test_the_seed_decides() -> None:
    first, again, other = (sample(TARGETS, 0.5, 50, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_images_lie_between_0_and_1() -> None:
    dataset = FlingSetting(0.5).dataset()
    assert dataset.inputs.dtype == np.float32
    assert abs(float(dataset.inputs.min())) < 1e-6
    assert abs(float(dataset.inputs.max()) - 1) < 1e-6
