"""SCAFFOLD as a coordinator sees it: first rounds, hostile numbers; the paper is in tests/paper."""

import numpy as np
import pytest
from tests.cloud.contexts import context_of, follow

from sedge_cloud.strategies.scaffold import VARIATE, Scaffold
from sedge_cloud.strategy import ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.training import Training

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


@pytest.mark.parametrize("steps", [1, 3, 9])
@pytest.mark.parametrize("schedule", [(0, 1.0), (0, 0.25), (4, 1.0), (4, 3.0)])
def test_a_rounds_rates_are_out_of_the_variates(steps: int, schedule: tuple[int, float]) -> None:
    """A device with one gradient everywhere: c_i is that gradient, and c is a device's share of it.

    The round after has another rate, which is no concern of the one before.
    """
    warmup, end = schedule
    training = Training(learning_rate=0.5, warmup_steps=warmup, end_factor=end)
    before = context_of(LAYOUT, THETA, training=training, devices=4)
    way = sum(training.rate(step, steps) for step in range(steps))
    gradient, assigned = np.array([2.0, -1.0, 0.0]), Scaffold().plan(before, ClientModel())
    sent = dense(*(-way * gradient))
    state = Scaffold().apply(before, [Update("a", 1, THETA, delta=sent, steps=steps)])
    np.testing.assert_allclose(state.arrays[VARIATE], gradient / 4, rtol=1e-6)
    later = context_of(LAYOUT, THETA, training=Training(learning_rate=0.1), devices=4)
    client = ClientModel(THETA, 1, assigned.arrays, "a", sent, steps=steps)
    found = Scaffold().plan(follow(later, state), client).correction
    assert found is not None
    np.testing.assert_allclose(found, gradient / 4 - gradient, rtol=1e-6)


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
