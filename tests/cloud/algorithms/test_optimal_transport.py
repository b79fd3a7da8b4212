"""Plans: their sums, their optimality, what they find in permuted sets, and life without SciPy."""

import subprocess
import sys
from itertools import permutations, product

import numpy as np
import pytest

from sedge_cloud.algorithms import optimal_transport as transport
from sedge_cloud.algorithms.optimal_transport import Matrix, Solver, plan_between
from sedge_protocol.errors import ConfigError, LocalError

SOLVERS: tuple[Solver, ...] = ("emd", "sinkhorn", "assign")
EXACT: tuple[Solver, ...] = ("emd", "assign")
# Equal, a multiple, a small common multiple, and one that only the linear program takes.
SHAPES = [(1, 1), (5, 5), (6, 3), (2, 6), (8, 6), (6, 8), (11, 7), (7, 11)]


def a_cost(shape: tuple[int, int], seed: int = 0) -> Matrix:
    return np.random.default_rng(seed).exponential(size=shape)


def _huge(*_: int) -> int:
    return 10**9


def _nothing(_: str) -> None:
    return None


def has_cheaper(cost: Matrix, plan: Matrix) -> bool:
    """Whether some plan with the same sums costs less: a negative cycle in the residual graph."""
    sources, targets = cost.shape
    way = np.full((sources + targets,) * 2, np.inf)
    way[:sources, sources:] = cost
    way[sources:, :sources] = np.where(plan > 1e-12, -cost, np.inf).T
    for middle in range(sources + targets):  # Floyd and Warshall
        way = np.minimum(way, way[:, [middle]] + way[[middle]])
    return bool((np.diag(way) < -1e-9).any())


@pytest.mark.parametrize("shape", SHAPES)
def test_emd_is_a_plan_that_none_undercuts(shape: tuple[int, int]) -> None:
    for seed in range(2):
        cost = a_cost(shape, seed)
        plan = plan_between(cost, "emd")
        np.testing.assert_allclose(plan.sum(axis=1), 1 / shape[0], rtol=1e-12)
        np.testing.assert_allclose(plan.sum(axis=0), 1 / shape[1], rtol=1e-12)
        assert plan.min() >= 0
        assert not has_cheaper(cost, plan)


def test_the_judge_sees_a_dear_plan() -> None:
    cost = a_cost((4, 4))
    assert has_cheaper(cost, np.roll(plan_between(cost, "emd"), 1, axis=0))
    assert has_cheaper(cost, np.full((4, 4), 1 / 16))


@pytest.mark.parametrize("shape", [(6, 8), (8, 6), (3, 3), (4, 2)])
def test_both_exact_ways_give_one_plan(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = a_cost(shape)
    by_copies = plan_between(cost, "emd")
    monkeypatch.setattr(transport, "lcm", _huge)
    np.testing.assert_allclose(plan_between(cost, "emd"), by_copies, atol=1e-15)


@pytest.mark.parametrize("shape", [(3, 3), (5, 3), (3, 5), (1, 4)])
def test_assign_is_the_cheapest_of_all_pairings(shape: tuple[int, int]) -> None:
    cost = a_cost(shape)
    few, many = sorted(shape)
    wide = cost if shape[0] == few else cost.T  # few rows
    best = min(sum(wide[j, k] for j, k in enumerate(p)) for p in permutations(range(many), few))
    plan = plan_between(cost, "assign")
    assert np.count_nonzero(plan) == few
    assert plan.sum() == pytest.approx(1)
    assert (plan * cost).sum() * few == pytest.approx(best)


@pytest.mark.parametrize("shape", SHAPES)
def test_sinkhorn_meets_the_sums_and_comes_near_emd(shape: tuple[int, int]) -> None:
    cost = a_cost(shape)
    exact = (plan_between(cost, "emd") * cost).sum()
    for reg in (0.5, 0.1, 0.02):
        plan = plan_between(cost, "sinkhorn", reg)
        np.testing.assert_allclose(plan.sum(axis=0), 1 / shape[1], rtol=1e-9)
        np.testing.assert_allclose(plan.sum(axis=1), 1 / shape[0], rtol=0.02)
        entropy = np.log(cost.size)  # no plan has more
        assert (plan * cost).sum() <= exact + reg * cost.max() * entropy + 0.02 * exact


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
        with pytest.raises(LocalError, match="cost"):
            plan_between(np.asarray(cost, np.float64), solver)


def test_without_scipy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "find_spec", _nothing)
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
