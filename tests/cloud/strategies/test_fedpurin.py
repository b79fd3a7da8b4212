"""FedPURIN's plan and apply: options, orders, averages, hostile updates, bytes as the paper counts them.

Algorithm 1 itself is in paper/test_purin_paper.py.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from tests.cloud.contexts import a_layout, context_of

from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategies.fedpurin import FedPURIN, accounted_bytes, sparse_mean
from sedge_cloud.strategy import Assignment, ClientModel, Update
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.layout import Theta
from sedge_protocol.wire.work import UpdateSelection, Work

LAYOUT = a_layout(
    {"conv.weight": (2, 3), "norm.weight": (2,), "norm.running_var": (2,), "fc.weight": (2, 3)}
)
N = LAYOUT.size
THETA = np.arange(1, N + 1, dtype=np.float32)
CONTEXT = context_of(LAYOUT, THETA, round=1)


def sparse(elements: Mapping[int, float]) -> SparseVector:
    values = np.array([elements[k] for k in sorted(elements)], np.float32)
    return SparseVector(N, np.array(sorted(elements), np.uint32), values)


def known(elements: Mapping[int, float], group: tuple[ClientModel, ...] = ()) -> ClientModel:
    """What is known of a device that went these steps from THETA."""
    sent = sparse(elements)
    trained = THETA.copy()
    sent.add_to(trained)
    return ClientModel(trained, 1, device="a", sent=sent, group=group)


def test_what_a_device_is_asked_for() -> None:
    given = FedPURIN().plan(CONTEXT, ClientModel())
    select = UpdateSelection(fraction=0.5, gradient="last", hessian=False, cutoff=1e-10, half=True)
    keep = ("norm.weight", "norm.running_var")
    assert given == Assignment(work=Work(keep=keep, select=select, remember=True))


@pytest.mark.parametrize(("gradient", "hessian"), [("last", True), ("delta", False)])
def test_the_rows_of_table_2(gradient: str, hessian: bool) -> None:
    options = {"fraction": 0.2, "gradient": gradient, "hessian": hessian, "cutoff": 0.0}
    strategy = make_strategy("fedpurin", options)
    select = strategy.plan(CONTEXT, ClientModel()).work.select
    assert select is not None
    assert (select.fraction, select.gradient, select.hessian) == (0.2, gradient, hessian)
    assert select.cutoff == 0
    assert select.half == (gradient == "last")  # the authors round no other


def test_a_device_that_has_sent_nothing_does_not_count() -> None:
    for client in (ClientModel(), ClientModel(THETA), ClientModel(THETA, sent=sparse({}))):
        assert FedPURIN().plan(CONTEXT, client).patch is None
    own = known({0: 1}, group=(ClientModel(), known({0: 2})))
    patch = FedPURIN().plan(CONTEXT, own).patch
    assert patch is not None and patch.indices is not None
    assert (patch.indices.tolist(), patch.values.tolist()) == ([0], [2.5])


@pytest.mark.parametrize("average", ["shrunk", "counted", "filled"])
def test_after_beta_a_device_gets_what_it_has(average: str) -> None:
    strategy = FedPURIN(beta=5, average=average)  # type: ignore[arg-type]
    own = known({0: 0.1, 12: 1e-3}, group=(known({0: 7}),))
    assert own.trained is not None
    kept = SparseVector(N, np.array([0, 12], np.uint32), own.trained[[0, 12]])
    for number, same in ((5, False), (6, True)):
        patch = strategy.plan(replace(CONTEXT, round=number), own).patch
        assert patch is not None
        # Equal bytes are what lets the device know its own values again.
        coded = encode(patch, ValueCoding.FP32, Compression.NONE)
        assert (coded == encode(kept, ValueCoding.FP32, Compression.NONE)) is same


def updates(theta: Theta, *sent: tuple[str, int, Mapping[int, float]]) -> list[Update]:
    """Updates on theta of devices with so many examples and these steps."""
    return [Update(name, count, theta, None, sparse(elements)) for name, count, elements in sent]


def test_a_robust_rule_takes_the_place_of_the_filled_average() -> None:
    strategy = FedPURIN(average="filled")
    before = replace(CONTEXT, robust=Robust(rule="median"))
    sent = updates(THETA, ("a", 1, {0: 1}), ("b", 9, {0: 2}), ("c", 1, {0: 1e6, 7: 5, 9: 5}))
    after = strategy.apply(before, sent)
    expected = THETA.copy()
    expected[0] += 2
    np.testing.assert_array_equal(after.theta, expected)
    assert after.groups == {"a": ("b",), "b": ("a",), "c": ("a", "b")}


def test_an_update_without_a_delta_weighs_but_says_nothing() -> None:
    sent = [Update("a", 1, THETA), *updates(THETA, ("b", 1, {0: 1}))]
    assert sparse_mean(sent, THETA, counted=False)[0] == 1
    assert sparse_mean(sent, THETA, counted=True)[0] == 2


def test_bytes_as_the_paper_counts_them() -> None:
    # 14 parameters; G is zero at 5 places, one of them in the mask.
    theta = THETA.copy()
    theta[[0, 1, 2, 3, 12]] = 0
    given = Assignment(sparse({2: 5.0, 10: 0.0}), Work(keep=("norm.weight", "norm.running_var")))
    own = known({2: 1, 10: 1})
    before = replace(CONTEXT, theta=theta, round=3)
    assert accounted_bytes(before, own, given, beta=3) == (2 * 4 + 14 / 8, 4 * (7 + 1 - 1))
    assert accounted_bytes(before, own, given, beta=2) == (2 * 4 + 14 / 8, 4 * (7 - 1))
