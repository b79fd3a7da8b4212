"""What an agent keeps for the orders that ask for more, over rounds, power cuts, damage and new widths."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.edge.desk import (
    LAYOUT,
    Desk,
    DriftTrainer,
    N,
    coded,
    drift,
    hash_of,
    make_bundle,
    theta_of,
)
from tests.orders import changed

from sedge_edge.rounds.state import RunState
from sedge_edge.training.examples import Examples
from sedge_edge.training.local_training import mixture, phase_seed
from sedge_edge.training.trainer import Mixed, Trained
from sedge_protocol.codec import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    encode,
    mask_bitmap,
    top_k,
)
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.messages import (
    Codec,
    DeviceScoring,
    Order,
    OwnModel,
    Training,
    UpdateSelection,
)
from sedge_protocol.wire.update import decode_update

DITTO = OwnModel(Training(prox=0.5))
# The narrower form of the desk's model.
NARROW = Layout.of(
    [
        ("body.weight", (20, 64), Role.PARAMETER),
        ("norm.mean", (2,), Role.STATISTIC),
        ("head.bias", (4,), Role.PARAMETER),
    ]
)


class AnyWidth(DriftTrainer):
    """A trainer for models of every size."""

    def train(
        self,
        theta: Theta,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
        *,
        anchor: Theta | None = None,
        gradient: bool = False,
        correction: Theta | None = None,
    ) -> Trained:
        return Trained(theta + drift(seed)[: theta.size], 0.5, 3)

    def train_mixed(
        self,
        sent: Theta,
        own: Theta,
        mix: float,
        adaptive: bool,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
    ) -> Mixed:
        both = [theta + drift(seed)[: theta.size] for theta in (sent, own)]
        return Mixed(Trained(both[0], 0.5, 3), both[1], mix)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A connected device."""
    desk = Desk(tmp_path)
    desk.pump(desk.connect())
    return desk


def given(desk: Desk, number: int, **changes: Any) -> Order:
    """Round ``number``, done."""
    order = desk.order(number, **changes)
    desk.give(order)
    assert ("run", number) in desk.updates, desk.notes
    return order


def run_of(desk: Desk) -> RunState:
    return desk.on_disk().runs["run"]


def patch_after(desk: Desk, number: int) -> bytes:
    """What the coordinator would send as the device's own last elements at their own values."""
    sent = decode(decode_update(desk.updates["run", number])[1], N)
    assert sent.indices is not None
    model = theta_of(number)
    sent.add_to(model)
    patch = SparseVector(N, sent.indices, model[sent.indices])
    return encode(patch, ValueCoding.FP32, Compression.NONE)


# An own model.


def test_dittos_model_goes_on_from_round_to_round(desk: Desk) -> None:
    expected = theta_of(1)
    for number in (1, 2, 3):
        given(desk, number, own_model=DITTO)
        expected = expected + drift(phase_seed(number, 1))
        np.testing.assert_array_equal(desk.own(), expected)
        np.testing.assert_allclose(desk.delta(number), drift(number), rtol=0, atol=1e-7)
        if number == 2:
            desk.pump(desk.reboot())


def test_apfls_mixture_is_what_the_device_predicts_with(desk: Desk) -> None:
    part, mix = theta_of(1), 0.25
    for number in (1, 2, 3):
        given(desk, number, own_model=OwnModel(mix=mix, adaptive=True))
        part, mix = part + 2 * drift(number), mix + 0.125
        assert desk.report(number).mix == mix
        kept = run_of(desk).kept.part
        assert kept is not None
        np.testing.assert_array_equal(desk.stored(kept), part)
        expected = mixture(mix, part, theta_of(number) + drift(number))
        np.testing.assert_array_equal(desk.own(), expected)
    # Only the last of each is still there.
    assert len(desk.blob_files()) == 4  # bundle, version, model, part


