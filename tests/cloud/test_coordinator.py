"""The coordinator whole: a run ends alike whatever fails meanwhile."""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, Faults, a_hello, report_for
from tests.cloud.stores import open_store
from tests.fleet import Crash

from sedge_cloud.coding import BroadcastConfig, CodecConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.events import RoundClosed, RunEnded
from sedge_cloud.runs.run import StrategyState
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import Summary
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Committed, Order
from sedge_protocol.wire.update import encode_update

ROUGH = msgspec.structs.replace(
    CONFIG,
    strategy="fedobp",
    options={"quantile": 0.99, "ema": 0.5, "cold_start": "init"},
    evaluate=False,
)


# Changes of the model are sent in bf16, masks of what devices select are coded against the one before.
CODED = msgspec.structs.replace(
    ROUGH,
    strategy=given.SELECTING,
    options={},
    broadcast=BroadcastConfig(ValueCoding.BF16, 0.001),
    codec=CodecConfig(fraction=0.001),
)


def status(cloud: Cloud) -> str:
    """The run's status, past any faults."""
    return Store.runs(cloud.store)[0].status


def drive(cloud: Cloud) -> None:
    """Let the devices do what they are asked until the run has ended, and the core restart if it dies."""

    def safely(act: Callable[[], object]) -> None:
        try:
            act()
        except Crash:
            cloud.restart()

    def work(name: str) -> None:
        if not cloud.core.devices.online(name):
            cloud.say(name, a_hello(name, codecs=("select",)))
        for order in cloud.messages(name, Order)[-1:]:
            done = {m.round for m in cloud.messages(name, Committed)}
            if order.round not in done:
                cloud.offer(name, coded_update(cloud, order, 20 * order.round + ord(name)))

    for _ in range(60):
        if status(cloud) != "running" and not cloud.core.open:
            return
        for name in "ab":
            safely(lambda n=name: work(n))  # type: ignore[misc]
        safely(lambda: cloud.poll(31.0))
        safely(cloud.load)
    raise AssertionError(f"the run has not ended: {cloud.notes(logging.ERROR)}")


def ending(cloud: Cloud) -> tuple[StrategyState, list[Summary], list[tuple[str, int]]]:
    """What a run came to, and that every update counted once."""
    rows = Store.rounds(cloud.store, RUN)
    summaries = [msgspec.msgpack.decode(row.summary or b"", type=Summary) for row in rows]
    counted = [(d.device, s.round) for s in summaries for d in s.devices]
    row = Store.runs(cloud.store)[0]
    return msgspec.msgpack.decode(row.state, type=StrategyState), summaries, counted


def coded_update(cloud: Cloud, order: Order, seed: int) -> bytes:
    """An update of ten elements, coded against the mask that the order names."""
    blobs = cloud.store.blobs
    context = type(blobs).read(blobs, order.context) if order.context else None  # past any faults
    indices = np.arange(seed, seed + 10, dtype=np.uint32)
    vector = SparseVector(LAYOUT.size, indices, np.full(10, 0.5, np.float32))
    return encode_update(report_for(order), encode(vector, context=context))


# A crash after one call is a crash before the next. On servers processes are killed: store/test_crashes.py.
@pytest.mark.parametrize("each", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("config", "error", "after"),
    [
        (ROUGH, StorageError("disk full"), False),
        (CODED, StorageError("disk full"), True),
        (CODED, Crash(), False),
    ],
    ids=["refused", "done and reported as failed", "killed"],
)
def test_a_run_survives_trouble_at_calls_of_the_store(
    tmp_path: Path, config: RunConfig, error: BaseException, after: bool, each: int
) -> None:
    """At each of them, or at every second one: what is refused before is another half than after."""
    quiet = Cloud(tmp_path / "quiet", config)
    drive(quiet)
    expected = ending(quiet)
    closings = config.num_rounds
    assert len(expected[2]) == 2 * closings and status(quiet) == "finished"
    assert len(expected[0].steps) == (closings if config is CODED else 0)
    at, struck = -1 if after and each > 1 else 0, set[str]()
    Cloud(tmp_path / "begun", config).store.close()
    while True:
        at += each
        folder = shutil.copytree(tmp_path / "begun", tmp_path / str(at))
        cloud = Cloud.of(open_store(folder / "state"), folder, "ab", 1)
        cloud.begin()
        faults = Faults(cloud, at, error, after)
        drive(cloud)
        assert ending(cloud) == expected, f"call {at}, {faults.struck}"
        events = [(e.run, e.status) for e in cloud.events(RunEnded)]
        if isinstance(error, StorageError):
            assert events == [(RUN, "finished")] and len(cloud.events(RoundClosed)) == closings
        if not faults.struck:
            break
        struck.add(faults.struck)
        cloud.store.close()
    assert (each > 1 and len(struck) > 3) or struck >= {
        "save_hello", "open_round", "commit_receipt", "close_round", "collect", "write", "read",
    }  # fmt: skip
