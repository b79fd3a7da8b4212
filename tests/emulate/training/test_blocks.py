"""Blocks: every device's batches at its place, whatever is beside it."""

import gc

import numpy as np
import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PLAIN, problem

from sedge_edge.training.examples import Examples
from sedge_emulate.training.blocks import Block, Resident, stacked_thetas

CPU = torch.device("cpu")


def test_every_place_has_its_devices_rows() -> None:
    of = problem("mlp")
    tasks = trainings.devices(of, PLAIN, (20, 3))
    batches = [list(of.batches(task)) for task in tasks]
    parts = [(task.examples, found) for task, found in zip(tasks, batches, strict=True)]
    block = Block.of(parts, 4, Resident(CPU))
    assert block.steps == (3, 1)
    assert tuple(block.rows.shape) == tuple(block.weights.shape) == (3, 4, 8)
    for step in range(3):
        x, y, weights = block.batch(step)
        assert tuple(x.shape) == (4, 8, 1, 8, 8)
        for place, (task, found) in enumerate(zip(tasks, batches, strict=True)):
            if step < len(found):
                rows = found[step].indices
                np.testing.assert_array_equal(x[place].numpy(), task.examples.inputs[rows])
                np.testing.assert_array_equal(y[place].numpy(), task.examples.targets[rows])
                np.testing.assert_array_equal(weights[place].numpy(), found[step].weights)
            else:
                assert not weights[place].any()
        assert not weights[2:].any()
    assert [block.ending(step) for step in range(3)] == [[1], [], [0]]


def test_examples_of_several_places_are_there_once() -> None:
    """As a central test set is, on which every device's model is tested."""
    of = problem("mlp")
    (first, other) = trainings.devices(of, PLAIN, (9, 3))
    tasks = [first, other, first]
    batches = [list(of.batches(task)) for task in tasks]
    parts = [(task.examples, found) for task, found in zip(tasks, batches, strict=True)]
    block = Block.of(parts, 3, Resident(CPU))
    assert len(block.x) == len(block.y) == 9 + 3
    x, _, _ = block.batch(0)
    for place, (task, found) in enumerate(zip(tasks, batches, strict=True)):
        np.testing.assert_array_equal(x[place], task.examples.inputs[found[0].indices])


def test_empty_places_hold_a_harmless_theta() -> None:
    thetas = [np.full(3, i, np.float32) for i in (5, 6)]
    assert stacked_thetas(thetas, 4, CPU)[:, 0].tolist() == [5, 6, 5, 5]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_rows_are_gathered_where_the_data_are(device: str) -> None:
    tokens = Examples(np.arange(8).reshape(4, 2), np.arange(4))
    tokens.inputs.setflags(write=False)
    rows = [np.array([3, 1, 3]), np.array([0])]
    (x, y), (last, _) = Resident(torch.device(device)).batches(tokens, rows)
    assert (x.device.type, y.device.type) == (device, device)
    assert (tuple(x.shape), x.dtype) == ((3, 2), torch.int64)
    assert tuple(last.shape) == (1, 2)
    if device == "cpu":
        assert x.tolist() == [[6, 7], [2, 3], [6, 7]]
        assert y.tolist() == [3, 1, 3]
        assert last.tolist() == [[0, 1]]


def test_data_are_copied_to_a_device_once() -> None:
    resident = Resident(torch.device("meta"))
    first, second = np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32)
    assert tuple(resident.gather([first, second, first]).shape) == (11, 2)
    copies = {key: entry[1] for key, entry in resident._copies.items()}
    resident.gather([second, first])
    assert len(copies) == 2
    assert all(resident._copies[key][1] is copy for key, copy in copies.items())
    del first
    gc.collect()
    assert list(resident._copies) == [id(second)]
