"""A patch of which the device picks a part: offered, reported, and what the cloud takes for its model."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud import given
from tests.cloud.helper import CONFIG, LAYOUT, RUN, TRUSTING, Cloud, random_theta, report_for

from sedge_cloud.strategy import Assignment
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.codec.patch_levels import decode_levels
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import MAX_INLINE_BYTES, Committed, Message, Order, Reject
from sedge_protocol.wire.update import encode_update

N = LAYOUT.size
GIVEN = msgspec.structs.replace(CONFIG, strategy=given.NAME, num_rounds=3, robust=TRUSTING)
CODECS = ("choice",)
# More elements than travel inside an order. Levels 1, 3 and 4, one after the other: two parts would.
LARGE = np.flatnonzero(np.arange(N) % 6).astype(np.uint32)
LEVELS = np.array([1, 3, 4], np.uint8)


def offers(places: NDArray[np.uint32], *devices: str) -> tuple[SparseVector, NDArray[np.uint8]]:
    """These devices may pick from a patch of these places; the patch, and its levels."""
    patch = SparseVector(N, places, random_theta(3, places.size))
    levels = np.resize(LEVELS, places.size)

    assignment = Assignment(patch, levels=levels, holdout=0.25)
    given.PLANS.update(dict.fromkeys(devices, lambda context, client: assignment))
    return patch, levels


def change(name: str) -> Theta:
    """How far a device gets."""
    return random_theta(ord(name))


def answers(cloud: Cloud, name: str, level: int | None) -> Message:
    """A device's update, all of its elements sent, from a start that it says it has picked."""
    report = report_for(cloud.order(name), level=level)
    delta = SparseVector(N, None, change(name))
    (answer,) = cloud.upload(name, encode_update(report, encode(delta, ValueCoding.FP32)))
    return answer


def trained(patch: SparseVector, levels: NDArray[np.uint8], level: int) -> Theta:
    """Where device a ends that starts with these levels of a patch over the run's first model."""
    start = random_theta(1)
    assert patch.indices is not None
    chosen = levels <= level
    start[patch.indices[chosen]] = patch.values[chosen]
    return start + change("a")


@pytest.mark.parametrize(
    ("places", "level"),
    [(LARGE[:9], 0), (LARGE[:9], 3), (LARGE, 1), (LARGE, 4)],
    ids=["inline 0", "inline 3", "blob 1", "blob 4"],
)
def test_the_model_of_a_device_has_the_part_that_it_picked(
    tmp_path: Path, places: NDArray[np.uint32], level: int
) -> None:
    patch, levels = offers(places, "a")
    cloud = Cloud(tmp_path, GIVEN)
    cloud.hello(codecs=CODECS)
    order = cloud.order("a")
    assert order.work.choice is not None and order.work.choice.holdout == 0.25
    np.testing.assert_array_equal(decode_levels(order.work.choice.levels, patch.count), levels)
    assert (order.patch_blob is None) == (places.size == 9)
    assert isinstance(answers(cloud, "a", level), Committed)
    cloud.answer("b")
    expected = trained(patch, levels, level)
    (mine,) = [update for update in given.UPDATES if update.device == "a"]
    np.testing.assert_array_equal(mine.trained, expected)
    row = cloud.store.client_model(RUN, "a")
    assert row is not None and row.patch_context == b""
    assert bool(row.patch_hash) == (level > 0)
    assert len(row.patch) <= MAX_INLINE_BYTES
    assert bool(row.patch_blob) == (places.size > 9 and level == 4)
    cloud.restart()  # nothing of it was in memory only
    cloud.core.run_store.collect()
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
    config = msgspec.structs.replace(GIVEN, quorum=0.5)
    cloud = Cloud(tmp_path, config, ("a", "b", "c"))
    cloud.hello(codecs=CODECS)
    assert isinstance(answers(cloud, "a", 1), Committed)  # 1 and 11,900
    assert isinstance(answers(cloud, "b", 4), Committed)  # all
    cloud.poll()
    (summary,) = cloud.summaries()  # what c picks nobody knows
    assert summary.personal == {"body.weight": 4, "head.bias": 4}


@pytest.mark.parametrize("level", [None, 2, 5])
def test_what_was_not_offered_cannot_be_picked(tmp_path: Path, level: int | None) -> None:
    offers(LARGE[:9], "a")
    cloud = Cloud(tmp_path, GIVEN)
    cloud.hello(codecs=CODECS)
    answer = answers(cloud, "a", level)
    assert isinstance(answer, Reject) and answer.reason == "mismatch"
    assert answer.detail == f"update.level: {level}, expected 0 or 1 or 3 or 4"


@pytest.mark.parametrize(("level", "good"), [(0, True), (1, False)])
def test_a_model_that_is_not_finite_only_with_what_was_picked(
    tmp_path: Path, level: int, good: bool
) -> None:
    patch = SparseVector(N, np.array([7], np.uint32), np.array([3e38], np.float32))
    delta = random_theta(9)
    delta[7] = 3e38
    assignment = Assignment(patch, levels=np.ones(1, np.uint8), holdout=0.25)
    given.PLANS["a"] = lambda context, client: assignment
    cloud = Cloud(tmp_path, GIVEN)
    cloud.hello(codecs=CODECS)
    report = report_for(cloud.order("a"), level=level)
    coded = encode(SparseVector(N, None, delta), ValueCoding.FP32)
    (answer,) = cloud.upload("a", encode_update(report, coded))
    assert isinstance(answer, Committed if good else Reject)


def test_the_seed_of_what_is_held_out_is_a_devices_own_for_the_whole_run(tmp_path: Path) -> None:
    offers(LARGE[:9], "a", "b")
    cloud = Cloud(tmp_path, GIVEN)
    cloud.hello(codecs=CODECS)
    for _ in range(2):
        for name in ("a", "b"):
            assert isinstance(answers(cloud, name, 0), Committed)
        cloud.poll()
    for name in ("a", "b"):
        orders = cloud.messages(name, Order)
        assert [order.round for order in orders] == [1, 2, 3]
        assert len({seed_of(order) for order in orders}) == 1
        assert seed_of(orders[0]) not in [order.seed for order in orders]
    assert seed_of(cloud.order("a")) != seed_of(cloud.order("b"))
    other = Cloud(tmp_path / "other", msgspec.structs.replace(GIVEN, seed=1))
    other.hello(codecs=CODECS)
    assert seed_of(other.order("a")) != seed_of(cloud.order("a"))


def seed_of(order: Order) -> int:
    """The seed of what is held out."""
    assert order.work.choice is not None
    return order.work.choice.seed


def test_a_device_without_a_patch_holds_out_all_the_same(tmp_path: Path) -> None:
    given.PLANS["a"] = lambda context, client: Assignment(holdout=0.5)
    cloud = Cloud(tmp_path, GIVEN)
    cloud.hello(codecs=CODECS)
    choice = cloud.order("a").work.choice
    assert choice is not None and (choice.holdout, choice.levels) == (0.5, b"")
    assert isinstance(answers(cloud, "a", 1), Reject)
