"""What an agent keeps for the orders that ask for more, over rounds, power cuts, damage and new widths."""

import hashlib
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.edge.harness import Harness, N, coded, drift, hash_of, make_bundle, theta_of

from sedge_edge.rounds.run_state import RunState
from sedge_edge.training.local_training import mixture, phase_seed
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, mask_bitmap
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import decode_update
from sedge_protocol.wire.work import Codec, OwnModel, UpdateSelection

pytestmark = [pytest.mark.both_cores, pytest.mark.python_only("extensions")]

DITTO = OwnModel(Training(prox=0.5))
# The narrower form of the device's model.
NARROW = Layout.of(
    [
        ("body.weight", (20, 64), Role.PARAMETER),
        ("norm.mean", (2,), Role.STATISTIC),
        ("head.bias", (4,), Role.PARAMETER),
    ]
)


def run_of(device: Harness) -> RunState:
    return device.on_disk().runs["run"]


def patch_after(device: Harness, number: int) -> tuple[bytes, bytes]:
    """What the coordinator would send as the device's own last elements at their own values; its name."""
    sent = decode(decode_update(device.updates["run", number])[1], N)
    assert sent.indices is not None
    model = theta_of(number)
    sent.add_to(model)
    patch = SparseVector(N, sent.indices, model[sent.indices])
    coded = encode(patch, ValueCoding.FP32, Compression.NONE)
    return coded, hashlib.sha256(coded).digest()


def test_dittos_model_goes_on_from_round_to_round(device: Harness) -> None:
    expected = theta_of(1)
    for number in (1, 2, 3):
        device.complete(number, own_model=DITTO, **device.version(number))
        expected = expected + drift(phase_seed(number, 1))
        np.testing.assert_array_equal(device.own(), expected)
        np.testing.assert_allclose(device.delta(number), drift(number), rtol=0, atol=1e-7)
        if number == 2:
            device.pump(device.reboot())


def test_apfls_mixture_is_what_the_device_predicts_with(device: Harness) -> None:
    part, mix = theta_of(1), 0.25
    for number in (1, 2, 3):
        device.complete(number, own_model=OwnModel(mix=mix, adaptive=True))
        part, mix = part + 2 * drift(number), mix + 0.125
        assert device.report(number).mix == mix
        kept = run_of(device).kept.part
        assert kept is not None
        np.testing.assert_array_equal(device.stored(kept), part)
        expected = mixture(mix, part, theta_of(number) + drift(number))
        np.testing.assert_array_equal(device.own(), expected)
    # Only the last of each is still there.
    assert len(device.blob_files()) == 4  # bundle, version, model, part


# What was sent, remembered.

SELECTS: dict[str, Any] = {
    "select": UpdateSelection(0.5),
    "remember": True,
    "codec": Codec(values=ValueCoding.BF16),
}


def test_the_devices_own_patch_needs_no_transfer(device: Harness) -> None:
    device.complete(1, **SELECTS)
    patch, name = patch_after(device, 1)
    assert run_of(device).kept.patch == name
    model = device.order(2).model
    before = device.chunks_sent
    order = device.complete(2, patch_blob=device.serve(patch), patch_hash=name, **SELECTS)
    assert device.chunks_sent - before == model.count
    assert device.report(2).patch_hash == name
    start = theta_of(2)
    decode(patch, N).scatter_into(start)
    sent = decode(decode_update(device.updates["run", 2])[1], N)
    assert sent.indices is not None
    np.testing.assert_allclose(sent.values, (start + drift(2) - start)[sent.indices], rtol=2**-8)
    assert run_of(device).kept.patch not in (None, name)
    assert name.hex() not in device.blob_files()  # only the newest stays
    assert order.patch_blob is not None


def test_patch_and_mask_survive_a_power_cut_and_an_evaluation(device: Harness) -> None:
    device.complete(1, **SELECTS)
    patch, name = patch_after(device, 1)
    kept = run_of(device).kept
    device.complete(2, task="evaluate")
    device.pump(device.reboot())
    assert run_of(device).kept == kept and kept.patch == name and kept.mask is not None
    assert device.blobs().read(name) == patch
    model = device.order(3).model
    before = device.chunks_sent
    device.complete(3, patch_blob=device.serve(patch), patch_hash=name)
    assert device.chunks_sent - before == model.count
    assert run_of(device).kept.patch is None
    assert name.hex() not in device.blob_files()


def test_a_damaged_patch_is_fetched_like_any_other(device: Harness) -> None:
    device.complete(1, **SELECTS)
    patch, name = patch_after(device, 1)
    device.damage(name)
    order = device.order(2, patch_blob=device.serve(patch), patch_hash=name)
    before = device.chunks_sent
    device.give(order)
    device.settle()
    assert ("run", 2) in device.updates
    assert order.patch_blob is not None
    assert device.chunks_sent - before == order.model.count + order.patch_blob.count
    assert device.declines == []


def test_a_patch_against_the_devices_own_mask(device: Harness) -> None:
    """The mask is fetched only where the device has lost it."""
    device.complete(1, **SELECTS)
    sent = decode(decode_update(device.updates["run", 1])[1], N)
    assert sent.indices is not None
    bitmap = mask_bitmap(sent)
    name = hashlib.sha256(bitmap).digest()
    assert run_of(device).kept.mask == name
    for number, lost in ((2, False), (3, True)):
        values = drift(number)[sent.indices]
        patch = encode(SparseVector(N, sent.indices, values), ValueCoding.BF16, context=bitmap)
        if lost:
            (device.folder / "blobs" / name.hex()).unlink()
        order = device.order(
            number,
            task="evaluate",
            patch_blob=device.serve(patch),
            patch_hash=hashlib.sha256(patch).digest(),
            patch_context=device.serve(bitmap),
        )
        before = device.chunks_sent
        device.give(order)
        assert ("run", number) in device.updates, device.notes
        assert order.patch_blob is not None
        assert order.patch_context is not None
        needed = order.model.count + order.patch_blob.count
        needed += order.patch_context.count if lost else 0
        assert device.chunks_sent - before == needed


def test_another_width_begins_without_what_was_kept(device: Harness) -> None:
    """Model, residual, mask and all else are of another layout: dropped, and no error."""
    codec = Codec(fraction=0.1)
    device.complete(1, select=UpdateSelection(0.1))
    device.complete(2, codec=codec, own_model=OwnModel(mix=0.5), remember=True)
    before = run_of(device)
    assert len(before.kept.names()) == 5
    narrow = np.random.default_rng(3).normal(0, 0.1, NARROW.size).astype(np.float32)
    device.bundle = device.serve(make_bundle(1, NARROW))
    order = device.order(
        3, keep=("norm.mean",), codec=codec, context=before.kept.mask, own_model=OwnModel(mix=0.5)
    )
    device.give(replace(order, model=device.serve(coded(narrow)), model_hash=hash_of(narrow)))
    assert device.declines == []
    report, payload = decode_update(device.updates["run", 3])
    assert report.layout_hash == NARROW.hash
    assert decode(payload, NARROW.size).count == round(0.1 * NARROW.size)
    assert run_of(device).bundle != before.bundle
    assert not {old.hex() for old in before.kept.names()} & device.blob_files()
    # And back to the whole model: again from nothing.
    device.bundle = device.serve(make_bundle())
    device.complete(4, codec=codec, own_model=OwnModel(mix=0.5))
    assert device.declines == []
    assert device.residual() is not None
