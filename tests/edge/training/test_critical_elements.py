"""The critical elements against a twin that reads like the paper, and every edge of the rule by hand."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_edge.training.critical_elements import critical, sparsified
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.work import UpdateSelection

LAYOUT = Layout.of(
    [
        ("conv.weight", (5, 4), Role.PARAMETER),
        ("norm.weight", (4,), Role.PARAMETER),
        ("norm.running_mean", (4,), Role.STATISTIC),
        ("scale", (), Role.PARAMETER),
        ("head.weight", (3, 4), Role.PARAMETER),
        ("head.bias", (3,), Role.PARAMETER),
    ]
)
KEEP = ("norm.weight", "norm.running_mean")


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def twin(
    theta: Theta, gradient: Theta, keep: tuple[str, ...], options: UpdateSelection
) -> list[int]:
    """ALGORITHM 1's mask, element by element, in float64."""
    chosen: list[int] = []
    for tensor in LAYOUT.tensors:
        if tensor.name in keep or tensor.role is Role.STATISTIC:
            continue
        c: list[float] = []
        for k in range(tensor.offset, tensor.offset + tensor.size):
            g = float(np.float16(gradient[k])) if options.half else float(gradient[k])
            x = g * float(theta[k])
            c.append(abs(-x + 0.5 * x * x) if options.hessian else abs(x))
        z = int(options.fraction * tensor.size)
        if z == 0:
            continue
        threshold = sorted(c, reverse=True)[z - 1]
        if threshold <= options.cutoff:
            threshold = min((score for score in c if score > options.cutoff), default=math.inf)
        chosen += [tensor.offset + k for k, score in enumerate(c) if score >= threshold]
    return chosen


@pytest.mark.parametrize("hessian", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("fraction", [0.04, 0.5, 1.0])
@pytest.mark.parametrize("cutoff", [0.0, 0.05])
def test_the_twin_agrees(hessian: bool, half: bool, fraction: float, cutoff: float) -> None:
    options = UpdateSelection(fraction, "last", hessian, cutoff, half)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        # Multiples of 1/16 below 2: every score is exact in float32 and in float64, so the two agree
        # on ties, of which there are many.
        theta = (rng.integers(-31, 32, LAYOUT.size) / 16).astype(np.float32)
        gradient = (rng.integers(-15, 16, LAYOUT.size) / 16).astype(np.float32)
        gradient[rng.random(LAYOUT.size) < 0.3] = 0
        keep = KEEP if seed % 2 else ()
        found = critical(theta, gradient, LAYOUT, keep, options)
        assert found.dtype == np.uint32
        assert found.tolist() == twin(theta, gradient, keep, options)


ONE = Layout.of([("w", (4,), Role.PARAMETER)])


@pytest.mark.parametrize(
    ("gradient", "options", "expected"),
    [
        ([4, 3, 2, 1], UpdateSelection(0.5), [0, 1]),
        ([4, 3, 3, 1], UpdateSelection(0.5), [0, 1, 2]),  # what ties with the last one goes too
        ([4, 3, 2, 1], UpdateSelection(0.2), []),  # floor(.8) = 0
        ([4, 3, 2, 1], UpdateSelection(1.0), [0, 1, 2, 3]),
        ([4, 0, 0, 0], UpdateSelection(0.5), [0]),  # zeros are never critical
        ([4, 1e-11, 1e-9, 0], UpdateSelection(0.75), [0, 2]),
        ([0, 0, 0, 0], UpdateSelection(0.5), []),
        ([1e-11, 1e-11, 0, 0], UpdateSelection(0.5), []),
        ([4, 3, 2, 1], UpdateSelection(0.5, cutoff=1.0), [0, 1]),
        ([0.9, 0.8, 0.7, 0.6], UpdateSelection(0.5, cutoff=1.0), []),
        ([1, 1e-8, 2e-8, 5e-8], UpdateSelection(1.0, half=True), [0, 3]),
        ([1, 2, 3, 5], UpdateSelection(0.25, hessian=True), [3]),  # .5, 0, 1.5, 7.5
        ([1, 2, 0.5, 2], UpdateSelection(0.75, hessian=True), [0, 2]),  # c = 0 where g theta = 2
    ],
)
def test_every_edge(gradient: list[float], options: UpdateSelection, expected: list[int]) -> None:
    theta = np.ones(4, np.float32)
    assert critical(theta, vector(*gradient), ONE, (), options).tolist() == expected


@pytest.mark.parametrize("half", [False, True])
def test_scores_beyond_float32_are_the_largest(half: bool) -> None:
    theta, gradient = vector(3e38, 1, 0, 2), vector(3e38, 1, 3e38, -1)
    for hessian in (False, True):
        options = UpdateSelection(0.25, hessian=hessian, half=half)
        assert critical(theta, gradient, ONE, (), options).tolist() == [0]


def test_nothing_to_choose_from() -> None:
    found = critical(vector(1, 2, 3, 4), vector(1, 1, 1, 1), ONE, ("w",), UpdateSelection())
    assert found.dtype == np.uint32
    assert found.size == 0


def test_what_is_not_chosen_becomes_zero_and_what_is_kept_stays() -> None:
    theta = np.arange(1, LAYOUT.size + 1, dtype=np.float32)
    found = sparsified(theta, np.array([0, 7, LAYOUT.size - 1], np.uint32), LAYOUT, KEEP)
    expected = np.zeros_like(theta)
    expected[[0, 7, LAYOUT.size - 1]] = theta[[0, 7, LAYOUT.size - 1]]
    expected[20:28] = theta[20:28]
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(theta, np.arange(1, LAYOUT.size + 1))
