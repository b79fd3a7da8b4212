"""What a training's losses make of it."""

import subprocess
import sys

import numpy as np
import pytest

from sedge_edge.training.batches import batches
from sedge_edge.training.trainer import Trained, TrainingDiverged
from sedge_emulate.training.tasks import Record, metrics
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics

THETA = np.ones(3, np.float32)


def record() -> Record:
    """Two epochs of a batch of 4 and one of 2 real rows."""
    found = Record(Training(local_epochs=2))
    for batch in batches(6, 4, 2, "pad", 0, True):
        found.add(batch)
    return found


def test_the_loss_is_the_last_epochs_mean_over_examples() -> None:
    end = record().result(THETA, [9.0, 9.0, 1.0, 4.0])
    assert isinstance(end, Trained)
    assert end.loss == pytest.approx((4 * 1.0 + 2 * 4.0) / 6)
    assert end.steps == 4
    assert end.theta is THETA


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
    end = record().result(theta, losses)
    assert isinstance(end, TrainingDiverged)
    assert str(end) == message


def test_an_evaluation() -> None:
    assert metrics(6.0, 3.0, 4) == Metrics(1.5, 0.75, 4)
    assert str(metrics(float("inf"), 3.0, 4)) == "evaluation: the mean loss is inf"


def test_asking_needs_no_torch() -> None:
    code = "import sys, sedge_emulate.training.tasks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
