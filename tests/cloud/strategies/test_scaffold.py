"""SCAFFOLD as a coordinator sees it: first rounds, hostile numbers; the paper is in tests/paper."""

import numpy as np
import pytest
from tests.cloud.contexts import context_of, follow

from sedge_cloud.strategies.scaffold import CORRECTION, VARIATE, Scaffold
from sedge_cloud.strategy import Assignment, ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Training

LAYOUT = Layout.of([("w", (2,), Role.PARAMETER), ("s", (1,), Role.STATISTIC)])
THETA = np.ones(3, np.float32)
CONTEXT = context_of(LAYOUT, THETA, training=Training(learning_rate=0.5), devices=4)


def dense(*values: float) -> SparseVector:
    return SparseVector(3, None, np.array(values, np.float32))


def test_momentum_is_refused() -> None:
    context = context_of(LAYOUT, THETA, training=Training(momentum=0.5))
    with pytest.raises(ConfigError, match=r"training\.momentum: found 0\.5, expected 0: scaffold"):
        Scaffold().init(context)


def test_two_rounds_by_hand() -> None:
    """c moves by the share of all who are enrolled; a new device's own variate is 0."""
    strategy = Scaffold()
    assert strategy.plan(CONTEXT, ClientModel()) == Assignment()
    sent = dense(-2, 4, 0)  # in two steps of 0.5: a mean gradient of 2, -4
    state = strategy.apply(CONTEXT, [Update("a", 9, THETA, delta=sent, steps=2)])
    assert state.theta.tolist() == [-1, 5, 1]
    assert state.arrays[VARIATE].tolist() == [0.5, -1, 0]
    context = follow(CONTEXT, state)
    new = strategy.plan(context, ClientModel())
    assert new.correction is not None and new.correction.tolist() == [0.5, -1, 0]
    known = ClientModel(state.theta, 1, {}, "a", sent, steps=2)
    plan = strategy.plan(context, known)
    assert plan.correction is not None and plan.correction.tolist() == [-1.5, 3, 0]
    np.testing.assert_array_equal(plan.arrays[CORRECTION], plan.correction)
    assert strategy.apply(context, []).arrays[VARIATE].tolist() == [0.5, -1, 0]


def test_what_a_device_says_ends_no_run() -> None:
    """No steps, and the largest change there is: what it is given to add is finite, and so is c."""
    wild = Update("a", 1, THETA, delta=dense(3e38, -3e38, 0), steps=0)
    context = follow(CONTEXT, Scaffold().apply(CONTEXT, [wild, Update("b", 1, THETA)]))
    client = ClientModel(THETA, 1, {}, "a", wild.delta, steps=0)
    for _ in range(3):
        plan = Scaffold().plan(context, client)
        assert plan.correction is not None and np.isfinite(plan.correction).all()
        client = ClientModel(THETA, 2, plan.arrays, "a", wild.delta, steps=0)
    assert np.isfinite(context.arrays[VARIATE]).all()
