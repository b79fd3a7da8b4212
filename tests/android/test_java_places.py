"""The agent in Java before web servers of every kind: it fetches, leaves and says what Python's does."""

import sys
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.android.java_fleet import JavaFleet
from tests.android.test_java_words import warned
from tests.edge.harness import Harness, make_bundle, only, theta_of
from tests.edge.java_core import JavaHarness, Jvm
from tools.bench.parts.blob_server import LOOPBACK, BlobServer, serving
from tools.bench.parts.certificates import make_ca, make_certificate
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.store.opening import open_folder
from sedge_edge.rounds.effects import FetchSpan
from sedge_edge.rounds.places import PAUSE_MAX_S
from sedge_protocol.wire.messages import Cancel, Get, Order
from sedge_protocol.wire.places import Place
from sedge_protocol.wire.transfer import from_bitmap

# The coordinator of a fleet in which no blob is too small for a place.
EVERY_SIZE = """\
import sys
from sedge_cloud.runs import orders
orders.PUBLIC_BYTES = 1
from sedge_cloud.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
RUN = """\
strategy = "fedavg"
num_rounds = 1
min_train_devices = 1
min_available_devices = 1
"""
MANNERS = (
    "ranges", "whole", "redirects", "lies", "cuts", "skews", "larger", "circles", "fails",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair(jvm: Jvm, tmp_path_factory: pytest.TempPathFactory) -> tuple[Harness, Harness]:
    """A device in Python and one in Java, connected, each with a disk of its own."""
    folder = tmp_path_factory.mktemp("places")
    java, python = JavaHarness(jvm, folder / "java"), Harness(folder / "python")
    python.permits = lambda url: True
    python.compression = java.compression  # the same bytes, and so the same ranges, for both
    python.agent = python.start()
    for device in (python, java):
        device.connect()
    return python, java


def placed(device: Harness, server: BlobServer, number: int = 1) -> Order:
    """An order whose bundle and model, of which there is only one, the server has as well."""
    device.bundle = device.serve(make_bundle(number))
    order = device.order(number, theta_of(number))
    blobs = [order.bundle, order.model]
    server.blobs |= {m.sha256.hex(): device.served[m.transfer] for m in blobs}
    places = tuple(Place(m.sha256, f"{server.url}/{m.sha256.hex()}") for m in blobs)
    return device.order(number, theta_of(number), places=places)


def told(device: Harness, order: Order) -> list[Any]:
    """Everything that follows from an order at once, downloads included."""
    effects: list[Any] = []
    queue = deque[Any](device.tell(order))
    while queue:
        effects.append(queue.popleft())
        if isinstance(effects[-1], FetchSpan):
            queue += device.download(effects[-1])
    device.tell(Cancel(order.run, 0, "the next server comes"))
    device.now += 2 * PAUSE_MAX_S  # after which a device asks servers again
    return effects


def gets(device: Harness, effects: list[Any]) -> list[set[int]]:
    """The chunks that are asked for over MQTT."""
    counts = {m.transfer: m.count for m in device.manifests.values()}
    return [
        from_bitmap(message.missing, counts[frame.transfer])
        for frame, message in device.opened(effects)
        if isinstance(message, Get)
    ]


@pytest.mark.parametrize("manner", MANNERS)
def test_a_server(pair: tuple[Harness, Harness], manner: str) -> None:
    said, asked, requests = [], [], []
    for device in pair:
        with serving(manner) as server:
            effects = told(device, placed(device, server, 2 + MANNERS.index(manner)))
            said.append([text.replace(server.url, "") for text in warned(device, effects)])
            asked.append(gets(device, effects))
            requests.append(server.asked)
            assert all(headers["User-Agent"] == "sedge" for headers in server.headers)
    assert said[0] == said[1]
    assert asked[0] == asked[1]
    assert requests[0] == requests[1]
    assert bool(asked[0]) == bool(said[0]) == (manner not in ("ranges", "whole", "redirects"))


def test_one_answer_without_ranges_fills_every_hole(pair: tuple[Harness, Harness]) -> None:
    for device in pair:
        with serving("whole") as server:
            order = placed(device, server, 20)
            device.tell(msgspec.structs.replace(order, places=()))
            for index in (0, 2):
                device.chunk(order.bundle, index)
            device.tell(Cancel(order.run, 0, "it goes on over HTTP"))
            told(device, order)
            starts = [asked.partition("-")[0] for asked in server.asked]
        assert starts == ["bytes=4096", "bytes=0"]  # bundle and model


def test_nobody_there(pair: tuple[Harness, Harness]) -> None:
    for device in pair:
        with serving() as server:
            order = placed(device, server)
        effects = told(device, order)
        (said,) = warned(device, effects)
        assert "Connection refused" in said and len(gets(device, effects)) == 2


def test_nobody_is_asked_before_the_first_connection(pair: tuple[Harness, Harness]) -> None:
    for device in pair:
        with serving() as server:
            order = placed(device, server, 21)
            device.tell(msgspec.structs.replace(order, places=()))
            device.tell(order)  # its blobs have begun to come over MQTT
            device.agent = device.start()
            assert not only(device.agent.poll(device.now), FetchSpan) and not server.asked
            assert only(device.connect(), FetchSpan) or server.asked
            device.tell(Cancel(order.run, 0, "the next server comes"))


def test_java_trusts_the_authority_that_it_was_given(jvm: Jvm, tmp_path: Path) -> None:
    for authority in ("ca", "other"):
        make_ca(tmp_path, authority)
    java = JavaHarness(jvm, tmp_path / "device", ca=tmp_path / "ca.crt")
    java.connect()
    for number, (authority, good) in enumerate((("ca", True), ("other", False)), start=1):
        make_certificate(tmp_path, "server", authority, f"IP:{LOOPBACK}")
        pair = tmp_path / "server.crt", tmp_path / "server.key"
        with serving("ranges", certificate=pair) as server:
            effects = told(java, placed(java, server, number))
        assert bool(gets(java, effects)) == (not good)
        assert ("PKIX path" in str(warned(java, effects))) == (not good)


@pytest.mark.fleet
def test_a_whole_agent_in_java_takes_part_over_http(
    fleet: RealFleet, class_path: str, means: Path
) -> None:
    java = JavaFleet(fleet, class_path)
    config = fleet.folder / "cloud.toml"
    with serving(folder=fleet.folder / "state" / "blobs") as server:
        config.write_text(config.read_text() + f'[blobs]\npublic = "{server.url}"\n')
        fleet.start("cloud", [sys.executable, "-c", EVERY_SIZE, "-c", str(config), "serve"])
        java.add("pi-1", seed=0)
        java.start("pi-1")
        fleet.start_run(means, RUN)
        wait_until(fleet.finished, 120, "the run ends")
        assert len(server.asked) >= 2  # bundle and model
    assert [len(summary.devices) for summary in fleet.rounds()] == [1, 1]
    store = open_folder(fleet.folder / "state")
    try:
        assert read_sums(store.sums("run")).http > 0
    finally:
        store.close()
