"""FedCAC's plan and apply: options, the authors' thresholds, statistics, hostile updates.

The algorithm itself is in paper/test_cac_paper.py.
"""

import numpy as np
from tests.cloud.contexts import a_layout, context_of

from sedge_cloud.strategies.fedcac import FedCAC, critical_places
from sedge_cloud.strategy import Assignment, ClientModel, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Theta

LAYOUT = a_layout(
    {"norm.weight": (4,), "norm.running_var": (2,), "fc.weight": (2, 3), "fc.bias": (1,)}
)
N = LAYOUT.size
ONES = np.ones(N, np.float32)
CONTEXT = context_of(LAYOUT, ONES, round=1)


def dense(*values: float) -> SparseVector:
    return SparseVector(N, None, np.array(values, np.float32))


# Of norm.weight elements 1 and 3, of fc.weight 7, 8 and 11; the statistics and the lone bias never.
STEPS = dense(0.1, 0.5, 0.1, -0.5, 9, 9, 0.1, 0.2, -0.3, 0.1, 0.1, 0.4, 9)


def known(steps: SparseVector = STEPS, group: tuple[ClientModel, ...] = ()) -> ClientModel:
    """What is known of a device that went these steps from a model of ones."""
    return ClientModel(steps.values + ONES, 1, device="a", sent=steps, group=group)


def test_a_device_that_has_sent_nothing_starts_from_the_global_model() -> None:
    for client in (ClientModel(), known(dense(*np.zeros(N)))):
        assert FedCAC().plan(CONTEXT, client) == Assignment()


def test_a_long_model_is_compared_by_a_sample() -> None:
    layout = a_layout({"fc.weight": (1000,)})
    theta = np.ones(1000, np.float32)
    rng = np.random.default_rng(0)
    steps = [rng.exponential(size=1000).astype(np.float32) for _ in range(2)]
    vectors = [SparseVector(1000, None, step) for step in steps]
    sent = [Update(name, 1, theta, None, vectors[name > "b"]) for name in "abcd"]
    after = FedCAC(overlap_sample=64, beta=1).apply(context_of(layout, theta), sent)
    assert after.groups == {"a": ("b",), "b": ("a",), "c": ("d",), "d": ("c",)}


def test_enormous_changes_are_critical() -> None:
    most = np.full(N, np.finfo(np.float32).max)
    steps = dense(1, *[0.0] * 10, 1, 0)
    assert critical_places(LAYOUT, steps, most, 0.5).tolist() == [0, 11]
    vast: Theta = most.copy()
    found = critical_places(LAYOUT, SparseVector(N, None, vast), most, 0.5)
    assert found.tolist() == [0, 1, 2, 3, 6, 7, 8, 9, 10, 11]
