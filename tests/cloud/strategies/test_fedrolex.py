"""FedRolex as a coordinator sees it; the paper is in tests/paper."""

from dataclasses import replace

import numpy as np
from tests.cloud.contexts import follow
from tests.cloud.forms import RESIDUAL, Residual, context_of, layout_of, random_theta

from sedge_cloud.algorithms.submodels import form_of
from sedge_cloud.strategies.fedrolex import FedRolex
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import ClientModel, Context, Strategy, Update
from sedge_protocol.layout import Theta

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
CONTEXT = context_of(LAYOUT, RESIDUAL, THETA, (0.5,))
STRATEGY = FedRolex(dropped=(0.0, 0.5))


def start_of(context: Context, strategy: Strategy = STRATEGY) -> Theta:
    """Where a narrow device starts."""
    start = strategy.plan(context, ClientModel(device="d1")).start
    assert start is not None
    return start


def test_the_window_moves_by_one_in_every_round() -> None:
    form = form_of(CONTEXT, 1)
    stem = LAYOUT.views(THETA)["stem.weight"]
    np.testing.assert_array_equal(
        start_of(CONTEXT), start_of(CONTEXT, HeteroFL(dropped=(0.0, 0.5)))
    )
    for number in (0, 5, 13):
        found = form.layout.views(start_of(replace(CONTEXT, round=number)))["stem.weight"]
        np.testing.assert_array_equal(found, np.roll(stem, -number, axis=0)[:4])


def test_what_was_cut_in_a_round_is_put_back_in_that_round() -> None:
    context = replace(CONTEXT, round=6)
    start = start_of(context)
    same = STRATEGY.apply(context, [Update("d1", 5, start, width=1)])
    np.testing.assert_array_equal(same.theta, THETA)
    moved = STRATEGY.apply(context, [Update("d1", 5, start + 1, width=1)])
    changed = LAYOUT.views(moved.theta - THETA)["stem.weight"].reshape(8, -1).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [0, 1, 6, 7]


def test_in_as_many_rounds_as_channels_everything_is_trained() -> None:
    context = CONTEXT
    for _ in range(max(RESIDUAL.channels)):
        update = Update("d1", 5, start_of(context) + 1, width=1)
        context = follow(context, STRATEGY.apply(context, [update]))
    views = LAYOUT.views(context.theta - THETA)
    for name in ("stem.weight", "norm.bias", "classifier.weight"):
        assert (views[name] > 0.5).all(), name
