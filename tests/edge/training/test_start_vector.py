"""Where a device starts: personal elements that it finds itself, patches that it kept, masks it holds."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.edge.harness import LAYOUT, Harness, N, drift, theta_of

from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.training.start_vector import Start, assemble, own_elements
from sedge_protocol.codec import SparseVector, ValueCoding, encode, mask_bitmap, top_k
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.importance import importance, min_max, positions, select
from sedge_protocol.layout import Role, Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.work import DeviceScoring, PatchChoice

PARAMETERS = tuple(t for t in LAYOUT.tensors if t.role is Role.PARAMETER)
OWN = theta_of(50)


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


def start_of(
    device: Harness, order: Order, model: Theta | None = None, gradient: Theta | None = None
) -> Start:
    """Where an order starts, with its model on the device, and what the device has kept (n,)."""
    blobs = device.blobs()
    blobs.write(device.served[order.model.transfer])
    vectors = FolderVectors(blobs)
    names = [None if theta is None else vectors.keep(theta) for theta in (model, gradient)]
    kept = [LAYOUT.by_name[name].slice for name in order.work.keep]
    return assemble(order, blobs, vectors, LAYOUT, kept, *names)


@pytest.mark.parametrize("score", ["squared", "product", "gradient", "fisher"])
@pytest.mark.parametrize("norm", ["none", "global", "layer"])
def test_own_elements_are_those_the_coordinator_would_choose(
    device: Harness, score: Any, norm: Any
) -> None:
    shared, slope, wanted = theta_of(1), drift(3), DeviceScoring(0.99, score, norm)
    found = own_elements(OWN, shared, LAYOUT, wanted, slope)
    scores = importance(OWN, shared, PARAMETERS, score, slope)
    if norm == "layer":
        scores = min_max(scores, PARAMETERS)
    np.testing.assert_array_equal(found, positions(select(scores, 0.99), PARAMETERS))
    assert found.size == 26  # n - 1 - floor(.99 (n - 1)) of 2,564
    assert not LAYOUT.mask(["norm.mean"])[found].any()
    begun = start_of(device, device.order(1, scoring=wanted), OWN, slope)
    np.testing.assert_array_equal(begun.personal, found)
    np.testing.assert_array_equal(begun.base, shared)
    shared[found] = OWN[found]
    np.testing.assert_array_equal(begun.theta, shared)


def named(device: Harness, coded: bytes, bitmap: bytes | None) -> Order:
    """An order with a patch as a blob, coded against a mask; neither is on the device."""
    return device.order(
        1,
        patch_blob=device.serve(coded),
        patch_hash=hashlib.sha256(coded).digest(),
        patch_context=None if bitmap is None else device.serve(bitmap),
    )


def test_a_patch_whose_mask_is_gone_or_another(device: Harness) -> None:
    changes = top_k(drift(0) + np.multiply(drift(1), np.float32(0.05)), N // 2)
    bitmap = mask_bitmap(top_k(drift(0), N // 2))
    coded = encode(changes, ValueCoding.FP32, context=bitmap)
    assert len(coded) < len(encode(changes, ValueCoding.FP32))  # it needs its context
    blobs = device.blobs()
    blobs.write(coded)
    with pytest.raises(StorageError):
        start_of(device, named(device, coded, bitmap))
    wrong = mask_bitmap(top_k(drift(9), N // 3))
    blobs.write(wrong)
    with pytest.raises(CodecError, match="mask"):
        start_of(device, named(device, coded, wrong))
    with pytest.raises(CodecError, match="context"):
        start_of(device, named(device, coded, None))


SOME = SparseVector(N, np.array([2, 7, 9, N - 1], np.uint32), np.array([4, 5, 6, 7], np.float32))


@pytest.mark.parametrize("keep", [(), ("norm.mean",), ("head.bias",)], ids=str)
def test_the_start_with_and_without_a_patch(device: Harness, keep: tuple[str, ...]) -> None:
    coded = encode(SOME, ValueCoding.FP32)
    patch_hash = hashlib.sha256(coded).digest()
    order = device.order(1, patch=coded, patch_hash=patch_hash, choice=PatchChoice(0.5), keep=keep)
    found = start_of(device, order, OWN)
    bare, whole = theta_of(1), theta_of(1)
    SOME.scatter_into(whole)
    for name in keep:  # the head's bias are the last four elements, one of them of the patch
        place = LAYOUT.by_name[name].slice
        bare[place] = whole[place] = OWN[place]
    assert found.candidates is not None and found.candidates.whole is not None
    np.testing.assert_array_equal(found.candidates.bare, bare)
    np.testing.assert_array_equal(found.candidates.whole, whole)
    np.testing.assert_array_equal(found.theta, whole)
    fresh = theta_of(1)
    SOME.scatter_into(fresh)  # a device that has nothing of its own yet takes the fleet's
    np.testing.assert_array_equal(start_of(device, order).theta, fresh)


def test_without_a_patch_there_is_one_start(device: Harness) -> None:
    found = start_of(device, device.order(1, choice=PatchChoice(0.5)), OWN)
    assert found.candidates is not None and found.candidates.whole is None
    np.testing.assert_array_equal(found.candidates.bare, theta_of(1))