def test_a_damaged_part_begins_anew(desk: Desk) -> None:
    given(desk, 1, own_model=OwnModel(mix=0.5))
    name = run_of(desk).kept.part
    assert name is not None
    (path,) = desk.folder.glob(f"blobs/*/{name.hex()}")
    path.write_bytes(b"rot")
    desk.give(desk.order(2, own_model=OwnModel(mix=0.5)))
    desk.settle()
    assert any("part is damaged" in note for note in desk.notes)
    kept = run_of(desk).kept.part
    assert kept is not None
    np.testing.assert_array_equal(desk.stored(kept), theta_of(2) + 2 * drift(2))


def test_a_gradient_is_kept_for_the_next_rounds_scores(desk: Desk) -> None:
    own = DeviceScoring(0.99, "gradient")
    given(desk, 1, scoring=own)
    assert (
        desk.delta(1).astype(np.float32).tolist()
        == ((theta_of(1) + drift(1)) - theta_of(1)).tolist()
    )
    given(desk, 2, scoring=own)
    personal = np.flatnonzero(np.abs(desk.delta(2)) > 0.05)
    scores = np.abs(drift(1))
    scores[LAYOUT.mask(["norm.mean"])] = 0
    wanted = np.argsort(-scores)[:26]
    assert set(personal) <= set(wanted)
    assert len(personal) > 13


# What was sent, remembered.

SELECTS: dict[str, Any] = {
    "select": UpdateSelection(0.5),
    "remember": True,
    "codec": Codec(values=ValueCoding.BF16),
}


def test_the_devices_own_patch_needs_no_transfer(desk: Desk) -> None:
    given(desk, 1, **SELECTS)
    patch = patch_after(desk, 1)
    name = hashlib.sha256(patch).digest()
    assert run_of(desk).kept.patch == name
    model = desk.order(2).model
    before = desk.chunks_sent
    order = given(desk, 2, patch_blob=desk.serve(patch), patch_hash=name, **SELECTS)
    assert desk.chunks_sent - before == model.count
    assert desk.report(2).patch_hash == name
    start = theta_of(2)
    decode(patch, N).scatter_into(start)
    sent = decode(decode_update(desk.updates["run", 2])[1], N)
    assert sent.indices is not None
    np.testing.assert_allclose(sent.values, (start + drift(2) - start)[sent.indices], rtol=2**-8)
    assert run_of(desk).kept.patch not in (None, name)
    assert name.hex() not in desk.blob_files()  # only the newest stays
    assert order.patch_blob is not None


def test_a_remembered_patch_survives_a_power_cut_and_an_evaluation(desk: Desk) -> None:
    given(desk, 1, **SELECTS)
    patch = patch_after(desk, 1)
    name = hashlib.sha256(patch).digest()
    given(desk, 2, task="evaluate")
    desk.pump(desk.reboot())
    assert run_of(desk).kept.patch == name
    assert desk.blobs().read(name) == patch
    model = desk.order(3).model
    before = desk.chunks_sent
    given(desk, 3, patch_blob=desk.serve(patch), patch_hash=name)
    assert desk.chunks_sent - before == model.count
    assert run_of(desk).kept.patch is None
    assert name.hex() not in desk.blob_files()


def test_a_damaged_patch_is_fetched_like_any_other(desk: Desk) -> None:
    given(desk, 1, **SELECTS)
    patch = patch_after(desk, 1)
    name = hashlib.sha256(patch).digest()
    (path,) = desk.folder.glob(f"blobs/*/{name.hex()}")
    path.write_bytes(patch[:-1] + b"\0")
    order = desk.order(2, patch_blob=desk.serve(patch), patch_hash=name)
    before = desk.chunks_sent
    desk.give(order)
    desk.settle()
    assert ("run", 2) in desk.updates
    assert order.patch_blob is not None
    assert desk.chunks_sent - before == order.model.count + order.patch_blob.count
    assert desk.declines == []


