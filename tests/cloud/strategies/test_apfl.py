"""APFL's assignment, and alpha's way from a device's report into its next order."""

import numpy as np
import pytest
from tests.paper.toy_fleet import LAYOUT

from sedge_cloud.strategies.apfl import APFL, LARGEST
from sedge_cloud.strategy import Memory
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training


@pytest.mark.parametrize(
    ("adaptive", "reported", "mix"),
    [
        (True, None, 0.25),
        (True, 0.75, 0.75),
        (True, 0.0, 0.0),
        (True, 1.0, LARGEST),  # 1 would be Ditto's
        (False, None, 0.25),
        (False, 0.75, 0.25),
    ],
)
def test_alpha(adaptive: bool, reported: float | None, mix: float) -> None:
    strategy = APFL(alpha=0.25, adaptive=adaptive)
    state = strategy.init(LAYOUT, np.zeros(LAYOUT.size, np.float32))
    run = Training(local_epochs=3, learning_rate=0.2)
    plan = strategy.plan(state, Memory(mix=reported), run)
    assert plan.personal is not None
    assert (plan.personal.mix, plan.personal.adaptive) == (mix, adaptive)
    assert plan.personal.training == run and plan.training is None


@pytest.mark.parametrize("alpha", [-0.1, 1.0])
def test_refuses(alpha: float) -> None:
    with pytest.raises(ConfigError, match="alpha: found"):
        APFL(alpha=alpha)
