"""Models in each other's neurons: permutations undone, functions kept, residual streams, odd networks."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.forms import (
    PLAIN,
    RESIDUAL,
    Plain,
    Residual,
    form,
    layout_of,
    logits,
    random_theta,
    rearranged,
)

from sedge_cloud.algorithms.neuron_alignment import Aligner, in_order, made_along
from sedge_cloud.algorithms.optimal_transport import Solver
from sedge_cloud.algorithms.submodels import Form
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Layout, Role

SOLVERS: tuple[Solver, ...] = ("emd", "sinkhorn", "assign")
EXACT: tuple[Solver, ...] = ("emd", "assign")
Choice = list[NDArray[np.intp]]


def shuffled(channels: tuple[int, ...], rng: np.random.Generator) -> Choice:
    return [rng.permutation(count) for count in channels]


def doubled(channels: tuple[int, ...], rng: np.random.Generator) -> Choice:
    """Every channel twice, anywhere."""
    return [rng.permutation(np.arange(count).repeat(2)) for count in channels]


# Permutations and identity.


@pytest.mark.parametrize(
    ("kind", "solver"), [("plain", "emd"), ("residual", "sinkhorn"), ("residual", "assign")]
)
def test_a_permuted_copy_is_recovered(kind: str, solver: Solver) -> None:
    rng = np.random.default_rng(5)
    module, axes = (Plain(8, 12, 30), PLAIN) if kind == "plain" else (Residual(), RESIDUAL)
    channels = (8, 12, 30) if kind == "plain" else RESIDUAL.channels
    whole = form(module, axes, channels)
    theta = random_theta(whole.layout, rng)
    copy = rearranged(theta, whole, shuffled(channels, rng), whole)
    assert not np.array_equal(copy, theta)
    found = Aligner(solver).align(copy, whole, theta, whole)
    assert found.cover is None
    if solver in EXACT:
        np.testing.assert_array_equal(found.theta, theta)
    else:
        np.testing.assert_allclose(found.theta, theta, atol=1e-3)


def test_a_model_without_axes_is_itself() -> None:
    layout = layout_of(Residual())
    fixed = Form(layout, Axes((), tuple((FIXED,) * len(t.shape) for t in layout.tensors)))
    rng = np.random.default_rng(0)
    theta, other = random_theta(layout, rng), random_theta(layout, rng)
    found = Aligner().align(theta, fixed, other, fixed)
    np.testing.assert_array_equal(found.theta, theta)
    assert found.cover is None


# The mass rule keeps the function.

NETS = [
    (Plain(8, 6, 20), Plain(4, 3, 10), PLAIN, (8, 6, 20), (4, 3, 10)),
    (Residual(8, 6, 10), Residual(4, 3, 5), RESIDUAL, (8, 6, 10), (4, 3, 5)),
]


@pytest.mark.parametrize("net", NETS, ids=["plain", "residual"])
@pytest.mark.parametrize("solver", ["emd", "sinkhorn"])
def test_doubled_neurons_are_merged_and_the_function_stays(
    net: tuple[Plain, Plain, Axes, tuple[int, ...], tuple[int, ...]], solver: Solver
) -> None:
    large, small, axes, many, few = net
    rng = np.random.default_rng(7)
    wide, narrow = form(large, axes, many), form(small, axes, few)
    theta = random_theta(narrow.layout, rng)
    twice = rearranged(theta, narrow, doubled(few, rng), wide)
    said = logits(small, narrow.layout, theta)
    np.testing.assert_allclose(logits(large, wide.layout, twice), said, atol=1e-4)

    merged = Aligner(solver).align(twice, wide, theta, narrow).theta
    np.testing.assert_allclose(merged, theta, atol=1e-3)
    np.testing.assert_allclose(logits(small, narrow.layout, merged), said, rtol=1e-3, atol=1e-3)

    split = Aligner(solver).align(theta, narrow, twice, wide).theta
    np.testing.assert_allclose(split, twice, atol=1e-3)
    np.testing.assert_allclose(logits(large, wide.layout, split), said, rtol=1e-3, atol=1e-3)


# One partner each.


def test_cover_counts_every_element_behind_a_flattened_image() -> None:
    wide, narrow = (
        Form(Layout.of(shapes), Axes((2,), ((0,), (FIXED, 0))))
        for shapes in (
            [("a.bias", (2,), Role.PARAMETER), ("b.weight", (3, 8), Role.PARAMETER)],
            [("a.bias", (1,), Role.PARAMETER), ("b.weight", (3, 4), Role.PARAMETER)],
        )
    )
    narrow = Form(narrow.layout, Axes((1,), narrow.axes.dims))
    theta = np.arange(wide.layout.size, dtype=np.float32)
    own = np.array([0.9, *np.arange(12)], np.float32)  # nearest to channel 1, whose bias is 1
    back = Aligner("assign").align(own, narrow, theta, wide)
    assert back.cover is not None
    assert back.cover.tolist() == [0, 1] + 3 * [0, 0, 0, 0, 1, 1, 1, 1]


# Order and sides.


def test_an_embedding_and_a_transposed_convolution_make_channels_too() -> None:
    # embedding (20, 4) - linear (6, 4) - transposed convolution (6, 3, 2) with bias - linear (5, 3)
    axes = Axes((4, 6, 3), ((FIXED, 0), (1, 0), (1,), (1, 2, FIXED), (2,), (FIXED, 2)))
    assert made_along(axes) == (1, 0, 0, 1, 0, -1)
    assert in_order(axes, made_along(axes)) == ((0, 1, 2), False)


def test_a_model_registered_backwards_is_recovered() -> None:
    layout = Layout.of(
        [
            ("head.weight", (2, 4), Role.PARAMETER),
            ("second.weight", (4, 5), Role.PARAMETER),
            ("first.weight", (5, 3), Role.PARAMETER),
        ]
    )
    whole = Form(layout, Axes((4, 5), ((FIXED, 0), (0, 1), (1, FIXED))))
    rng = np.random.default_rng(3)
    theta = random_theta(layout, rng)
    copy = rearranged(theta, whole, shuffled((4, 5), rng), whole)
    np.testing.assert_array_equal(Aligner("emd").align(copy, whole, theta, whole).theta, theta)


def test_a_cycle_is_solved_with_all_that_is_known_in_the_end() -> None:
    # Two channels of the stem are alike; only what the block adds to them tells them apart.
    whole = form(Residual(), RESIDUAL, RESIDUAL.channels)
    rng = np.random.default_rng(4)
    theta = random_theta(whole.layout, rng)
    views = whole.layout.views(theta)
    for name in ("stem.weight", "norm.weight", "norm.bias", "outer_norm.weight", "outer_norm.bias"):
        views[name][1] = views[name][0]
    copy = rearranged(theta, whole, shuffled(RESIDUAL.channels, rng), whole)
    found = whole.layout.views(Aligner("emd").align(copy, whole, theta, whole).theta)
    np.testing.assert_array_equal(found["outer.weight"][:2], views["outer.weight"][:2])
    np.testing.assert_array_equal(found["stem.weight"], views["stem.weight"])


def test_statistics_go_along_but_do_not_count() -> None:
    whole = form(Residual(), RESIDUAL, RESIDUAL.channels)
    rng = np.random.default_rng(2)
    theta = random_theta(whole.layout, rng)
    other = theta.copy()
    for name in whole.layout.statistics:
        place = whole.layout.by_name[name].slice
        other[place] = rng.exponential(100, other[place].shape)
    copy = rearranged(other, whole, shuffled(RESIDUAL.channels, rng), whole)
    np.testing.assert_array_equal(Aligner("emd").align(copy, whole, theta, whole).theta, other)


def test_a_model_that_is_not_finite_is_refused() -> None:
    whole = form(Plain(2, 2, 2), PLAIN, (2, 2, 2))
    theta = random_theta(whole.layout, np.random.default_rng(0))
    broken = theta.copy()
    broken[0] = np.inf
    with pytest.raises(LocalError, match="cost"), np.errstate(invalid="ignore"):
        Aligner().align(broken, whole, theta, whole)
