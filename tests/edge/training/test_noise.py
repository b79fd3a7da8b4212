"""The random numbers of a step: uniform, and at any step without those before. Vectors pin them."""

import numpy as np
import pytest

from sedge_edge.training.noise import noise


def test_they_are_uniform_and_each_step_has_its_own() -> None:
    steps = np.stack([noise(3, step, 100_000) for step in range(3)])
    assert steps.dtype == np.float32 and steps.min() >= 0 and steps.max() < 1
    for p in (0.1, 0.5, 0.9):
        assert (steps < p).mean() == pytest.approx(p, abs=0.005)
    assert np.abs(np.asarray(np.corrcoef(steps))[np.triu_indices(3, 1)]).max() < 0.02
    assert noise(4, 0, 100).tolist() != noise(3, 0, 100).tolist()
    assert noise(7, 5, 0).shape == (0,)
