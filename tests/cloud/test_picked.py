"""A patch that a device may start without: offered, reported, and what the cloud takes for its model."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud import given
from tests.cloud.helper import CONFIG, LAYOUT, RUN, TRUSTING, Cloud, began, random_theta, report_for

from sedge_cloud.strategy import Assignment
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Committed, Message, Order, Reject
from sedge_protocol.wire.update import encode_update

N = LAYOUT.size
GIVEN = msgspec.structs.replace(CONFIG, strategy=given.NAME, num_rounds=3, robust=TRUSTING)
CODECS = ("choice",)
# More elements than travel inside an order.
LARGE = np.flatnonzero(np.arange(N) % 6).astype(np.uint32)


def offers(places: NDArray[np.uint32], *devices: str) -> SparseVector:
    """These devices may choose whether to apply a patch of these places."""
    patch = SparseVector(N, places, random_theta(3, places.size))
    assignment = Assignment(patch, holdout=0.25)
    given.PLANS.update(dict.fromkeys(devices, lambda context, client: assignment))
    return patch


def change(name: str) -> Theta:
    """How far a device gets."""
    return random_theta(ord(name))


def answers(cloud: Cloud, name: str, patched: bool | None) -> Message:
    """A device's update, all of its elements sent, from a start that it says it has picked."""
    report = report_for(cloud.order(name), patched=patched)
    delta = SparseVector(N, None, change(name))
    (answer,) = cloud.upload(name, encode_update(report, encode(delta, ValueCoding.FP32)))
    return answer


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("places", [LARGE[:9], LARGE], ids=["inline", "blob"])
def test_the_model_of_a_device_has_the_patch_only_if_it_chose_it(
    tmp_path: Path, places: NDArray[np.uint32], patched: bool
) -> None:
    patch = offers(places, "a")
    cloud = began(tmp_path, config=GIVEN, codecs=CODECS)
    order = cloud.order("a")
    assert order.work.choice is not None and order.work.choice.holdout == 0.25
    assert (order.patch_blob is None) == (places.size == 9)
    assert isinstance(answers(cloud, "a", patched), Committed)
    cloud.answer("b")
    expected = random_theta(1)
    if patched:
        patch.scatter_into(expected)
    expected += change("a")
    (mine,) = [update for update in given.UPDATES if update.device == "a"]
    np.testing.assert_array_equal(mine.trained, expected)
    row = cloud.store.client_model(RUN, "a")
    assert row is not None and bool(row.patch_hash) == patched
    cloud.restart()  # nothing of it was in memory only
    cloud.core.garbage.collect()
    known = cloud.core.run_store.client_model(cloud.core.runs[RUN], "a")
    assert known.trained is not None
    np.testing.assert_array_equal(known.trained, expected)
    cloud.hello(codecs=CODECS)  # and the next plan was made from it
    (seen,) = [client for client in given.SEEN if client.device == "a" and client.round == 1]
    assert seen.trained is not None
    np.testing.assert_array_equal(seen.trained, expected)


def test_the_personal_elements_are_those_that_were_picked(tmp_path: Path) -> None:
    places = np.array([1, 2, 3, 11_900, 11_950, 11_999], np.uint32)
    offers(places, "a", "b", "c")
    cloud = began(tmp_path, "abc", GIVEN, codecs=CODECS, quorum=0.5)
    assert isinstance(answers(cloud, "a", False), Committed)
    assert isinstance(answers(cloud, "b", True), Committed)
    cloud.poll()
    (summary,) = cloud.summaries()  # what c picks nobody knows
    assert summary.personal == {"body.weight": 3, "head.bias": 3}


def test_who_was_offered_a_choice_must_say_what_it_chose(tmp_path: Path) -> None:
    offers(LARGE[:9], "a")
    cloud = began(tmp_path, config=GIVEN, codecs=CODECS)
    answer = answers(cloud, "a", None)
    assert isinstance(answer, Reject) and answer.reason == "mismatch"
    assert answer.detail == "update.patched: None, expected False or True"


def test_the_seed_of_what_is_held_out_is_a_devices_own_for_the_whole_run(tmp_path: Path) -> None:
    offers(LARGE[:9], "a", "b")
    cloud = began(tmp_path, config=GIVEN, codecs=CODECS)
    for _ in range(2):
        for name in ("a", "b"):
            assert isinstance(answers(cloud, name, False), Committed)
        cloud.poll()
    for name in ("a", "b"):
        orders = cloud.messages(name, Order)
        assert [order.round for order in orders] == [1, 2, 3]
        assert len({seed_of(order) for order in orders}) == 1
        assert seed_of(orders[0]) not in [order.seed for order in orders]
    assert seed_of(cloud.order("a")) != seed_of(cloud.order("b"))
    other = began(tmp_path / "other", config=GIVEN, codecs=CODECS, seed=1)
    assert seed_of(other.order("a")) != seed_of(cloud.order("a"))


def seed_of(order: Order) -> int:
    assert order.work.choice is not None
    return order.work.choice.seed
