"""The agent and versions of the global model: what it fetches, what it keeps, and how it gets unstuck."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edge.desk import Desk, DriftTrainer, FullDisk, drift, hash_of, only, theta_of
from tests.orders import changed

from sedge_edge.agent import Work
from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import perform
from sedge_edge.training.trainer import Trained
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Codec, Order, Step, Training, UpdateSelection
from sedge_protocol.wire.transfer import Manifest


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A connected, welcomed device."""
    desk = Desk(tmp_path)
    desk.pump(desk.connect())
    return desk


@pytest.fixture
def orders(desk: Desk) -> list[Order]:
    """Rounds 1 to 4, each one step ahead of the last."""
    return desk.chain(1, 4)


def chunks(*manifests: Manifest) -> int:
    return sum(manifest.count for manifest in manifests)


def sent_for(desk: Desk, order: Order) -> int:
    """How many chunks an order costs."""
    desk.chunks_sent = 0
    desk.give(order)
    assert ("run", order.round) in desk.updates
    assert desk.agent.idle
    return desk.chunks_sent


def flip(desk: Desk, sha256: bytes) -> None:
    """Damage what has this name on the device's disk."""
    (path,) = desk.folder.glob(f"blobs/*/{sha256.hex()}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def files(desk: Desk) -> set[bytes]:
    """The names in the blob folder; there are no parts."""
    return {bytes.fromhex(name) for name in desk.blob_files()}


# What is fetched, and what is kept.


def test_a_newcomer_fetches_the_model_whole(desk: Desk, orders: list[Order]) -> None:
    assert sent_for(desk, orders[3]) == chunks(desk.bundle, orders[3].model)
    assert desk.report(4).model_hash == orders[3].model_hash


def test_a_device_that_was_there_fetches_one_step(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    for order in orders[1:]:
        assert sent_for(desk, order) == chunks(order.steps[-1].blob)
        assert desk.on_disk().runs["run"].base == order.model_hash
    theta = desk.own() - drift(4)
    np.testing.assert_allclose(theta, desk.stored(orders[3].model_hash), atol=1e-7)


def test_a_step_inside_its_order_is_not_fetched(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    step = desk.served[orders[1].steps[-1].blob.transfer]
    assert sent_for(desk, msgspec.structs.replace(orders[1], step=step)) == 0
    assert desk.on_disk().runs["run"].base == orders[1].model_hash


def test_a_step_inside_its_order_is_a_blob_from_then_on(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    step = desk.served[orders[1].steps[-1].blob.transfer]
    desk.tell(msgspec.structs.replace(orders[1], step=step))
    assert desk.on_disk().orders["run"] == orders[1]
    assert orders[1].steps[-1].blob.sha256 in files(desk)


@pytest.mark.parametrize("wrong", [b"another step", b""])
def test_another_step_inside_an_order_is_dropped(
    desk: Desk, orders: list[Order], wrong: bytes
) -> None:
    desk.give(orders[0])
    order = msgspec.structs.replace(orders[1], step=wrong)
    assert sent_for(desk, order) == chunks(order.steps[-1].blob)
    without = msgspec.structs.replace(desk.order(5), step=b"there are no steps")
    assert sent_for(desk, without) == chunks(without.model)


def test_a_device_that_was_away_fetches_the_steps_it_missed(
    desk: Desk, orders: list[Order]
) -> None:
    desk.give(orders[0])
    missed = [step.blob for step in orders[3].steps]
    assert len(missed) == 3
    assert sent_for(desk, orders[3]) == chunks(*missed)


def test_a_model_that_is_held_is_not_fetched(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    again = msgspec.structs.replace(orders[0], round=2, task="evaluate")
    assert sent_for(desk, again) == 0
    assert sent_for(desk, msgspec.structs.replace(orders[1], round=3)) > 0


def test_two_runs_share_what_they_have_in_common(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    other = msgspec.structs.replace(orders[0], run="other")
    desk.chunks_sent = 0
    desk.give(other)
    assert desk.chunks_sent == 0
    desk.give(orders[1])
    assert hash_of(theta_of(1)) in files(desk)  # the other run still stands there


def test_a_version_goes_when_the_next_order_is_done_and_not_before(
    desk: Desk, orders: list[Order]
) -> None:
    desk.give(orders[0])
    first = desk.on_disk().runs["run"]
    assert first.model is not None
    order = orders[1]
    assert files(desk) == {desk.bundle.sha256, order.steps[0].base_hash, first.model}
    desk.tell(order)
    (work,) = only(desk.feed(order.steps[0].blob), Work)
    desk.agent.poll(desk.now)
    assert order.steps[0].base_hash in files(desk)
    desk.pump(desk.work(work.job))
    second = desk.on_disk().runs["run"]
    assert second.model is not None
    assert files(desk) == {desk.bundle.sha256, order.model_hash, second.model}


def test_a_version_is_not_built_twice(desk: Desk, orders: list[Order]) -> None:
    """Work that a power cut has repeated begins from the version that it had built."""
    desk.give(orders[0])
    order = orders[1]
    desk.tell(order)
    (work,) = only(desk.feed(order.steps[0].blob), Work)
    perform(work.job, desk.place())  # and the power fails before the outcome is committed
    (path,) = desk.folder.glob(f"blobs/*/{order.steps[0].blob.sha256.hex()}")
    path.unlink()
    desk.chunks_sent = 0
    desk.order_at_hand = order
    desk.pump(desk.reboot())
    assert ("run", 2) in desk.updates
    assert desk.chunks_sent == 0


def test_a_download_of_steps_goes_on_after_a_power_cut(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    order = orders[3]
    desk.listen(desk.tell(order))
    desk.feed(order.steps[1].blob)
    desk.order_at_hand = order
    desk.chunks_sent = 0
    desk.pump(desk.reboot())
    assert ("run", 4) in desk.updates
    assert desk.chunks_sent == chunks(order.steps[0].blob, order.steps[2].blob)


# What goes wrong.


def wrong(order: Order, desk: Desk) -> Order:
    """The order with a step that leads elsewhere."""
    step = Step(order.steps[-1].base_hash, desk.step(theta_of(1), 77)[0].blob)
    return msgspec.structs.replace(order, steps=(*order.steps[:-1], step))


def test_steps_that_lead_elsewhere_cost_a_snapshot_and_nothing_else(
    desk: Desk, orders: list[Order]
) -> None:
    desk.give(orders[0])
    order = wrong(orders[1], desk)
    cost = chunks(order.steps[0].blob, order.model)
    assert sent_for(desk, order) == cost
    assert desk.declines == []
    assert "run run, round 2: fetching the whole model instead" in desk.notes
    assert desk.report(2).model_hash == order.model_hash
    # The next round's steps are believed again.
    assert sent_for(desk, orders[2]) == chunks(orders[2].steps[-1].blob)


def test_a_power_cut_does_not_bring_wrong_steps_back(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    order = wrong(orders[1], desk)
    desk.tell(order)
    (work,) = only(desk.feed(order.steps[0].blob), Work)
    desk.work(work.job)
    assert desk.on_disk().orders["run"] == msgspec.structs.replace(order, steps=())
    desk.order_at_hand = order
    desk.chunks_sent = 0
    desk.pump(desk.reboot())
    assert ("run", 2) in desk.updates
    assert desk.chunks_sent == chunks(order.model)


def test_wrong_steps_and_a_full_disk(
    desk: Desk, orders: list[Order], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the steps are wrong could not be noted: it is found again when the disk is back."""
    desk.give(orders[0])
    order = wrong(orders[1], desk)
    desk.tell(order)
    (work,) = only(desk.feed(order.steps[0].blob), Work)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", FullDisk(0, 10**9).wrap(os.pwrite))
        desk.work(work.job)
    assert desk.on_disk().orders["run"] == order
    desk.order_at_hand = order
    desk.settle()
    assert desk.declines == []
    assert desk.report(2).model_hash == order.model_hash


def test_a_snapshot_that_is_wrong_too_is_declined(desk: Desk, orders: list[Order]) -> None:
    desk.give(orders[0])
    order = msgspec.structs.replace(wrong(orders[1], desk), model_hash=b"x" * 32)
    desk.give(order)
    assert [decline.reason for decline in desk.declines] == ["CodecError"]
    assert desk.agent.idle
    desk.give(orders[2])
    assert ("run", 3) in desk.updates


class FailingOnce(DriftTrainer):
    """A trainer whose first training ends as on a full disk."""

    def __init__(self) -> None:
        self.failed = False

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
        if not self.failed:
            self.failed = True
            raise StorageError("the disk is full (test)")
        return super().train(theta, examples, training, seed, stopped)


@pytest.mark.parametrize("victim", ["base", "step", "model"])
def test_damage_ends_in_fetching_again(desk: Desk, orders: list[Order], victim: str) -> None:
    """Never in a decline, and never in a loop: one half minute, and one more transfer."""
    desk.give(orders[0])
    order = orders[1]
    names = {
        "base": order.steps[0].base_hash,
        "step": order.steps[0].blob.sha256,
        "model": order.model_hash,
    }
    cost = {"base": order.model, "step": order.steps[0].blob, "model": None}[victim]
    desk.listen(desk.tell(order))
    (work,) = only(desk.feed(order.steps[0].blob), Work)
    if victim == "model":
        desk.trainer = FailingOnce()
        desk.pump(desk.work(work.job))
        assert order.model_hash in files(desk)
        flip(desk, names[victim])
        desk.now += DISK_RETRY_S
    else:
        flip(desk, names[victim])
        desk.pump(desk.work(work.job))
    desk.order_at_hand = order
    desk.chunks_sent = 0
    desk.settle()
    assert any("do not have its sha256" in note for note in desk.notes)
    assert desk.declines == []
    assert desk.report(2).model_hash == order.model_hash
    assert desk.chunks_sent == (0 if cost is None else cost.count)
    assert desk.now <= 100.0 + 3 * DISK_RETRY_S


def test_a_base_that_is_lost_while_its_steps_are_fetched(desk: Desk, orders: list[Order]) -> None:
    """The other way is taken, and what was fetched for the first is not in its way."""
    desk.give(orders[0])
    order = orders[3]
    desk.listen(desk.tell(order))
    desk.listen(desk.feed(order.steps[0].blob))
    (path,) = desk.folder.glob(f"blobs/*/{order.steps[0].base_hash.hex()}")
    path.unlink()
    desk.order_at_hand = order
    desk.settle()
    assert desk.report(4).model_hash == order.model_hash
    assert not desk.topics
    known = desk.on_disk().runs["run"]
    assert files(desk) == {known.bundle, known.base, known.model}


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


def play(folder: Path, cutting: Cutting, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Three rounds: a whole model, a step, steps that are wrong; each mask coded against the last."""
    desk = Desk(folder)
    desk.pump(desk.connect())
    orders = desk.chain(1, 3)
    orders[2] = wrong(orders[2], desk)
    with monkeypatch.context() as patched:
        for name in ("pwrite", "replace", "unlink"):
            patched.setattr(os, name, cutting.wrap(getattr(os, name)))
        for order, coded in zip(orders, CODED, strict=True):
            known = desk.on_disk().runs.get("run")
            mask = b"" if known is None else known.mask or b""
            given = changed(order, keep=("norm.mean",), context=mask, **coded)
            for act in (lambda g=given: desk.give(g), desk.settle):
                try:
                    act()
                except PowerCut:
                    desk.pump(desk.reboot())
        desk.settle()
    return desk


def test_a_power_cut_at_every_write_repeats_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    quiet = Cutting(-1)
    expected = play(tmp_path / "quiet", quiet, monkeypatch)
    assert len(expected.updates) == 3
    assert quiet.calls > 60
    for at in range(quiet.calls):
        desk = play(tmp_path / str(at), Cutting(at), monkeypatch)
        assert desk.updates == expected.updates, f"write {at}"
        assert desk.on_disk().runs == expected.on_disk().runs, f"write {at}"
        assert files(desk) == files(expected), f"write {at}"
        assert desk.declines == []
