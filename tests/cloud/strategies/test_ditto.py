"""Ditto's assignment."""

import numpy as np
import pytest
from tests.paper.toy_fleet import LAYOUT

from sedge_cloud.strategies.ditto import Ditto
from sedge_cloud.strategy import Memory
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Personal, Training

RUN = Training(local_epochs=3, learning_rate=0.2)


@pytest.mark.parametrize(("epochs", "expected"), [(0, 3), (7, 7)])
def test_the_own_model_is_tied_to_the_start(epochs: int, expected: int) -> None:
    strategy = Ditto(lam=0.5, personal_epochs=epochs)
    state = strategy.init(LAYOUT, np.zeros(LAYOUT.size, np.float32))
    plan = strategy.plan(state, Memory(), RUN)
    own = Training(local_epochs=expected, learning_rate=0.2, prox=0.5)
    assert plan.personal == Personal(own, mix=1.0)
    assert plan.training is None and plan.upload  # what is sent is trained as the run says


@pytest.mark.parametrize(
    ("options", "key"), [({"lam": -1.0}, "lam"), ({"personal_epochs": 1001}, "personal_epochs")]
)
def test_refuses(options: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Ditto(**options)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert caught.value.key == key
