"""Orders and what devices fetch fit the messages that the broker, or a device's own, lets through."""

import logging
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import RUN, Cloud, a_hello, began, served

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import RunConfig
from sedge_cloud.runs.orders import packet_of, trimmed
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.frame import LEAST_PACKET_BYTES, MAX_PACKET_BYTES
from sedge_protocol.wire.messages import MAX_STEPS, Order, Refusal
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import Step

NEEDS = "it lacks a broker that accepts messages of 16000 bytes; this broker accepts 1024"


def say(cloud: Cloud, name: str, max_packet: int) -> None:
    """A device's hello, which says what its own broker announces."""
    cloud.say(name, a_hello(name, max_packet=max_packet))
    cloud.poll()


@pytest.mark.parametrize(
    ("measured", "announced", "chunk_bytes"),
    [
        (MAX_PACKET_BYTES, 0, 65_536), (131_072, 0, 65_536), (65_536, 0, 32_768),
        (LEAST_PACKET_BYTES, 0, 8192), (MAX_PACKET_BYTES, 65_536, 32_768),
        (LEAST_PACKET_BYTES, 65_536, 8192), (65_536, LEAST_PACKET_BYTES, 8192),
    ],
)  # fmt: skip
def test_blobs_are_cut_for_the_smaller_of_both_limits(
    tmp_path: Path, measured: int, announced: int, chunk_bytes: int
) -> None:
    cloud = Cloud(tmp_path)
    cloud.core.connected(cloud.now, measured)
    say(cloud, "a", announced)
    say(cloud, "b", 0)
    order = cloud.order("a")
    assert {m.chunk_bytes for m in (order.bundle, order.model)} == {chunk_bytes}
    fetched = {blob.manifest.transfer for blob in served(cloud, "a")}
    assert fetched == {order.bundle.transfer, order.model.transfer}


def test_a_limit_that_no_run_fits_is_named_to_both_sides(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    say(cloud, "a", 1024)
    say(cloud, "b", 0)
    (refusal,) = cloud.messages("a", Refusal)
    assert refusal.reason == "unable" and NEEDS in refusal.detail
    assert any(NEEDS in note for note in cloud.notes(logging.WARNING))
    assert not cloud.core.open
    say(cloud, "a", 0)
    assert RUN in cloud.core.open


def test_a_run_is_not_started_that_no_device_can_be_asked_for(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    config = RunConfig(strategy="fedavg")
    say(cloud, "a", 1024)
    say(cloud, "b", 0)
    start_run(cloud.store, "one-can", cloud.folder / "bundle", config)
    say(cloud, "b", 1024)
    with pytest.raises(ConfigError, match="messages of 16000 bytes; this broker accepts 1024"):
        start_run(cloud.store, "nobody-can", cloud.folder / "bundle", config)


def test_an_order_keeps_the_newest_steps_that_fit(tmp_path: Path) -> None:
    cloud = began(tmp_path)
    whole = describe(bytes(1_000_000), 8192)
    steps = tuple(Step(bytes([i]) * 32, whole) for i in range(MAX_STEPS))
    order: Order = msgspec.structs.replace(cloud.order("a"), steps=steps)
    assert packet_of(order) > 65_536
    fitting = trimmed(order, 65_536)
    one_more = msgspec.structs.replace(fitting, steps=steps[-len(fitting.steps) - 1 :])
    assert packet_of(fitting) <= 65_536 < packet_of(one_more)
    assert fitting.steps and fitting.steps == steps[-len(fitting.steps) :]
    assert trimmed(order, MAX_PACKET_BYTES) is order


def test_an_order_that_does_not_fit_counts_as_declined(tmp_path: Path) -> None:
    """It was made when more came through: the round does not wait for its deadline."""
    cloud = began(tmp_path)
    current = cloud.core.ingest.open.round(RUN)
    assert current is not None
    current.orders["a"] = msgspec.structs.replace(current.orders["a"], patch=bytes(30_000))
    say(cloud, "a", 20_000)
    (row,) = (row for row in cloud.store.orders(RUN, 1) if row.declined)
    assert row.device == "a"
    assert row.declined.startswith("MessageTooLarge: its order takes 3")
    assert "this broker accepts 20000" in row.declined
