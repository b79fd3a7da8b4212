"""SCAFFOLD as a coordinator sees it: first rounds, hostile numbers; the paper is in tests/paper."""

import numpy as np
import pytest
from tests.cloud.contexts import context_of, follow

from sedge_cloud.strategies.scaffold import VARIATE, Scaffold
from sedge_cloud.strategy import ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Training

LAYOUT = Layout.of([("w", (2,), Role.PARAMETER), ("s", (1,), Role.STATISTIC)])
THETA = np.ones(3, np.float32)
CONTEXT = context_of(LAYOUT, THETA, training=Training(learning_rate=0.5), devices=4)


def dense(*values: float) -> SparseVector:
    return SparseVector(3, None, np.array(values, np.float32))


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (Training(momentum=0.5), r"training\.momentum: found 0\.5, expected 0: scaffold"),
        (Training(optimizer="adam"), r"training\.optimizer: found 'adam', expected plain SGD"),
        (Training(weight_decay=0.1), r"training\.optimizer: found 'sgd', expected plain SGD"),
    ],
)
def test_other_optimizers_are_refused(training: Training, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scaffold().init(context_of(LAYOUT, THETA, training=training))


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
