"""A training in Java that Android stops: it goes on from its checkpoint, and ends in the same bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.edge.harness import DriftTrainer, drift, only
from tests.edge.java_core import JavaHarness, Jvm

from sedge_edge.agent import StartJob
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained, TrainRequest
from sedge_protocol.wire.training import Training


class Batched(DriftTrainer):
    """Its gradient depends on where theta is, and on the batch."""

    def train(
        self, request: TrainRequest, examples: Examples, *args: Any, **kwargs: Any
    ) -> Trained:
        theta = request.theta
        slope = np.float32(examples.inputs[0].sum()) * drift(request.seed)
        return Trained(theta, 0.5, 1, theta + slope)


@pytest.mark.parametrize(
    "training",
    [
        Training(local_epochs=3, learning_rate=0.125, momentum=0.5),
        Training(local_epochs=3, optimizer="adam", optimizer_state="keep", average=0.5),
    ],
)
def test_a_training_is_stopped_before_every_step(
    jvm: Jvm, tmp_path: Path, training: Training
) -> None:
    steps = 6

    def played(*stops: int) -> JavaHarness:
        device = JavaHarness(jvm, tmp_path / str(stops))
        device.trainer = Batched()
        device.pump(device.connect())
        for number in (1, 2):  # the second from the optimizer's state
            order = device.order(number, training=training)
            device.tell(order)
            (work,) = only(device.feed(order.bundle, order.model), StartJob)
            for stop in stops:
                assert device.work(work.job, stop) == []
                (work,) = only(device.reboot(), StartJob)
            device.pump(device.work(work.job))
        assert device.report(2).steps == steps
        return device

    expected = played().results()
    for stop in range(steps):
        assert played(stop).results() == expected, f"step {stop}"
    assert played(1, 0, 2).results() == expected
