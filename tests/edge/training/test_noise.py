"""The random numbers of a step: pinned, uniform, and at any step without those before."""

import numpy as np
import pytest

from sedge_edge.training.noise import noise


def test_the_numbers_are_those_of_the_page() -> None:
    generator = np.random.PCG64(7 + 2**63)
    words = [int(word) for word in generator.random_raw(6)]  # three of each step
    pieces = [[word >> 16 * i & 0xFFFF for word in words[start : start + 3] for i in range(4)][:10]
              for start in (0, 3)]  # fmt: skip
    for step, expected in enumerate(pieces):
        assert (noise(7, step, 10) * 65536).tolist() == expected
    assert noise(7, 5, 0).shape == (0,)


def test_they_are_uniform_and_each_step_has_its_own() -> None:
    steps = np.stack([noise(3, step, 100_000) for step in range(3)])
    assert steps.dtype == np.float32 and steps.min() >= 0 and steps.max() < 1
    for p in (0.1, 0.5, 0.9):
        assert (steps < p).mean() == pytest.approx(p, abs=0.005)
    assert np.abs(np.corrcoef(steps)[np.triu_indices(3, 1)]).max() < 0.02
    assert noise(4, 0, 100).tolist() != noise(3, 0, 100).tolist()
