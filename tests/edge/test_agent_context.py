"""The agent and the masks of its updates: which it keeps, and against which it codes the next one."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.edge.harness import DriftTrainer, Harness, N, drift

from sedge_edge.training.trainer import Trained, TrainRequest
from sedge_protocol.codec import SparseVector, decode, mask_bitmap
from sedge_protocol.errors import CodecError
from sedge_protocol.wire.update import decode_update
from sedge_protocol.wire.work import Codec, UpdateSelection

pytestmark = [pytest.mark.both_cores, pytest.mark.python_only("extensions")]

SELECT = UpdateSelection(0.4)
SENT = 1025  # of the layout's parameters


class Steady(DriftTrainer):
    """A trainer whose loss depends on much the same elements every round."""

    def train(self, request: TrainRequest, *args: Any, **kwargs: Any) -> Trained:
        theta = request.theta
        ended = super().train(replace(request, theta=theta + 20 * drift(0)), *args, **kwargs).theta
        return Trained(ended, 0.5, 3, (ended - theta) / ended)


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    """A connected device that has done round 1."""
    device = Harness(tmp_path)
    device.trainer = Steady()
    device.pump(device.connect())
    device.give(device.order(1, select=SELECT))
    return device


def payload(device: Harness, number: int) -> memoryview:
    return decode_update(device.updates["run", number])[1]


def bitmap(vector: SparseVector) -> tuple[bytes, bytes]:
    """The mask of an update, and its name."""
    mask = mask_bitmap(vector)
    return mask, hashlib.sha256(mask).digest()


def kept(device: Harness) -> bytes | None:
    """The name of the mask that the device's disk has."""
    return device.on_disk().runs["run"].kept.mask


def test_each_update_is_coded_against_the_last(device: Harness) -> None:
    first = decode(payload(device, 1), N)
    mask, name = bitmap(first)
    assert kept(device) == name
    for number in (2, 3):
        device.complete(number, select=SELECT, context=name)
        assert len(payload(device, number)) < len(payload(device, 1)) - N // 16
        with pytest.raises(CodecError, match="context"):
            decode(payload(device, number), N)
        mask, name = bitmap(decode(payload(device, number), N, mask))
        assert kept(device) == name
    # Only the last is still there.
    assert device.blobs().read(name) == mask
    assert bitmap(first)[1].hex() not in device.blob_files()


def test_a_coordinator_that_holds_another_mask_gets_none_of_it(device: Harness) -> None:
    """It missed an update, or has forgotten: what it gets stands alone."""
    _, first = bitmap(decode(payload(device, 1), N))
    device.complete(2, select=SELECT, context=b"")
    device.complete(3, select=SELECT, context=first)  # which the device has replaced since
    device.complete(4, select=SELECT, context=b"x" * 32)
    for number in (2, 3, 4):
        assert decode(payload(device, number), N).count == SENT
    device.give(device.order(5, codec=Codec(fraction=0.4), context=kept(device)))
    assert decode(payload(device, 5), N).count == round(0.4 * N)  # which selects nothing
