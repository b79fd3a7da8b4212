"""What is trained, and where its batches are gathered."""

import numpy as np
import torch
from tests.emulate import trainings

from sedge_edge.data import Examples
from sedge_emulate.training.problem import Feed
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.messages import Training


def test_batches_are_a_devices() -> None:
    of = trainings.problem("batchnorm")
    (task, *_) = trainings.devices(of, Training(local_epochs=2, last_batch="pad"))
    found = list(of.batches(task))
    assert [batch.epoch for batch in found] == [0, 0, 0, 1, 1, 1]
    assert all(batch.weights.all() for batch in found), "padding where statistics would count it"
    padded = list(trainings.problem("mlp").batches(task))
    assert padded[2].weights.sum() == 4


def test_the_feed_gathers_rows() -> None:
    data = trainings.examples((2, 3, 3), 10, 0)
    data.inputs.setflags(write=False)
    feed = Feed(TensorSpec("float32", (2, 3, 3)), 4, torch.device("cpu"))
    rows = np.array([7, 0, 7])
    x, y = feed.fill(data, rows)
    np.testing.assert_array_equal(x.numpy(), data.inputs[rows])
    np.testing.assert_array_equal(y.numpy(), data.targets[rows])
    again, _ = feed.fill(data, rows[:1])
    assert again.data_ptr() == x.data_ptr()
    assert tuple(again.shape) == (1, 2, 3, 3)


def test_whole_numbers_stay_whole() -> None:
    feed = Feed(TensorSpec("int64", (2,)), 3, torch.device("cpu"))
    tokens = Examples(np.arange(8).reshape(4, 2), np.arange(4))
    x, _ = feed.fill(tokens, np.array([3, 1]))
    assert x.tolist() == [[6, 7], [2, 3]]
