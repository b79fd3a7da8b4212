"""The agent and versions of the global model: what it fetches, what it keeps, and how it gets unstuck."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edge.disk_faults import Disk, PowerCut
from tests.edge.harness import DriftTrainer, Harness, MakeDevice, N, drift, hash_of, only, theta_of
from tests.fleet import changed

from sedge_edge.agent import StartJob
from sedge_edge.jobs import storage
from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_edge.training.job import run_job
from sedge_edge.training.trainer import Trained
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.work import Codec, Step, UpdateSelection

pytestmark = pytest.mark.both_cores


@pytest.fixture
def orders(device: Harness) -> list[Order]:
    """Rounds 1 to 4, each one step ahead of the last."""
    return device.chain(1, 4)


def chunks(*manifests: Manifest) -> int:
    return sum(manifest.count for manifest in manifests)


def sent_for(device: Harness, order: Order) -> int:
    """How many chunks an order costs."""
    device.chunks_sent = 0
    device.give(order)
    assert ("run", order.round) in device.updates
    assert device.agent.idle
    return device.chunks_sent


def files(device: Harness) -> set[bytes]:
    """The names in the blob folder; there are no parts."""
    return {bytes.fromhex(name) for name in device.blob_files()}


# What is fetched, and what is kept.


def test_a_device_that_was_there_fetches_one_step(device: Harness, orders: list[Order]) -> None:
    device.give(orders[0])
    for order in orders[1:]:
        assert sent_for(device, order) == chunks(order.steps[-1].blob)
        assert device.on_disk().runs["run"].base == order.model_hash
    theta, order = device.own() - drift(4), orders[3]
    held = theta_of(1)
    for step in order.steps:
        decode(device.served[step.blob.transfer], N).add_to(held)
    np.testing.assert_allclose(theta, held, atol=1e-7)


@pytest.mark.python_only("steps")
def test_a_version_is_kept_as_steps_until_they_are_many(
    device: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order names only the step from the version before; what leads to that is kept."""
    monkeypatch.setattr(storage, "MAX_KEPT_STEPS", 3)
    whole = b""
    for place, order in enumerate(device.chain(1, 10)):
        order = msgspec.structs.replace(order, steps=order.steps[-1:])
        assert place == 0 or sent_for(device, order) == chunks(order.steps[0].blob)
        device.give(order)
        known = device.on_disk().runs["run"]
        if place % 4 == 0:
            whole = order.model_hash
        assert known.base == order.model_hash and len(known.steps) == place % 4
        steps = {step.blob.sha256 for step in known.steps}
        assert files(device) == {known.bundle, whole, known.kept.model} | steps


def test_steps_larger_than_the_model_are_not_kept(device: Harness) -> None:
    first = device.order(1)
    device.give(first)
    data = encode(SparseVector(N, None, drift(5)), ValueCoding.FP32, Compression.NONE)
    large, theta = Step(first.model_hash, device.serve(data)), theta_of(1) + drift(5)
    device.give(device.order(2, theta, steps=(large,)))
    known = device.on_disk().runs["run"]
    assert known.steps == () and known.base == hash_of(theta)
    assert files(device) == {known.bundle, known.base, known.kept.model}


@pytest.mark.python_only("steps")
@pytest.mark.parametrize("lost", ["step", "base"])
def test_a_lost_version_of_several_steps_costs_a_snapshot(
    device: Harness, orders: list[Order], lost: str
) -> None:
    """The coordinator no longer names the steps that the device keeps, and would not send them."""
    for order in orders[:3]:
        device.give(order)
    step = device.on_disk().runs["run"].steps[0]
    device.damage({"step": step.blob.sha256, "base": step.base_hash}[lost])
    order = msgspec.structs.replace(orders[3], steps=orders[3].steps[-1:])
    device.order_at_hand, device.chunks_sent = order, 0
    device.pump(device.tell(order))
    device.settle()
    assert device.report(4).model_hash == order.model_hash
    assert device.chunks_sent == chunks(order.steps[0].blob, order.model)
    assert device.declines == [] and device.on_disk().runs["run"].steps == ()


@pytest.mark.python_only("steps")
def test_an_order_for_the_version_that_is_kept_as_steps(
    device: Harness, orders: list[Order]
) -> None:
    """An evaluation after the training, or a round in which nobody had anything to add."""
    for order in orders[:3]:
        device.give(order)
    again = msgspec.structs.replace(orders[2], round=4, steps=orders[2].steps[-1:])
    assert sent_for(device, again) == 0
    assert len(device.on_disk().runs["run"].steps) == 2


@pytest.mark.python_only("steps")
def test_a_job_that_a_power_cut_has_repeated_fetches_nothing(
    device: Harness, orders: list[Order]
) -> None:
    device.give(orders[0])
    order = orders[1]
    device.tell(order)
    (work,) = only(device.feed(order.steps[0].blob), StartJob)
    run_job(work.job, device.place())  # and the power fails before the outcome is committed
    device.chunks_sent = 0
    device.order_at_hand = order
    device.pump(device.reboot())
    assert ("run", 2) in device.updates
    assert device.chunks_sent == 0


# What goes wrong.


def wrong(order: Order, device: Harness) -> Order:
    """The order with a step that leads elsewhere."""
    step = Step(order.steps[-1].base_hash, device.step(theta_of(1), 77)[0].blob)
    return msgspec.structs.replace(order, steps=(*order.steps[:-1], step))


