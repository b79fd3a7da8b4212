"""Where a device starts: personal elements that it finds itself, patches that it kept, masks it holds."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.edge.harness import LAYOUT, Harness, N, drift, theta_of

from sedge_edge.rounds.storage import FolderVectors
from sedge_edge.training.start_vector import Start, StartCandidates, assemble, own_elements
from sedge_protocol.codec import SparseVector, ValueCoding, encode, mask_bitmap, top_k
from sedge_protocol.codec.patch_levels import encode_levels
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.importance import importance, min_max, positions, select
from sedge_protocol.layout import Role, Theta
from sedge_protocol.wire.messages import DeviceScoring, Order, PatchChoice

PARAMETERS = tuple(t for t in LAYOUT.tensors if t.role is Role.PARAMETER)
OWN = theta_of(50)
MEAN = LAYOUT.by_name["norm.mean"].slice


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


# The device finds its personal elements itself.


@pytest.mark.parametrize("score", ["squared", "product", "gradient", "fisher"])
@pytest.mark.parametrize("norm", ["none", "global", "layer"])
def test_own_elements_are_those_the_coordinator_would_choose(score: Any, norm: Any) -> None:
    shared, slope = theta_of(1), drift(3)
    found = own_elements(OWN, shared, LAYOUT, DeviceScoring(0.99, score, norm), slope)
    scores = importance(OWN, shared, PARAMETERS, score, slope)
    if norm == "layer":
        scores = min_max(scores, PARAMETERS)
    np.testing.assert_array_equal(found, positions(select(scores, 0.99), PARAMETERS))
    assert found.size == 26  # n - 1 - floor(.99 (n - 1)) of 2,564
    assert not LAYOUT.mask(["norm.mean"])[found].any()


# Patches.


def later(seed: int) -> SparseVector:
    """Half of the elements, nearly but not quite the same ones for every seed."""
    return top_k(drift(0) + np.multiply(drift(seed), np.float32(0.05)), N // 2)


def patch_of(seed: int, context: bytes | None = None) -> tuple[bytes, bytes]:
    """A coded patch that needs its context, and that context: the mask of an earlier one."""
    new, bitmap = later(seed), mask_bitmap(top_k(drift(0), N // 2))
    coded = encode(new, ValueCoding.FP32, context=bitmap if context is None else context)
    assert len(coded) < len(encode(new, ValueCoding.FP32))
    return coded, bitmap


def named(device: Harness, coded: bytes, bitmap: bytes | None) -> Order:
    """An order with a patch as a blob, coded against a mask; neither is on the device."""
    return device.order(
        1,
        patch_blob=device.serve(coded),
        patch_hash=hashlib.sha256(coded).digest(),
        patch_context=None if bitmap is None else device.serve(bitmap),
    )


def test_a_patch_whose_mask_is_gone_or_another(device: Harness) -> None:
    coded, bitmap = patch_of(1)
    blobs = device.blobs()
    blobs.write(coded)
    order = named(device, coded, bitmap)
    with pytest.raises(StorageError):
        start_of(device, order)
    wrong = mask_bitmap(top_k(drift(9), N // 3))
    blobs.write(wrong)
    with pytest.raises(CodecError, match="mask"):
        start_of(device, named(device, coded, wrong))
    with pytest.raises(CodecError, match="context"):
        start_of(device, named(device, coded, None))


# StartCandidates of a patch that the device picks from.

SOME = SparseVector(N, np.array([2, 7, 9, N - 1], np.uint32), np.array([4, 5, 6, 7], np.float32))
SOME_LEVELS = np.array([2, 1, 2, 3], np.uint8)


def offering(device: Harness, levels: bytes, **changes: Any) -> Order:
    return device.order(
        1,
        patch=encode(SOME, ValueCoding.FP32),
        patch_hash=hashlib.sha256(encode(SOME, ValueCoding.FP32)).digest(),
        choice=PatchChoice(0.5, levels=levels),
        **changes,
    )


@pytest.mark.parametrize("keeps", [False, True])
def test_parts_of_a_patch(device: Harness, keeps: bool) -> None:
    keep = ("norm.mean",) if keeps else ()
    found = start_of(device, offering(device, encode_levels(SOME_LEVELS), keep=keep), OWN)
    assert found.candidates is not None
    assert found.candidates.offered == (0, 1, 2, 3)
    bare = theta_of(1)
    if keeps:
        bare[MEAN] = OWN[MEAN]
    for level, places in enumerate(([], [7], [2, 7, 9], [2, 7, 9, N - 1])):
        expected = bare.copy()
        for place in places:
            expected[place] = SOME.dense()[place]
        np.testing.assert_array_equal(found.candidates.start(level), expected)
    np.testing.assert_array_equal(found.theta, found.candidates.start(3))


def test_an_element_that_the_device_keeps_is_its_own_in_every_part(device: Harness) -> None:
    keep = ("head.bias",)  # the last four elements
    found = start_of(device, offering(device, encode_levels(SOME_LEVELS), keep=keep), OWN)
    assert found.candidates is not None
    for level in range(4):
        assert found.candidates.start(level)[N - 1] == OWN[N - 1]


def test_parts_of_a_patch_of_every_element() -> None:
    levels = np.arange(N).astype(np.uint8) % 3
    parts = StartCandidates(np.zeros(N, np.float32), OWN, slice(None), levels)
    np.testing.assert_array_equal(parts.start(1), np.where(levels <= 1, OWN, 0))


def test_levels_that_are_not_the_patchs(device: Harness) -> None:
    with pytest.raises(CodecError):
        start_of(device, offering(device, encode_levels(SOME_LEVELS[:3])))
    with pytest.raises(CodecError, match="expected none without a patch"):
        start_of(
            device, device.order(1, choice=PatchChoice(0.5, levels=encode_levels(SOME_LEVELS)))
        )
