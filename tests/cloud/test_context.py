"""Masks of what orders select, coded against the one before: every update stays readable."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, began, random_theta, report_for

from sedge_protocol.codec import SparseVector, decode, encode, mask_bitmap
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.messages import Committed, Order, Reject
from sedge_protocol.wire.update import decode_update, encode_update

KEPT = 3000  # a quarter of the elements: a mask alone takes more than a kilobyte
SPARSE = msgspec.structs.replace(CONFIG, strategy=given.SELECTING, num_rounds=9)


def sent(seed: int, drift: int) -> SparseVector:
    """What a device sends in a round; its elements of the next round are ``drift`` places away."""
    order = np.random.default_rng(seed).permutation(LAYOUT.size)
    places = np.sort(order[drift : drift + KEPT]).astype(np.uint32)
    return SparseVector(LAYOUT.size, places, random_theta(seed + drift, KEPT))


def start(folder: Path) -> Cloud:
    """A coordinator with a run whose devices select elements and are online."""
    return began(folder, config=SPARSE, codecs=("select",))


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


def test_the_next_order_names_the_mask_of_the_last_update(tmp_path: Path) -> None:
    cloud = start(tmp_path)
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
            decode(decode_update(blobs["a"])[1], LAYOUT.size)
        row = cloud.store.client_model(RUN, "a")
        assert row is not None
        assert (row.mask, row.context) == (name_of(held["a"]), name_of(masks["a"]))


def test_against_a_mask_that_the_order_does_not_name(tmp_path: Path) -> None:
    cloud = start(tmp_path)
    first = cloud.order("a")
    wrong = mask_bitmap(sent(0, 9))
    blob = blob_of(first, sent(0, 0), wrong)
    (answer,) = cloud.offer("a", blob)
    assert isinstance(answer, Reject) and answer.reason == "malformed"
    assert cloud.store.client_model(RUN, "a") is None


def test_a_mask_that_the_disk_has_lost_is_no_context(tmp_path: Path) -> None:
    cloud = start(tmp_path)
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
