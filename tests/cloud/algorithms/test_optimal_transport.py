"""Plans: their sums, their optimality, what they find in permuted sets, and life without SciPy."""

import subprocess
import sys
from itertools import product

import numpy as np
import pytest
from tests.fleet import always

from sedge_cloud.algorithms import optimal_transport as transport
from sedge_cloud.algorithms.optimal_transport import Matrix, Solver, plan_between
from sedge_protocol.errors import ConfigError, StrategyError

SOLVERS: tuple[Solver, ...] = ("emd", "sinkhorn", "assign")
EXACT: tuple[Solver, ...] = ("emd", "assign")


def a_cost(shape: tuple[int, int], seed: int = 0) -> Matrix:
    return np.random.default_rng(seed).exponential(size=shape)


@pytest.mark.parametrize("shape", [(6, 8), (8, 6), (3, 3), (4, 2)])
def test_exact_ways_give_one_plan(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    cost = a_cost(shape)
    by_copies = plan_between(cost, "emd")
    monkeypatch.setattr(transport, "lcm", always(10**9))
    np.testing.assert_allclose(plan_between(cost, "emd"), by_copies, atol=1e-15)


def test_sinkhorn_is_the_fixed_point_of_its_problem() -> None:
    # log T = f_j + g_k - C / reg: every 2 x 2 block of log T + C / reg adds up crosswise.
    cost, reg = a_cost((5, 4)), 0.1
    rest = np.log(plan_between(cost, "sinkhorn", reg)) + cost / (reg * cost.max())
    cross = rest[1:, 1:] + rest[:-1, :-1] - rest[1:, :-1] - rest[:-1, 1:]
    np.testing.assert_allclose(cross, 0, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_nothing_to_choose_is_still_a_plan(solver: Solver) -> None:
    plan = plan_between(np.zeros((4, 2)), solver)
    assert plan.sum() == pytest.approx(1)
    np.testing.assert_allclose(plan.sum(axis=0), 0.5)


@pytest.mark.parametrize("reg", [transport.MIN_REG, 1.0])
def test_sinkhorn_stays_finite_at_the_ends_of_its_range(reg: float) -> None:
    cost = a_cost((40, 30)) + 10 * np.eye(40, 30)
    plan = plan_between(cost, "sinkhorn", reg)
    assert np.isfinite(plan).all()
    assert plan.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    "cost",
    [np.zeros(4), np.zeros((0, 3)), np.full((2, 2), np.nan), np.full((2, 2), -1.0), [[1, np.inf]]],
)
def test_refuses_what_is_no_cost(cost: object) -> None:
    for solver in SOLVERS:
        with pytest.raises(StrategyError, match="cost"):
            plan_between(np.asarray(cost, np.float64), solver)


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "find_spec", always(None))
    for solver, shape in product(EXACT, [(2, 2), (3, 2)]):
        with pytest.raises(ConfigError, match=r"sedge-fl\[subflot\]") as caught:
            plan_between(a_cost(shape), solver)
        assert (caught.value.key, caught.value.found) == ("solver", solver)
    assert plan_between(a_cost((2, 2)), "sinkhorn").sum() == pytest.approx(1)


def test_scipy_is_loaded_by_the_solvers_that_need_it() -> None:
    code = (
        "import sys, numpy as np, sedge_cloud.strategies.subflot as s;"
        "s.SubFLOT(); from sedge_cloud.algorithms.optimal_transport import plan_between;"
        "plan_between(np.ones((3, 2)), 'sinkhorn'); print('scipy' in sys.modules);"
        "plan_between(np.ones((3, 2)), 'emd'); print('scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
