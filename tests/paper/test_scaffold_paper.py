"""SCAFFOLD against Algorithm 1 of Karimireddy et al. (2020), option II, in plain loops over lists."""

import numpy as np
import pytest
from tests.paper.toy_fleet import DEVICES, SCORED, STATISTIC, TRAINING, N, Problem, Vector, play

from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.scaffold import VARIATE, Scaffold

RATE, STEPS = TRAINING.learning_rate, TRAINING.local_epochs


def twin(problem: Problem, server_lr: float) -> tuple[Vector, Vector]:
    """x and c after all rounds; each device keeps its c_i by itself, as the paper has it."""
    x, c = problem.start, [0.0] * N
    own = [[0.0] * N for _ in range(DEVICES)]
    held = [list(x) for _ in range(DEVICES)]  # where a device's statistics are
    for cohort in problem.cohorts:
        change, shift = [0.0] * N, [0.0] * N
        for i in cohort:
            y = [held[i][k] if k in STATISTIC else x[k] for k in range(N)]
            for _ in range(STEPS):
                g = problem.gradient(i, y)
                for k in SCORED:
                    y[k] -= RATE * (g[k] - own[i][k] + c[k])
                y = problem.drifted(i, y)
            held[i] = y
            new = list(own[i])
            for k in SCORED:
                new[k] = own[i][k] - c[k] + (x[k] - y[k]) / (STEPS * RATE)
                change[k] += (y[k] - x[k]) / len(cohort)
                shift[k] += (new[k] - own[i][k]) / DEVICES
            own[i] = new
        x = [x[k] + server_lr * change[k] for k in range(N)]
        c = [c[k] + shift[k] for k in range(N)]
    return x, c


@pytest.mark.parametrize(("seed", "server_lr"), [(0, 1.0), (1, 1.0), (2, 0.5)])
def test_algorithm_1(seed: int, server_lr: float) -> None:
    problem = Problem.of(seed)
    x, c = twin(problem, server_lr)
    state, _ = play(Scaffold(server_lr=server_lr), problem)
    np.testing.assert_allclose(state.theta, x, rtol=0, atol=2e-5)
    np.testing.assert_allclose(state.arrays[VARIATE], c, rtol=0, atol=2e-5)


def test_it_converges_where_fedavg_drifts() -> None:
    """Everybody in every round, for long: the sum of the gradients is 0 where SCAFFOLD ends, not FedAvg."""
    problem = Problem.of(0).of_everybody()
    ends = [play(kind(), problem)[0].theta.tolist() for kind in (Scaffold, FedAvg)]
    assert problem.slope(ends[0]) < 1e-4 < 1e-2 < problem.slope(ends[1])
