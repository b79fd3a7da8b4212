"""Either server goes away in the middle of a round and comes back, or its disk is full for a while."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from time import sleep

import pytest
from tests.cloud.helper import Cloud, random_theta, update
from tests.cloud.stores import on_servers
from tools.bench.parts.servers import Servers

from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.rounds.lifecycle import FINISHED
from sedge_cloud.store.postgres import RECONNECT_S
from sedge_protocol.wire.messages import Busy, Committed

pytestmark = on_servers


@contextmanager
def away(servers: Servers, which: str) -> Generator[str]:
    """A server is gone, or full, and comes back as after a power cut; how messages name that."""
    if which == "full":
        servers.objects.limit("1")
        yield "(is the object store full?)"
        servers.objects.limit("unlimited")
        return
    server = servers.postgres if which == "rows" else servers.objects
    server.stop()
    try:
        yield servers.postgres.url("") if which == "rows" else "s3://"
    finally:
        server.start()


@pytest.mark.parametrize("which", ["rows", "blobs", "full"])
def test_a_server_goes_away_in_mid_round(cloud: Cloud, servers: Servers, which: str) -> None:
    """It is named as soon as it is missed; then the round goes on, with every update that was committed."""
    cloud.hello()
    blobs = {name: update(cloud.order(name), random_theta(seed)) for seed, name in enumerate("ab")}
    assert isinstance(cloud.upload("a", blobs["a"])[0], Committed)
    with away(servers, which) as place:
        cloud.load()
        cloud.upload("b", blobs["b"])
        cloud.poll()
        if which == "rows":
            assert cloud.messages("b", Busy) and not cloud.messages("b", Committed)
        named = cloud.notes(logging.ERROR)
        assert named and all(place in text and "\n" not in text for text in named)
        assert which == "rows" or not cloud.summaries()
        for _ in range(6):  # a minute
            cloud.poll(10.0)
            cloud.load()
    if which == "rows":
        sleep(RECONNECT_S)
    for _ in range(3):
        cloud.upload("b", blobs["b"])
        cloud.poll(DISK_RETRY_S)
    assert cloud.messages("b", Committed)
    assert [device.device for device in cloud.summaries()[0].devices] == ["a", "b"]
    for _ in range(2):
        cloud.answer("a", "b")
    assert cloud.run_row().status == FINISHED
