"""The agent and the masks of its updates: which it keeps, and against which it codes the next one."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.edge.desk import Desk, DriftTrainer, N, drift, make_bundle

from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained
from sedge_protocol.codec import SparseVector, decode, mask_bitmap
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order, Training, UpdateSelection
from sedge_protocol.wire.update import decode_update

SELECT = UpdateSelection(0.4)
SENT = 1025  # of the layout's parameters


class Steady(DriftTrainer):
    """A trainer whose loss depends on much the same elements every round."""

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
        moved = 20 * drift(0) + drift(seed)
        ended: Theta = np.add(theta, moved, dtype=np.float32)
        slope: Theta = np.divide(moved, ended, dtype=np.float32)
        return Trained(ended, 0.5, 3, slope)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A connected device that has done round 1."""
    desk = Desk(tmp_path)
    desk.trainer = Steady()
    desk.pump(desk.connect())
    desk.give(desk.order(1, select=SELECT))
    return desk


def payload(desk: Desk, number: int) -> memoryview:
    return decode_update(desk.updates["run", number])[1]


def bitmap(vector: SparseVector) -> tuple[bytes, bytes]:
    """The mask of an update, and its name."""
    mask = mask_bitmap(vector)
    return mask, hashlib.sha256(mask).digest()


def kept(desk: Desk) -> bytes | None:
    """The name of the mask that the device's disk has."""
    return desk.on_disk().runs["run"].kept.mask


def given(desk: Desk, number: int, context: bytes) -> Order:
    """Round ``number``, done."""
    order = desk.order(number, select=SELECT, context=context)
    desk.give(order)
    assert ("run", number) in desk.updates
    return order


def test_each_update_is_coded_against_the_last(desk: Desk) -> None:
    first = decode(payload(desk, 1), N)
    mask, name = bitmap(first)
    assert kept(desk) == name
    for number in (2, 3):
        given(desk, number, name)
        assert len(payload(desk, number)) < len(payload(desk, 1)) - N // 16
        with pytest.raises(CodecError, match="context"):
            decode(payload(desk, number), N)
        mask, name = bitmap(decode(payload(desk, number), N, mask))
        assert kept(desk) == name
    # Only the last is still there.
    assert desk.blobs().read(name) == mask
    assert bitmap(first)[1].hex() not in desk.blob_files()


def test_a_coordinator_that_holds_another_mask_gets_none_of_it(desk: Desk) -> None:
    """It missed an update, or has forgotten: what it gets stands alone."""
    _, first = bitmap(decode(payload(desk, 1), N))
    given(desk, 2, b"")
    given(desk, 3, first)  # of round 1, which the device has replaced since
    given(desk, 4, b"x" * 32)
    for number in (2, 3, 4):
        assert decode(payload(desk, number), N).count == SENT


def test_a_mask_survives_a_power_cut_and_an_evaluation(desk: Desk) -> None:
    mask, name = bitmap(decode(payload(desk, 1), N))
    desk.give(desk.order(2, task="evaluate"))
    desk.pump(desk.reboot())
    assert kept(desk) == name
    given(desk, 3, name)
    assert decode(payload(desk, 3), N, mask).count == SENT


def test_another_bundle_begins_without_a_mask(desk: Desk) -> None:
    """A run that has the name of an older one."""
    _, name = bitmap(decode(payload(desk, 1), N))
    order = desk.order(2, bundle=desk.serve(make_bundle(1)), select=SELECT, context=name)
    desk.give(order)
    assert decode(payload(desk, 2), N).count == SENT
