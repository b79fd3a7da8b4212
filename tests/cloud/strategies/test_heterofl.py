"""HeteroFL as a coordinator sees it; the paper is in tests/paper."""

import numpy as np
import pytest
from tests.cloud.forms import PLAIN, RESIDUAL, Plain, Residual, layout_of, random_theta, state_of

from sedge_cloud.algorithms.submodels import form_of
from sedge_cloud.algorithms.width_policy import WIDTH
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.heterofl import HeteroFL
from sedge_cloud.strategy import Memory, State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Training

LAYOUT = layout_of(Residual())
THETA = random_theta(LAYOUT, np.random.default_rng(0))
STATE = state_of(LAYOUT, RESIDUAL, THETA, (0.25, 0.5))


def test_devices_of_a_width_start_alike_and_keep_their_statistics() -> None:
    strategy = HeteroFL(rates=(0.0, 0.5))
    whole, *narrow = (
        strategy.plan(STATE, Memory(device=f"d{number}"), Training()) for number in (0, 1, 3)
    )
    assert whole.start is None
    assert whole.width == 0
    assert [plan.width for plan in narrow] == [2, 2]
    first, second = (plan.start for plan in narrow)
    assert first is not None
    assert second is not None
    np.testing.assert_array_equal(first, second)
    assert first.shape == (STATE.widths[2].layout.size,)
    assert first.dtype == np.float32
    for plan in (whole, *narrow):
        assert plan.keep == LAYOUT.statistics
        assert plan.arrays[WIDTH].tolist() == [plan.width]
        assert plan.training is None


def test_with_one_width_and_weights_it_is_fedavg() -> None:
    layout = layout_of(Plain(4, 3, 5))
    rng = np.random.default_rng(1)
    theta = random_theta(layout, rng)
    updates = [
        Update(f"d{i}", m, theta, delta=SparseVector(layout.size, None, random_theta(layout, rng)))
        for i, m in enumerate((7, 100, 31))
    ]
    plain = State(layout, theta, theta, axes=PLAIN)
    expected = FedAvg().apply(plain, updates)
    for state in (plain, state_of(layout, None, theta)):
        after = HeteroFL(weighting="examples").apply(state, updates)
        np.testing.assert_array_equal(after.theta, expected.theta)
        assert after.round == expected.round


def test_by_default_devices_count_alike() -> None:
    sizes = (1000, 1)
    updates = [Update(f"d{i}", m, THETA + i) for i, m in enumerate(sizes)]
    after = HeteroFL().apply(STATE, updates).theta
    parameter = ~LAYOUT.mask(LAYOUT.statistics)
    np.testing.assert_allclose(after[parameter], THETA[parameter] + 0.5, rtol=1e-6, atol=1e-6)


def test_widths_meet_where_both_have_elements() -> None:
    narrow = form_of(STATE, 2)
    rng = np.random.default_rng(2)
    updates = [
        Update("a", 1, random_theta(LAYOUT, rng)),
        Update("b", 3, random_theta(narrow.layout, rng), width=2),
    ]
    after = HeteroFL(weighting="examples").apply(STATE, updates)
    views = LAYOUT.views(after.theta)
    a, b = LAYOUT.views(updates[0].base), narrow.layout.views(updates[1].base)
    both = (a["inner.weight"][:3, :4] + 3 * b["inner.weight"]) / 4
    np.testing.assert_allclose(views["inner.weight"][:3, :4], both, atol=1e-6)
    np.testing.assert_array_equal(views["inner.weight"][3:], a["inner.weight"][3:])
    np.testing.assert_array_equal(views["inner.weight"][:, 4:], a["inner.weight"][:, 4:])


def test_refuses_another_weighting() -> None:
    with pytest.raises(ConfigError, match=r"weighting.*'uniform', 'examples'"):
        HeteroFL(weighting="width")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="rates"):
        HeteroFL(rates=(1.0,))
