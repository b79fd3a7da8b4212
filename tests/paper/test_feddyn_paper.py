"""FedDyn against Algorithm 1 of Acar et al. (2021), in plain loops over lists."""

import numpy as np
import pytest
from tests.paper.toy_fleet import DEVICES, SCORED, STATISTIC, TRAINING, N, Problem, Vector, play

from sedge_cloud.strategies.feddyn import FedDyn

RATE, STEPS = TRAINING.learning_rate, TRAINING.local_epochs


def twin(problem: Problem, alpha: float) -> Vector:
    """The global model after all rounds; each device keeps its gradient by itself, as the paper has it."""
    w, h = problem.start, [0.0] * N
    own = [[0.0] * N for _ in range(DEVICES)]
    held = [list(w) for _ in range(DEVICES)]  # where a device's statistics are
    for cohort in problem.cohorts:
        mean = list(w)
        for i in cohort:
            v = [held[i][k] if k in STATISTIC else w[k] for k in range(N)]
            for _ in range(STEPS):
                g = problem.gradient(i, v)
                for k in SCORED:
                    v[k] -= RATE * (g[k] - own[i][k] + alpha * (v[k] - w[k]))
                v = problem.drifted(i, v)
            held[i] = v
            for k in SCORED:
                own[i][k] -= alpha * (v[k] - w[k])
                h[k] -= alpha * (v[k] - w[k]) / DEVICES
                mean[k] += (v[k] - w[k]) / len(cohort)
        w = [mean[k] - h[k] / alpha for k in range(N)]
    return w


@pytest.mark.parametrize(("seed", "alpha"), [(0, 0.1), (1, 0.1), (2, 1.0)])
def test_algorithm_1(seed: int, alpha: float) -> None:
    problem = Problem.of(seed)
    state, _ = play(FedDyn(alpha=alpha), problem)
    np.testing.assert_allclose(state.theta, twin(problem, alpha), rtol=0, atol=5e-5)


def test_its_fixed_point_is_the_minimum_of_the_fleets_loss() -> None:
    """Everybody in every round, for long: the sum of the gradients is 0, where FedAvg's is not."""
    problem = Problem.of(0).of_everybody()
    assert problem.slope(play(FedDyn(alpha=1.0), problem)[0].theta.tolist()) < 1e-3
