"""FedRolex as a coordinator sees it; the paper is in tests/paper."""

from dataclasses import replace

import numpy as np
from tests.cloud.forms import RESIDUAL, Residual, layout_of, random_theta, state_of

from sedge_cloud.algorithms.submodels import form_of
from sedge_cloud.strategies.fedrolex import FedRolex
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import Memory, Update
from sedge_protocol.wire.messages import Training

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
STATE = state_of(LAYOUT, RESIDUAL, THETA, (0.5,))
NARROW = Memory(device="d1")
STRATEGY = FedRolex(rates=(0.0, 0.5))


def test_begins_where_heterofl_does() -> None:
    start = STRATEGY.plan(STATE, NARROW, Training()).start
    other = HeteroFL(rates=(0.0, 0.5)).plan(STATE, NARROW, Training()).start
    assert start is not None
    assert other is not None
    np.testing.assert_array_equal(start, other)


def test_the_window_moves_by_one_in_every_round() -> None:
    form = form_of(STATE, 1)
    stem = LAYOUT.views(THETA)["stem.weight"]
    for number in (0, 1, 5, 8, 13):
        start = STRATEGY.plan(replace(STATE, round=number), NARROW, Training()).start
        assert start is not None
        found = form.layout.views(start)["stem.weight"]
        np.testing.assert_array_equal(found, np.roll(stem, -number, axis=0)[:4])


def test_what_was_cut_in_a_round_is_put_back_in_that_round() -> None:
    state = replace(STATE, round=6)
    start = STRATEGY.plan(state, NARROW, Training()).start
    assert start is not None
    same = STRATEGY.apply(state, [Update("d1", 5, start, width=1)])
    np.testing.assert_array_equal(same.theta, THETA)
    moved = STRATEGY.apply(state, [Update("d1", 5, start + 1, width=1)])
    changed = LAYOUT.views(moved.theta - THETA)["stem.weight"].reshape(8, -1).any(axis=1)
    assert np.flatnonzero(changed).tolist() == [0, 1, 6, 7]
    assert moved.round == 7


def test_in_as_many_rounds_as_channels_everything_is_trained() -> None:
    state, parameter = STATE, ~LAYOUT.mask(LAYOUT.statistics)
    for _ in range(max(RESIDUAL.channels)):
        start = STRATEGY.plan(state, NARROW, Training()).start
        assert start is not None
        state = STRATEGY.apply(state, [Update("d1", 5, start + 1, width=1)])
    views = LAYOUT.views(state.theta - THETA)
    for name in ("stem.weight", "norm.bias", "classifier.weight"):
        assert (views[name] > 0.5).all(), name
    assert (state.theta - THETA)[parameter].any()