def test_a_patch_against_the_devices_own_mask(desk: Desk) -> None:
    """The mask is fetched only where the device has lost it."""
    given(desk, 1, **SELECTS)
    sent = decode(decode_update(desk.updates["run", 1])[1], N)
    assert sent.indices is not None
    bitmap = mask_bitmap(sent)
    name = hashlib.sha256(bitmap).digest()
    assert run_of(desk).kept.mask == name
    for number, lost in ((2, False), (3, True)):
        values = drift(number)[sent.indices]
        patch = encode(SparseVector(N, sent.indices, values), ValueCoding.BF16, context=bitmap)
        if lost:
            (path,) = desk.folder.glob(f"blobs/*/{name.hex()}")
            path.unlink()
        order = desk.order(
            number,
            task="evaluate",
            patch_blob=desk.serve(patch),
            patch_hash=hashlib.sha256(patch).digest(),
            patch_context=desk.serve(bitmap),
        )
        before = desk.chunks_sent
        desk.give(order)
        assert ("run", number) in desk.updates, desk.notes
        assert order.patch_blob is not None
        assert order.patch_context is not None
        needed = order.model.count + order.patch_blob.count
        needed += order.patch_context.count if lost else 0
        assert desk.chunks_sent - before == needed


# Another width.


def test_another_width_begins_without_what_was_kept(desk: Desk) -> None:
    """Model, residual, mask and all else are of another layout: dropped, and no error."""
    codec = Codec(fraction=0.1)
    given(desk, 1, select=UpdateSelection(0.1))
    given(desk, 2, codec=codec, own_model=OwnModel(mix=0.5), remember=True)
    before = run_of(desk)
    assert None not in (
        before.kept.model,
        before.kept.residual,
        before.kept.mask,
        before.kept.part,
        before.kept.patch,
    )
    narrow = np.random.default_rng(3).normal(0, 0.1, NARROW.size).astype(np.float32)
    desk.trainer = AnyWidth()
    desk.bundle = desk.serve(make_bundle(1, NARROW))
    order = desk.order(
        3, keep=("norm.mean",), codec=codec, context=before.kept.mask, own_model=OwnModel(mix=0.5)
    )
    blob = desk.serve(coded(narrow))
    desk.give(replace(order, model=blob, model_hash=hash_of(narrow)))
    assert desk.declines == []
    report, payload = decode_update(desk.updates["run", 3])
    assert report.layout_hash == NARROW.hash
    assert decode(payload, NARROW.size).count == round(0.1 * NARROW.size)
    after = run_of(desk)
    assert after.bundle != before.bundle
    for old in (
        before.kept.model,
        before.kept.residual,
        before.kept.mask,
        before.kept.part,
        before.kept.patch,
    ):
        assert old is not None
        assert old.hex() not in desk.blob_files()
    # And back to the whole model: again from nothing.
    desk.bundle = desk.serve(make_bundle())
    given(desk, 4, codec=codec, own_model=OwnModel(mix=0.5))
    assert desk.declines == []
    assert desk.residual() is not None


# What cannot be done.


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"training": Training(freeze=("tail",))}, "training.freeze: no tensor named 'tail'"),
        (
            {"scoring": DeviceScoring(0.5, tensors=("tail",))},
            "scoring.tensors: no parameter named 'tail'",
        ),
        (
            {"scoring": DeviceScoring(0.5), "own_model": DITTO},
            "scoring: found together with a patch",
        ),
        (
            {"own_model": OwnModel(mix=0.5), "select": UpdateSelection()},
            "select: a mixture's training gives no gradient",
        ),
    ],
)
def test_an_order_that_no_device_can_do_is_declined(
    desk: Desk, changes: dict[str, Any], text: str
) -> None:
    given(desk, 1)
    before = run_of(desk)
    desk.give(desk.order(2, **changes))
    (decline,) = desk.declines
    assert (decline.round, decline.reason) == (2, "CodecError")
    assert text in decline.detail
    assert run_of(desk) == before
    given(desk, 3)


def test_own_elements_and_a_patch_exclude_each_other(desk: Desk) -> None:
    vector = top_k(drift(1), 3)
    desk.give(changed(desk.patched(1, encode(vector)), scoring=DeviceScoring(0.5)))
    assert "scoring: found together with a patch" in desk.declines[0].detail
