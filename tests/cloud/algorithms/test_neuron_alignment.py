"""Models in each other's neurons: permutations undone, functions kept, residual streams, odd networks."""

import numpy as np
import pytest
from tests.cloud.forms import plain, random_theta, rearranged, residual

from sedge_cloud.algorithms.neuron_alignment import Aligner, in_order, made_along
from sedge_cloud.algorithms.optimal_transport import Solver
from sedge_cloud.algorithms.submodels import Form
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Theta

EXACT: tuple[Solver, ...] = ("emd", "assign")


def shuffled(theta: Theta, whole: Form, rng: np.random.Generator) -> Theta:
    """The same model (n,) with its channels in another order."""
    return rearranged(theta, whole, [rng.permutation(count) for count in whole.axes.channels])


@pytest.mark.parametrize(
    ("whole", "solver"),
    [(plain(8, 12, 30), "emd"), (residual(), "sinkhorn"), (residual(), "assign")],
    ids=["plain, emd", "residual, sinkhorn", "residual, assign"],
)
def test_a_permuted_copy_is_recovered(whole: Form, solver: Solver) -> None:
    rng = np.random.default_rng(5)
    theta = random_theta(whole.layout, rng)
    copy = shuffled(theta, whole, rng)
    assert not np.array_equal(copy, theta)
    found = Aligner(solver).align(copy, whole, theta, whole)
    assert found.cover is None
    if solver in EXACT:
        np.testing.assert_array_equal(found.theta, theta)
    else:
        np.testing.assert_allclose(found.theta, theta, atol=1e-3)


def test_an_embedding_and_a_transposed_convolution_make_channels_too() -> None:
    # embedding (20, 4) - linear (6, 4) - transposed convolution (6, 3, 2) with bias - linear (5, 3)
    axes = Axes((4, 6, 3), ((FIXED, 0), (1, 0), (1,), (1, 2, FIXED), (2,), (FIXED, 2)))
    assert made_along(axes) == (1, 0, 0, 1, 0, -1)
    assert in_order(axes, made_along(axes)) == ((0, 1, 2), False)


def test_a_cycle_is_solved_with_all_that_is_known_in_the_end() -> None:
    # Two channels of the stem are alike; only what the block adds to them tells them apart.
    whole = residual()
    rng = np.random.default_rng(4)
    theta = random_theta(whole.layout, rng)
    views = whole.layout.views(theta)
    for name in ("stem.weight", "norm.weight", "norm.bias", "outer_norm.weight", "outer_norm.bias"):
        views[name][1] = views[name][0]
    copy = shuffled(theta, whole, rng)
    found = whole.layout.views(Aligner("emd").align(copy, whole, theta, whole).theta)
    np.testing.assert_array_equal(found["outer.weight"][:2], views["outer.weight"][:2])
    np.testing.assert_array_equal(found["stem.weight"], views["stem.weight"])


def test_a_model_that_is_not_finite_is_refused() -> None:
    whole = plain(2, 2, 2)
    theta = random_theta(whole.layout, np.random.default_rng(0))
    broken = theta.copy()
    broken[0] = np.inf
    with pytest.raises(StrategyError, match="cost"), np.errstate(invalid="ignore"):
        Aligner().align(broken, whole, theta, whole)
