"""Matches two sets of neurons, sources and targets, by optimal transport.

Each set has a total weight of 1, shared equally among its neurons (uniform marginals mu, nu). The plan T
(M, m) says how much of each source goes to each target, at minimal total cost <C, T>:

    emd        the exact optimum: neurons are merged or split where the sets differ in size
    sinkhorn   the optimum of cost - reg * max(C) * entropy(T): fast and smooth, never one-to-one
    assign     one-to-one: the larger set has neurons without a partner

SciPy solves the exact problems and is imported only for them. To match 512 neurons to 384, one core takes 2
ms (assign), 6 ms (sinkhorn) and 0.3 s (emd). If the sizes have no small common multiple, such as 512 and
359, emd takes 1.2 s. M and m are the numbers of sources and targets.
"""

from importlib.util import find_spec
from math import lcm
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import ConfigError, StrategyError

Solver = Literal["emd", "sinkhorn", "assign"]
Matrix = NDArray[np.float64]

# With a smaller reg, the smallest exp(-C / reg) underflows float64.
MIN_REG = 0.002
# Sinkhorn stops once every row sum has reached this relative precision, or after this many steps.
_PRECISION = 1e-6
_STEPS = 1000
# If the sizes have a small common multiple, the problem is solved as an assignment of copies of the
# neurons. To match 512 neurons to 384, this takes a quarter of the time of a linear program.
_COPIES = 4
_LARGEST_ASSIGNMENT = 4096


def require_solver(solver: Solver) -> None:
    """Raise ``ConfigError``, which says what to install, if the solver is not available."""
    if solver != "sinkhorn" and find_spec("scipy") is None:
        expected = "SciPy, which it needs: pip install 'sedge-fl[subflot]', or solver = 'sinkhorn'"
        raise ConfigError("solver", solver, expected)


def plan_between(cost: Matrix, solver: Solver, reg: float = 0.01) -> Matrix:
    """Return the plan T (M, m), whose sum is 1, for a ``cost`` (M, m); ``reg`` is used only by sinkhorn.

    Every row of T sums to 1/M and every column to 1/m; with ``assign``, rows and columns without a partner
    sum to 0 and the others to 1/min(M, m). Raises ``StrategyError`` for a cost that is negative or not
    finite, and ``ConfigError`` if the solver needs SciPy and it is missing.
    """
    if cost.ndim != 2 or not cost.size or not np.isfinite(cost).all() or cost.min() < 0:
        raise StrategyError(f"cost: {cost.shape}, expected (M, m) of finite numbers of 0 or more")
    require_solver(solver)
    if solver == "sinkhorn":
        return _sinkhorn(cost, reg)
    if solver == "assign":
        return _assignment(cost) / float(min(cost.shape))
    sources, targets = cost.shape
    common, larger = lcm(sources, targets), max(cost.shape)
    if common <= max(larger, min(_COPIES * larger, _LARGEST_ASSIGNMENT)):
        return _by_copies(cost, common)
    return _by_program(cost)


def _assignment(cost: Matrix) -> Matrix:
    """Return the unscaled plan (M, m), which is 1 where a source is paired with a target."""
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    plan = np.zeros(cost.shape)
    plan[linear_sum_assignment(cost)] = 1
    return plan


def _by_copies(cost: Matrix, common: int) -> Matrix:
    """Compute the exact plan by assigning copies of neurons to each other, ``common`` on each side."""
    sources, targets = cost.shape
    copies = cost.repeat(common // sources, axis=0).repeat(common // targets, axis=1)
    pairs = _assignment(copies).reshape(sources, common // sources, targets, common // targets)
    plan: Matrix = pairs.sum(axis=(1, 3)) / common
    return plan


def _by_program(cost: Matrix) -> Matrix:
    """Compute the exact plan by solving the transport problem as a linear program.

    With m units available at each source and M wanted at each target, every vertex of the program is
    integral, so rounding makes the solution exact.
    """
    from scipy.optimize import linprog
    from scipy.sparse import csc_array  # type: ignore[import-untyped]

    sources, targets = cost.shape
    row, column = (place.ravel() for place in np.indices(cost.shape))
    both = np.concatenate([row, sources + column])
    variable = np.tile(np.arange(cost.size), 2)
    sums = csc_array((np.ones(both.size), (both, variable)))  # (M + m, M m)
    units = np.repeat([targets, sources], [sources, targets])
    # The solver's tolerances are absolute: without scaling, costs below 1e-7 would all look optimal.
    scaled = cost.ravel() / (cost.max() or 1.0)
    solution = linprog(scaled, A_eq=sums, b_eq=units, bounds=(0, None), method="highs-ds")
    if not solution.success:
        raise StrategyError(f"transport of {sources} to {targets} neurons: {solution.message}")
    plan: Matrix = np.rint(solution.x).reshape(cost.shape) / cost.size
    return plan


def _sinkhorn(cost: Matrix, reg: float) -> Matrix:
    """Compute the entropic plan.

    Its column sums are exact; its row sums are approximate (see _PRECISION and _STEPS).
    """
    sources, targets = cost.shape
    highest = cost.max()
    if highest == 0:
        return np.full(cost.shape, 1 / cost.size)
    kernel = np.exp(cost / (-reg * highest))
    left = np.ones(sources)
    right = 1 / (targets * (left @ kernel))
    for _ in range(_STEPS):
        sums = kernel @ right
        if np.abs(sources * left * sums - 1).max() <= _PRECISION:
            break
        left = 1 / (sources * sums)
        right = 1 / (targets * (left @ kernel))
    plan: Matrix = left[:, None] * kernel * right
    return plan
