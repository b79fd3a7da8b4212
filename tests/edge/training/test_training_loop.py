"""What a training's losses make of it."""

import numpy as np
import pytest

from sedge_edge.training.batches import batches
from sedge_edge.training.loop import Losses
from sedge_edge.training.trainer import TrainingDiverged
from sedge_protocol.layout import Theta

THETA = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("losses", "theta", "message"),
    [
        ([1.0, 1.0, float("nan"), 1.0], THETA, "epoch 2 of 2, step 3: the loss is nan"),
        ([1.0, float("inf"), 1.0, 1.0], THETA, "epoch 1 of 2, step 2: the loss is inf"),
        ([1.0] * 4, THETA * np.array([1, np.nan, np.inf], np.float32),
         "epoch 2 of 2, step 4: 2 parameters are not finite"),
    ],
)  # fmt: skip
def test_divergence_says_where(losses: list[float], theta: Theta, message: str) -> None:
    """In two epochs of a batch of 4 and one of 2 real rows."""
    found = Losses(2)
    with pytest.raises(TrainingDiverged) as diverged:
        for batch, loss in zip(batches(6, 4, 2, "pad", 0, True), losses, strict=True):
            found.begin(batch)
            found.add([loss])
        found.check(theta)
    assert str(diverged.value) == message
