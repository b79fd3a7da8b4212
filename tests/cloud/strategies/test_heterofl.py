"""HeteroFL as a coordinator sees it; the paper is in tests/paper."""

import numpy as np
from tests.cloud.forms import RESIDUAL, Residual, context_of, layout_of, random_theta

from sedge_cloud.algorithms.width_policy import WIDTH
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.wire.messages import Work

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
CONTEXT = context_of(LAYOUT, RESIDUAL, THETA, (0.25, 0.5))


def test_devices_of_a_width_start_alike() -> None:
    strategy = HeteroFL(dropped=(0.0, 0.5))
    whole, *narrow = (
        strategy.plan(CONTEXT, ClientModel(device=f"d{number}")) for number in (0, 1, 3)
    )
    assert whole.start is None
    first, second = (plan.start for plan in narrow)
    assert first is not None and second is not None
    np.testing.assert_array_equal(first, second)
    assert first.shape == (CONTEXT.widths[2].layout.size,) and first.dtype == np.float32
    for plan, width in zip((whole, *narrow), (0, 2, 2), strict=True):
        assert (plan.width, plan.arrays[WIDTH].tolist(), plan.work) == (width, [width], Work())


def test_with_one_width_and_weights_it_is_fedavg() -> None:
    rng = np.random.default_rng(1)
    updates = [
        Update(f"d{i}", m, THETA, delta=SparseVector(THETA.size, None, random_theta(LAYOUT, rng)))
        for i, m in enumerate((7, 100, 31))
    ]
    for axes in (RESIDUAL, None):
        context = context_of(LAYOUT, axes, THETA)
        after = HeteroFL(weighting="examples").apply(context, updates)
        np.testing.assert_array_equal(after.theta, FedAvg().apply(context, updates).theta)
