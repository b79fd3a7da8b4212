"""A coordinator, or whoever has the device's key, that orders what it likes: declined, and life goes on."""

import hashlib
import random

import numpy as np
import pytest
from tests.edge.harness import DOWN, KEYS, Harness, N, drift, theta_of
from tests.fleet import changed
from tests.protocol.absurd import warped_frame

from sedge_edge.agent import AgentEffect
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.layout import Theta
from sedge_protocol.wire import messages
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Order, Welcome
from sedge_protocol.wire.work import Codec, DeviceScoring, OwnModel, PatchChoice, UpdateSelection

LARGEST = float(np.finfo(np.float32).max)
EXACT = ValueCoding.FP32
SIZES = (1e-45, 1.0, 1e19, LARGEST)


pytestmark = pytest.mark.both_cores


@pytest.mark.parametrize("seed", range(2))
def test_a_device_survives_absurd_orders(device: Harness, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(1, 120):
        device.now += rng.choice([0.0, 1.0, 40.0, 700.0])
        order = _order(device, number, rng)
        match rng.randrange(4):
            case 0:
                device.give(order)
            case 1:
                device.order_at_hand = order
                device.pump(_bent(device, order, rng))
            case _:
                device.pump(_bent(device, _message(order, rng), rng))
        if rng.random() < 0.05:
            device.pump(device.reboot())
    assert device.declines and device.updates and "dropped a frame" in str(device.notes)
    device.now += 4000.0
    device.pump(device.reboot())
    device.give(device.order(10**6, run="honest"))
    assert ("honest", 10**6) in device.updates


def _bent(device: Harness, message: messages.Message, rng: random.Random) -> list[AgentEffect]:
    seq = int.from_bytes(device.peer.seal(Welcome(bytes(16), "0", VERSIONS))[12:16], "little")
    return device.agent.receive(
        DOWN, warped_frame(message, rng, DOWN, KEYS.down, 7, seq), device.now
    )


def _message(order: Order, rng: random.Random) -> messages.Message:
    run, number = order.run, order.round
    found: list[messages.Message] = [
        Welcome(bytes(16), "0", VERSIONS),
        messages.Cancel(run, number, "why"),
        messages.Have(1, b"", 1),
        messages.Busy(1),
        messages.Committed(run, number, bytes(32)),
        messages.Reject(run, number, bytes(32), "reason"),
        messages.Refusal("reason", "detail"),
    ]
    return rng.choice(found)


def _order(device: Harness, number: int, rng: random.Random) -> Order:
    """An order whose every value is within its limits, whatever sense they make together."""
    order = device.order(number, _model(number, rng))
    if rng.random() < 0.4:
        values = np.full(3, rng.choice(SIZES), np.float32)
        patch = encode(SparseVector(N, np.array([1, 5, N - 1], np.uint32), values), EXACT)
        sha256 = hashlib.sha256(patch).digest()
        choice = PatchChoice(rng.choice([1e-300, 0.5, 1 - 1e-12]), rng.choice([0, 2**63 - 1]))
        order = changed(order, patch=patch, patch_hash=sha256, choice=rng.choice([None, choice]))
    extreme = (5e-324, 0.5, 1.0)
    codec = Codec(
        values=rng.choice(list(ValueCoding)),
        fraction=rng.choice(extreme),
        threshold=rng.choice([0.0, 5e-324, 1e6]),
        compression=rng.choice(list(Compression)),
        error_feedback=rng.random() < 0.5,
    )
    share, chance = rng.choice([0.0, *extreme]), rng.random() < 0.5
    asked = {
        "own_model": OwnModel(mix=share, adaptive=chance),
        "select": UpdateSelection(
            rng.choice(extreme), rng.choice(["last", "delta"]), chance, share
        ),
        "scoring": DeviceScoring(share, rng.choice(["squared", "product", "gradient", "fisher"])),
        "keep": rng.choice([("head.bias",), ("a\nb",), ("body.weight", "norm.mean", "head.bias")]),
        "remember": True,
        "upload": False,
        "task": messages.EVALUATE,
        "codec": codec,
    }
    return changed(order, **{k: v for k, v in asked.items() if rng.random() < 0.3})


def _model(number: int, rng: random.Random) -> Theta:
    """A model (n,), some of them as large as floats are."""
    if rng.random() < 0.7:
        return theta_of(number)
    return np.sign(drift(number)) * np.float32(rng.choice(SIZES))
