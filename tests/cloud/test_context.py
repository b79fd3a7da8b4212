"""Masks of what orders select, coded against the one before: every update stays readable."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud import given
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, random_theta, report_for

from sedge_cloud.coding import CodecConfig
from sedge_cloud.runs import garbage as ledgers
from sedge_protocol.codec import SparseVector, decode, encode, mask_bitmap
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.messages import Committed, Order, Reject
from sedge_protocol.wire.update import decode_update, encode_update

KEPT = 3000  # a quarter of the elements: a mask alone takes more than a kilobyte
SPARSE = msgspec.structs.replace(CONFIG, strategy=given.SELECTING, num_rounds=9)


def mask_of(seed: int, drift: int = 0) -> NDArray[np.uint32]:
    """The positions of a device in one round; those of the next round are ``drift`` elements away."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(LAYOUT.size)
    return np.sort(order[drift : drift + KEPT]).astype(np.uint32)


def sent(seed: int, drift: int) -> SparseVector:
    """What a device sends in a round."""
    values = random_theta(seed + drift, KEPT)
    return SparseVector(LAYOUT.size, mask_of(seed, drift), values)


def say_hello(cloud: Cloud) -> None:
    """The devices come online."""
    cloud.hello(*cloud.devices, codecs=("select",))


def blob_of(order: Order, vector: SparseVector, context: bytes | None) -> bytes:
    """The update of a device that holds this context."""
    payload = encode(vector, order.codec.values, order.codec.compression, context)
    return encode_update(report_for(order), payload)


def play(cloud: Cloud, drift: int, held: dict[str, bytes]) -> dict[str, bytes]:
    """Both devices do their orders against the masks that they hold; what they have sent."""
    blobs: dict[str, bytes] = {}
    for seed, name in enumerate("ab"):
        order = cloud.order(name)
        vector = sent(seed, drift)
        context = held.get(name)
        named = context if context and order.context == name_of(context) else None
        blobs[name] = blob_of(order, vector, named)
        (answer,) = cloud.offer(name, blobs[name])
        assert isinstance(answer, Committed), answer
        held[name] = mask_bitmap(vector)
    cloud.poll()
    return blobs


def name_of(mask: bytes) -> bytes:
    return hashlib.sha256(mask).digest()


def payload_of(blob: bytes) -> memoryview:
    return decode_update(blob)[1]


def test_the_next_order_names_the_mask_of_the_last_update(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, SPARSE)
    say_hello(cloud)
    order = cloud.order("a")
    assert order.context == b""
    held: dict[str, bytes] = {}
    first = play(cloud, 0, held)
    for drift in (50, 100):
        masks = dict(held)
        assert cloud.order("a").context == name_of(masks["a"])
        assert cloud.store.blobs.read(cloud.order("a").context) == masks["a"]
        blobs = play(cloud, drift, held)
        # A quarter of the elements in new places costs little beside the whole mask.
        assert len(blobs["a"]) < len(first["a"]) - 500
        with pytest.raises(CodecError, match="context"):
            decode(payload_of(blobs["a"]), LAYOUT.size)
        row = cloud.store.client_model(RUN, "a")
        assert row is not None
        assert (row.mask, row.context) == (name_of(held["a"]), name_of(masks["a"]))


def test_orders_that_select_nothing_have_no_context(tmp_path: Path) -> None:
    """With error feedback masks move too far for one to pay."""
    codec = CodecConfig(fraction=KEPT / LAYOUT.size)
    cloud = Cloud(tmp_path, msgspec.structs.replace(SPARSE, strategy="fedavg", codec=codec))
    say_hello(cloud)
    play(cloud, 0, {})
    order, row = cloud.order("a"), cloud.store.client_model(RUN, "a")
    assert order.round == 2 and order.context == b""
    assert row is not None and row.mask == b"" and row.context == b""


@pytest.mark.parametrize("count", [0, LAYOUT.size])
def test_all_or_nothing_is_no_mask(tmp_path: Path, count: int) -> None:
    """Device and coordinator keep the one before."""
    cloud = Cloud(tmp_path, SPARSE)
    say_hello(cloud)
    held: dict[str, bytes] = {}
    play(cloud, 0, held)
    order = cloud.order("a")
    indices = None if count else np.empty(0, np.uint32)
    vector = SparseVector(LAYOUT.size, indices, random_theta(3, count))
    cloud.upload("a", blob_of(order, vector, held["a"]))
    cloud.offer("b", blob_of(cloud.order("b"), sent(1, 9), held["b"]))
    cloud.poll()
    assert cloud.order("a").round == 3 and cloud.order("a").context == name_of(held["a"])
    assert cloud.order("b").context == name_of(mask_bitmap(sent(1, 9)))


def test_against_a_mask_that_the_order_does_not_name(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, SPARSE)
    say_hello(cloud)
    first = cloud.order("a")
    wrong = mask_bitmap(sent(0, 9))
    blob = blob_of(first, sent(0, 0), wrong)
    (answer,) = cloud.offer("a", blob)
    assert isinstance(answer, Reject) and answer.reason == "malformed"
    assert cloud.store.client_model(RUN, "a") is None


def test_a_late_update_finds_its_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "ORPHAN_AGE_S", -60.0)
    config = msgspec.structs.replace(SPARSE, quorum=0.6)
    cloud = Cloud(tmp_path, config, ("a", "b", "c"))
    say_hello(cloud)
    vector = sent(7, 0)
    held: dict[str, bytes] = {}
    cloud.offer("c", blob_of(cloud.order("c"), vector, None))
    play(cloud, 0, held)  # a is enough beside c
    for drift in (10, 20):
        play(cloud, drift, held)
    second = next(o for o in cloud.messages("c", Order) if o.round == 2)
    assert second.context == name_of(mask_bitmap(vector))
    cloud.core.garbage.collect()
    following = sent(7, 30)
    blob = blob_of(second, following, mask_bitmap(vector))
    (answer,) = cloud.offer("c", blob, order=second)
    assert isinstance(answer, Committed) and answer.late
    cloud.core.garbage.collect()
    cloud.restart()
    found = cloud.core.run_store.client_model(cloud.core.runs[RUN], "c")
    start = cloud.model(cloud.store.round(RUN, 2).model)  # type: ignore[union-attr]
    following.add_to(start)
    assert found.round == 2 and found.trained is not None
    assert found.trained.tobytes() == start.tobytes()


def test_a_mask_that_the_disk_has_lost_is_no_context(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, SPARSE)
    say_hello(cloud)
    held: dict[str, bytes] = {}
    for name in cloud.devices:
        cloud.upload(name, blob_of(cloud.order(name), sent(7, 0), None))
    mask = name_of(mask_bitmap(sent(7, 0))).hex()
    (tmp_path / "state" / "blobs" / mask).unlink()
    cloud.poll()
    assert [cloud.order(name).round for name in cloud.devices] == [2, 2]
    assert [cloud.order(name).context for name in cloud.devices] == [b"", b""]
    play(cloud, 10, held)
    assert cloud.order("a").context == name_of(held["a"])


def test_masks_that_nothing_names_are_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers, "ORPHAN_AGE_S", -60.0)
    cloud = Cloud(tmp_path, SPARSE)
    say_hello(cloud)
    held: dict[str, bytes] = {}
    masks: list[bytes] = []
    for drift in range(0, 80, 10):
        play(cloud, drift, held)
        masks.append(name_of(held["a"]))
    cloud.core.garbage.collect()
    kept = [cloud.store.blobs.has(mask) for mask in masks]
    # The last one for the open order, and those that late updates of three rounds may need.
    assert kept == [False] * 4 + [True] * 4
