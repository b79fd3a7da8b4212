"""An enrolled device that says what it likes, under its own key: the others' rounds go on."""

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, a_hello, report_for, small_update
from tests.cloud.stores import FOLDER, SERVERS
from tests.protocol.absurd import warped, warped_frame

from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.config import RobustConfig, RunConfig
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.wire import messages
from sedge_protocol.wire.messages import Offer, Order
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES, describe
from sedge_protocol.wire.update import Metrics, Report

CODECS = ("freeze", "phases", "own_model", "select", "scoring", "remember", "choice")
N = LAYOUT.size
LARGEST = float(np.finfo(np.float32).max)
MANY = msgspec.structs.replace(CONFIG, num_rounds=10_000)
RUNS: dict[str, RunConfig] = {
    "fedavg": MANY,
    "apfl": msgspec.structs.replace(MANY, evaluate_every=1),
    "fedobp": msgspec.structs.replace(
        MANY, options={"quantile": 0.9}, broadcast=BroadcastConfig(ValueCoding.BF16, 0.1)
    ),
    "fedcac": msgspec.structs.replace(MANY, robust=RobustConfig(clip=0.0)),
    "heterofl": msgspec.structs.replace(MANY, broadcast=BroadcastConfig(ValueCoding.INT8, 0.5)),
}


@pytest.mark.parametrize(
    ("strategy", "engine"),
    [*((strategy, FOLDER) for strategy in RUNS), pytest.param("fedcac", SERVERS, marks=pytest.mark.fleet)],
    indirect=["engine"],
)  # fmt: skip
def test_the_others_go_on(tmp_path: Path, strategy: str, engine: str) -> None:
    rng = random.Random(strategy)
    config = msgspec.structs.replace(RUNS[strategy], strategy=strategy)
    cloud = Cloud(tmp_path, config, ("a", "b", "c"))
    cloud.hello(codecs=CODECS)
    for _ in range(60):
        order = cloud.order("a")
        match rng.randrange(4):
            case 0 | 1:
                cloud.give("a", _frame(cloud, order, rng))
            case 2:
                # A change that no coding of the broadcast holds ends a run, as it should.
                largest = LARGEST if config.broadcast.whole else 1e30
                blob = _update(order, rng, largest)
                if len(blob) > MAX_INLINE_BYTES:
                    cloud.upload("a", blob)
                else:
                    cloud.offer("a", blob, order=order)
            case _:
                cloud.answer("b", "c")
        cloud.poll(rng.choice([0, 1, 70, 4000]))
        if rng.random() < 0.03:
            cloud.come_back(codecs=CODECS)
    before = cloud.state().round
    cloud.come_back(codecs=CODECS)
    for _ in range(3):
        for name in ("b", "c"):
            cloud.offer(name, small_update(cloud.order(name)))
        cloud.poll(config.deadline_s)
    assert cloud.state().round > before
    assert cloud.run_row().status == "running"
    rejected = [cloud.store.update(RUN, number, "a") for number in range(1, before + 1)]
    assert {bool(row.rejected) for row in rejected if row is not None} == {False, True}


def _frame(cloud: Cloud, order: Order, rng: random.Random) -> bytes:
    """A message of a device, or of a coordinator, bent out of shape."""
    run, number = order.run, order.round
    blob = rng.randbytes(rng.choice([1, 9000]))
    found: list[messages.Message] = [
        a_hello(codecs=CODECS),
        Offer(run, number, describe(blob), 1, blob if rng.random() < 0.5 else b""),
        messages.Get(run, number, b"\x01"),
        messages.Decline(run, number, "reason", "detail"),
        messages.Goodbye(bytes(16)),
        messages.Committed(run, number, bytes(32)),
        order,
    ]
    device = cloud.devices["a"]
    seq = int.from_bytes(device.peer.seal(messages.Goodbye(bytes(16)))[12:16], "little")
    return warped_frame(rng.choice(found), rng, device.topic, device.keys.up, 1, seq)


def _update(order: Order, rng: random.Random, largest: float) -> bytes:
    """An update that its order allows, of absurd numbers, or one that no order allows."""

    def metrics() -> Metrics:
        loss = rng.choice([0.0, 3.4e38, -3.4e38] * 4 + [1.7976931348623157e308])
        return Metrics(loss, rng.choice([0.0, 5e-324, 1.0]), rng.choice([0, 2**40]))

    report: Report = msgspec.structs.replace(
        report_for(order),
        num_examples=rng.choice([1, 2**40]),
        before=metrics(),
        after=metrics(),
        train_loss=metrics().loss,
        steps=rng.choice([0, 1, 2**40]),
        seconds=rng.choice([0.0, 5e-324, 1e308]),
        mix=rng.choice([None, 0.0, 5e-324, 1.0]),
    )
    header = msgspec.msgpack.encode(report) if rng.random() < 0.6 else warped(report, rng)
    count = rng.choice([0, 1, N // 2, N])
    values = np.full(count, rng.choice([1e-45, 1.0, 1e19, largest]), np.float32)
    values[1::2] *= rng.choice([-1, 1])
    indices = None if count == N else np.arange(count, dtype=np.uint32)
    payload = encode(SparseVector(N, indices, values), ValueCoding.FP32)
    asked = order.work.upload and order.task == messages.TRAIN
    return len(header).to_bytes(4, "little") + header + (payload if asked else b"")
