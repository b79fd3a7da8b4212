"""FedAvg and LocalOnly as a coordinator sees them."""

import numpy as np
import pytest

from sedge_cloud.strategies.fedavg import FedAvg, LocalOnly
from sedge_cloud.strategy import Memory, Strategy, Update
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Training

LAYOUT = Layout.of(
    [
        ("conv.weight", (2, 2), Role.PARAMETER),
        ("norm.running_mean", (2,), Role.STATISTIC),
        ("norm.running_var", (2,), Role.STATISTIC),
        ("head.weight", (3,), Role.PARAMETER),
    ]
)
THETA = np.arange(11, dtype=np.float32)
MEMORIES = [Memory(), Memory(trained=THETA + 1, round=3)]


@pytest.mark.parametrize("strategy", [FedAvg(), LocalOnly()])
def test_starts_with_the_given_model(strategy: Strategy) -> None:
    state = strategy.init(LAYOUT, THETA)
    assert state.round == 0
    np.testing.assert_array_equal(state.theta, THETA)
    np.testing.assert_array_equal(state.initial, THETA)


@pytest.mark.parametrize("memory", MEMORIES)
def test_fedavg_sends_the_global_model_and_keeps_statistics(memory: Memory) -> None:
    assignment = FedAvg().plan(FedAvg().init(LAYOUT, THETA), memory, Training())
    assert assignment.patch is None
    assert assignment.keep == ("norm.running_mean", "norm.running_var")
    assert assignment.upload
    assert assignment.arrays == {}


def test_fedavg_averages_parameters_by_examples() -> None:
    strategy = FedAvg()
    state = strategy.init(LAYOUT, THETA)
    updates = [Update("a", 1, THETA + 4), Update("b", 3, THETA + 8)]
    for number in (1, 2):
        state = strategy.apply(state, iter(updates))
        assert state.round == number
        expected = THETA + np.array([7] * 4 + [0] * 4 + [7] * 3, np.float32)
        np.testing.assert_array_equal(state.theta, expected)
    np.testing.assert_array_equal(state.initial, THETA)


@pytest.mark.parametrize("memory", MEMORIES)
def test_local_only_keeps_every_tensor_and_sends_nothing(memory: Memory) -> None:
    assignment = LocalOnly().plan(LocalOnly().init(LAYOUT, THETA), memory, Training())
    assert assignment.patch is None
    assert assignment.keep == tuple(tensor.name for tensor in LAYOUT.tensors)
    assert not assignment.upload


def test_local_only_counts_rounds_and_changes_nothing() -> None:
    state = LocalOnly().init(LAYOUT, THETA)
    after = LocalOnly().apply(state, [Update("a", 5, THETA * 2)])
    assert after.round == 1
    np.testing.assert_array_equal(after.theta, THETA)
