"""FedProx's assignment."""

import numpy as np
import pytest
from tests.paper.toy_fleet import LAYOUT

from sedge_cloud.strategies.fedprox import FedProx
from sedge_cloud.strategy import Memory
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training


def test_the_runs_training_and_mu() -> None:
    strategy = FedProx(mu=0.25)
    state = strategy.init(LAYOUT, np.zeros(LAYOUT.size, np.float32))
    run = Training(local_epochs=3, learning_rate=0.2, momentum=0.5, prox=9.0)
    plan = strategy.plan(state, Memory(), run)
    assert plan.training == Training(local_epochs=3, learning_rate=0.2, momentum=0.5, prox=0.25)
    assert plan.keep == LAYOUT.statistics and plan.upload and plan.patch is None


@pytest.mark.parametrize("mu", [-0.1, float("nan"), 1e7])
def test_refuses(mu: float) -> None:
    with pytest.raises(ConfigError, match="mu: found"):
        FedProx(mu=mu)