def test_steps_that_lead_elsewhere_cost_a_snapshot_and_nothing_else(
    device: Harness, orders: list[Order]
) -> None:
    device.give(orders[0])
    order = wrong(orders[1], device)
    assert sent_for(device, order) == chunks(order.steps[0].blob, order.model)
    assert device.declines == []
    assert "run run, round 2: fetching the whole model instead" in device.notes
    assert device.report(2).model_hash == order.model_hash
    # The next round's steps are believed again.
    assert sent_for(device, orders[2]) == chunks(orders[2].steps[-1].blob)


def test_a_snapshot_that_is_wrong_too_is_declined(device: Harness, orders: list[Order]) -> None:
    device.give(orders[0])
    device.give(msgspec.structs.replace(wrong(orders[1], device), model_hash=b"x" * 32))
    assert [decline.reason for decline in device.declines] == ["CodecError"]
    assert device.agent.idle
    device.give(orders[2])
    assert ("run", 3) in device.updates


class FailingOnce(DriftTrainer):
    """A trainer whose first training ends as on a full disk."""

    def __init__(self) -> None:
        self.failed = False

    def train(self, *args: Any, **kwargs: Any) -> Trained:
        if not self.failed:
            self.failed = True
            raise StorageError("the disk is full (test)")
        return super().train(*args, **kwargs)


@pytest.mark.parametrize("victim", ["base", "step", "model"])
def test_damage_ends_in_fetching_again(device: Harness, orders: list[Order], victim: str) -> None:
    """Never in a decline, and never in a loop: one half minute, and one more transfer."""
    order = orders[1]
    if victim == "model":
        order = msgspec.structs.replace(order, steps=())
    else:
        device.give(orders[0])
    (blob,) = {step.blob for step in order.steps} or {order.model}
    names = {"base": orders[0].model_hash, "step": blob.sha256, "model": order.model_hash}
    cost = {"base": order.model, "step": blob, "model": None}[victim]
    device.listen(device.tell(order))
    (work,) = only(device.feed(order.bundle, blob), StartJob)
    if victim == "model":
        device.trainer = FailingOnce()
        device.pump(device.work(work.job))
        assert order.model_hash in files(device)
        device.damage(names[victim])
        device.now += DISK_RETRY_S
    else:
        device.damage(names[victim])
        device.pump(device.work(work.job))
    device.order_at_hand = order
    device.chunks_sent = 0
    device.settle()
    assert any("do not match its sha256" in note for note in device.notes)
    assert device.declines == []
    assert device.report(2).model_hash == order.model_hash
    assert device.chunks_sent == (0 if cost is None else cost.count)
    assert device.now <= 100.0 + 3 * DISK_RETRY_S


def test_a_base_that_is_lost_while_its_steps_are_fetched(
    device: Harness, orders: list[Order]
) -> None:
    """The other way is taken, and what was fetched for the first is not in its way."""
    device.give(orders[0])
    order = orders[3]
    device.listen(device.tell(order))
    device.listen(device.feed(order.steps[0].blob))
    (device.folder / "blobs" / order.steps[0].base_hash.hex()).unlink()
    device.order_at_hand = order
    device.settle()
    assert device.report(4).model_hash == order.model_hash
    assert not device.topics
    known = device.on_disk().runs["run"]
    assert files(device) == {known.bundle, known.base, known.kept.model}


# What the codec leaves out is owed; then masks have a context.
CODED: tuple[dict[str, Any], ...] = (
    {"codec": Codec(fraction=0.3)},
    {"codec": Codec(fraction=0.3)},
    {"select": UpdateSelection(0.3)},
    {"select": UpdateSelection(0.3)},
)


def play(device: Harness, orders: Sequence[Order], coded: Sequence[dict[str, Any]]) -> None:
    """Whatever power cuts there are; masks are coded against the last."""
    for order, asked in zip(orders, coded, strict=True):
        known = device.on_disk().runs.get("run")
        mask = b"" if known is None else known.kept.mask or b""
        given = changed(order, keep=("norm.mean",), context=mask, **asked)
        for act in (lambda g=given: device.give(g), device.settle):
            try:
                act()
            except PowerCut:
                device.pump(device.reboot())
    device.settle()


@pytest.mark.parametrize("each", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("loses", [False, True])
def test_a_power_cut_at_a_write_repeats_and_loses_nothing(
    make_device: MakeDevice,
    disk: Disk,
    core: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    loses: bool,
    each: int,
) -> None:
    """A whole model, a step, a step too many to keep, a wrong one; half of the writes lose, half do not."""
    monkeypatch.setattr(storage, "MAX_KEPT_STEPS", 1)
    expected, calls = make_device(tmp_path / "quiet", chunk_bytes=16384), 0
    at = -1
    while at < calls:
        device = make_device(tmp_path / str(at), chunk_bytes=16384) if calls else expected
        device.pump(device.connect())
        orders = device.chain(1, 4)
        orders[3] = wrong(orders[3], device)
        with disk.cut(at, loses) as counted:
            play(device, orders, CODED if core == "python" else 2 * CODED[:2])
        calls = calls or counted.calls
        assert device.results() == expected.results(), f"write {at}"
        assert device.on_disk().runs == expected.on_disk().runs, f"write {at}"
        assert files(device) == files(expected), f"write {at}"
        assert device.declines == []
        at += each if at >= 0 else 1 + (loses and each > 1)
    assert len(expected.updates) == 4 and calls > 50
