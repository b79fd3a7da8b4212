"""The agent and versions of the global model: what it fetches, what it keeps, and how it gets unstuck."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edge.harness import DriftTrainer, Harness, drift, only, theta_of
from tests.orders import changed

from sedge_edge.agent import StartJob
from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_edge.training.job import run_job
from sedge_edge.training.trainer import Trained
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Codec, Order, Step, UpdateSelection
from sedge_protocol.wire.transfer import Manifest


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


def flip(device: Harness, sha256: bytes) -> None:
    """Damage what has this name on the device's disk."""
    (path,) = device.folder.glob(f"blobs/*/{sha256.hex()}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def files(device: Harness) -> set[bytes]:
    """The names in the blob folder; there are no parts."""
    return {bytes.fromhex(name) for name in device.blob_files()}


# What is fetched, and what is kept.


def test_a_device_that_was_there_fetches_one_step(device: Harness, orders: list[Order]) -> None:
    device.give(orders[0])
    for order in orders[1:]:
        assert sent_for(device, order) == chunks(order.steps[-1].blob)
        assert device.on_disk().runs["run"].base == order.model_hash
    theta = device.own() - drift(4)
    np.testing.assert_allclose(theta, device.stored(orders[3].model_hash), atol=1e-7)


def test_a_version_goes_when_the_next_order_is_done_and_not_before(
    device: Harness, orders: list[Order]
) -> None:
    device.give(orders[0])
    first = device.on_disk().runs["run"]
    assert first.kept.model is not None
    order = orders[1]
    assert files(device) == {device.bundle.sha256, order.steps[0].base_hash, first.kept.model}
    device.tell(order)
    (work,) = only(device.feed(order.steps[0].blob), StartJob)
    device.agent.poll(device.now)
    assert order.steps[0].base_hash in files(device)
    device.pump(device.work(work.job))
    second = device.on_disk().runs["run"]
    assert second.kept.model is not None
    assert files(device) == {device.bundle.sha256, order.model_hash, second.kept.model}


def test_a_version_is_not_built_twice(device: Harness, orders: list[Order]) -> None:
    """StartJob that a power cut has repeated begins from the version that it had built."""
    device.give(orders[0])
    order = orders[1]
    device.tell(order)
    (work,) = only(device.feed(order.steps[0].blob), StartJob)
    run_job(work.job, device.place())  # and the power fails before the outcome is committed
    (path,) = device.folder.glob(f"blobs/*/{order.steps[0].blob.sha256.hex()}")
    path.unlink()
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
    cost = chunks(order.steps[0].blob, order.model)
    assert sent_for(device, order) == cost
    assert device.declines == []
    assert "run run, round 2: fetching the whole model instead" in device.notes
    assert device.report(2).model_hash == order.model_hash
    # The next round's steps are believed again.
    assert sent_for(device, orders[2]) == chunks(orders[2].steps[-1].blob)


def test_a_snapshot_that_is_wrong_too_is_declined(device: Harness, orders: list[Order]) -> None:
    device.give(orders[0])
    order = msgspec.structs.replace(wrong(orders[1], device), model_hash=b"x" * 32)
    device.give(order)
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
    device.give(orders[0])
    order = orders[1]
    names = {
        "base": order.steps[0].base_hash,
        "step": order.steps[0].blob.sha256,
        "model": order.model_hash,
    }
    cost = {"base": order.model, "step": order.steps[0].blob, "model": None}[victim]
    device.listen(device.tell(order))
    (work,) = only(device.feed(order.steps[0].blob), StartJob)
    if victim == "model":
        device.trainer = FailingOnce()
        device.pump(device.work(work.job))
        assert order.model_hash in files(device)
        flip(device, names[victim])
        device.now += DISK_RETRY_S
    else:
        flip(device, names[victim])
        device.pump(device.work(work.job))
    device.order_at_hand = order
    device.chunks_sent = 0
    device.settle()
    assert any("do not have its sha256" in note for note in device.notes)
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
    (path,) = device.folder.glob(f"blobs/*/{order.steps[0].base_hash.hex()}")
    path.unlink()
    device.order_at_hand = order
    device.settle()
    assert device.report(4).model_hash == order.model_hash
    assert not device.topics
    known = device.on_disk().runs["run"]
    assert files(device) == {known.bundle, known.base, known.kept.model}


# Power cuts at every write.


class PowerCut(Exception):
    """Nothing after this happened."""


class Cutting:
    """Lets the power fail just before or just after one of the calls that change the disk."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    def wrap(self, call: Callable[..., object]) -> Callable[..., object]:
        def cut(*args: object, **kwargs: object) -> object:
            self._step()
            result = call(*args, **kwargs)
            self._step()
            return result

        return cut

    def _step(self) -> None:
        turn, self.calls = self.calls, self.calls + 1
        if turn == self.at:
            raise PowerCut


# What the codec leaves out is owed; then masks have a context.
CODED: tuple[dict[str, Any], ...] = (
    {"codec": Codec(fraction=0.3)},
    {"select": UpdateSelection(0.3)},
    {"select": UpdateSelection(0.3)},
)


def play(folder: Path, cutting: Cutting, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """Three rounds: a whole model, a step, steps that are wrong; each mask coded against the last."""
    device = Harness(folder, chunk_bytes=16384)
    device.pump(device.connect())
    orders = device.chain(1, 3)
    orders[2] = wrong(orders[2], device)
    with monkeypatch.context() as patched:
        for name in ("pwrite", "replace", "unlink"):
            patched.setattr(os, name, cutting.wrap(getattr(os, name)))
        for order, coded in zip(orders, CODED, strict=True):
            known = device.on_disk().runs.get("run")
            mask = b"" if known is None else known.kept.mask or b""
            given = changed(order, keep=("norm.mean",), context=mask, **coded)
            for act in (lambda g=given: device.give(g), device.settle):
                try:
                    act()
                except PowerCut:
                    device.pump(device.reboot())
        device.settle()
    return device


def test_a_power_cut_at_every_write_repeats_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = Cutting(-1)
    expected = play(tmp_path / "quiet", quiet, monkeypatch)
    assert len(expected.updates) == 3
    assert quiet.calls > 60
    for at in range(quiet.calls):
        device = play(tmp_path / str(at), Cutting(at), monkeypatch)
        assert device.updates == expected.updates, f"write {at}"
        assert device.on_disk().runs == expected.on_disk().runs, f"write {at}"
        assert files(device) == files(expected), f"write {at}"
        assert device.declines == []
