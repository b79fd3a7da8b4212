"""An agent, an order that names places, and web servers of every kind: the round is done all the same."""

import hashlib
import re
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.edge.harness import Harness, MakeDevice, make_bundle, only, storage_error, theta_of
from tools.bench.parts.blob_server import BlobServer, serving

from sedge_edge.rounds.effects import FetchedChunk, FetchSpan, SpanEnd, StopSpan
from sedge_edge.rounds.places import PAUSE_FIRST_S, STALL_S
from sedge_edge.rounds.waiting import CHECK_S
from sedge_protocol.wire.effects import Subscribe
from sedge_protocol.wire.messages import Cancel, Get, Order
from sedge_protocol.wire.places import Place
from sedge_protocol.wire.settings import LimitsConfig
from sedge_protocol.wire.topics import blob as blob_topic

pytestmark = pytest.mark.both_cores


@pytest.fixture
def server() -> Generator[BlobServer]:
    with serving() as found:
        yield found


@pytest.fixture
def device(make_device: MakeDevice, tmp_path: Path) -> Harness:
    device = make_device(tmp_path)
    device.permits = lambda url: True
    device.agent = device.start()
    device.connect()
    return device


def placed(
    device: Harness, server: BlobServer, number: int = 1, only_bundle: bool = False
) -> Order:
    """An order whose bundle and model the server has as well."""
    order = device.order(number, theta_of(number))
    blobs = [order.bundle] if only_bundle else [order.bundle, order.model]
    server.blobs |= {m.sha256.hex(): device.served[m.transfer] for m in blobs}
    places = tuple(Place(m.sha256, f"{server.url}/{m.sha256.hex()}") for m in blobs)
    return device.order(number, theta_of(number), places=places)


def test_large_blobs_come_over_http_and_the_report_says_how_much(
    device: Harness, server: BlobServer
) -> None:
    order = placed(device, server)
    device.give(order)
    device.settle()
    assert device.chunks_sent == 0
    assert device.report().http_bytes == order.bundle.size + order.model.size
    first = dict(server.headers[0])
    assert first.pop("Range") == f"bytes=0-{order.bundle.size - 1}"
    usual = {"Accept", "Cache-Control", "Connection", "Pragma"}  # Java's
    assert first.keys() - usual <= {"Host", "Accept-Encoding", "User-Agent"}  # nothing of the fleet
    assert first["User-Agent"] == "sedge"

    again = placed(device, server, 2)
    device.give(again)
    device.settle()
    # What was reported is not reported again.
    assert device.report(2).http_bytes == again.model.size


@pytest.mark.parametrize(
    ("manner", "kept", "why"),
    [
        ("lies", 2, "the digest does not match"),
        ("cuts", 2, "the response was cut off"),
        ("skews", 0, "for the bytes from 0"),
        ("larger", 0, "expected"),
        ("circles", 0, "more than 4 redirects"),
        ("fails", 0, "answered 503"),
        ("garbles", 0, "BadStatusLine|answered no HTTP"),
    ],
)
def test_a_bad_server_is_left_and_the_rest_comes_over_mqtt(
    device: Harness, server: BlobServer, manner: str, kept: int, why: str
) -> None:
    server.manner = manner
    order = placed(device, server)
    device.give(order)
    device.settle()
    assert device.chunks_sent == order.bundle.count - kept + order.model.count
    assert device.counters["http_failed"] in (1, -1)
    (said,) = [note for note in device.notes if "over MQTT" in note]
    assert re.search(why, said)
    assert device.report().http_bytes == sum(order.bundle.span(i)[1] for i in range(kept))


@pytest.mark.parametrize(("manner", "requests"), [("whole", 1), ("redirects", 2)])
def test_servers_without_ranges_and_redirections_serve_as_well(
    device: Harness, server: BlobServer, manner: str, requests: int
) -> None:
    server.manner = manner
    device.give(placed(device, server, only_bundle=True))
    device.settle()
    assert device.report().http_bytes == device.bundle.size
    assert len(server.asked) == requests


def test_nobody_there(device: Harness) -> None:
    with serving() as server:
        order = placed(device, server)
    device.give(order)
    device.settle()
    assert device.report().http_bytes == 0
    assert any("Connection refused; fetching the rest over MQTT" in note for note in device.notes)


def test_a_server_that_fails_is_asked_again_after_ever_longer_pauses(
    device: Harness, server: BlobServer
) -> None:
    """Each pause lies between half of its longest and its longest, which doubles."""
    server.manner = "fails"
    longest, number = PAUSE_FIRST_S, 0
    for failures in range(1, 6):
        for waited in (0.45 * longest, 0.6 * longest):
            number += 1
            device.give(placed(device, server, number))
            device.settle()
            assert len(server.asked) == failures
            device.now += waited
        longest *= 2
    server.manner = "ranges"
    device.give(placed(device, server, number + 1))
    device.settle()
    assert device.report(number + 1).http_bytes > 0
    server.manner = "fails"
    server.asked.clear()
    for failures in (1, 2):  # the pauses begin anew
        device.give(placed(device, server, number + 1 + failures))
        device.settle()
        assert len(server.asked) == failures
        device.now += PAUSE_FIRST_S


@pytest.mark.parametrize(("manner", "starts"), [("ranges", [4096, 12288]), ("whole", [4096])])
def test_what_has_come_is_kept_when_the_device_loses_power(
    device: Harness, server: BlobServer, manner: str, starts: list[int]
) -> None:
    """And nobody is asked before the first connection."""
    order, server.manner = placed(device, server), "fails"
    for span in only(device.tell(order), FetchSpan):
        device.download(span)
    for index in (0, 2):
        device.chunk(order.bundle, index)
    server.manner = manner
    server.asked.clear()
    device.agent = device.start()
    assert only(device.agent.poll(device.now), FetchSpan) == [] and not server.asked
    device.order_at_hand = order
    device.pump(device.connect())
    device.settle()
    assert [int(asked[6:].partition("-")[0]) for asked in server.asked] == [*starts, 0]
    assert device.chunks_sent == 0


def test_the_newest_url_of_a_blob_is_asked_for(device: Harness, server: BlobServer) -> None:
    """A signed URL ends after a day; an order that is sent again has another."""
    order = placed(device, server)
    ended = tuple(Place(place.sha256, f"{server.url}/ended") for place in order.places)
    device.agent.disconnected()
    for places in (ended, order.places):
        device.listen(device.tell(msgspec.structs.replace(order, places=places)))
    device.order_at_hand = order
    device.pump(device.connect())
    device.settle()
    assert device.chunks_sent == 0
    assert device.report().http_bytes == order.bundle.size + order.model.size


@pytest.mark.python_only("spans")
def test_a_server_that_is_silent_is_left(device: Harness, server: BlobServer) -> None:
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    data = device.served[order.bundle.transfer]
    device.now += 0.9 * STALL_S
    assert device.agent.fetched(FetchedChunk(span.number, 0, data[:4096]), device.now) == []
    device.now += 0.9 * STALL_S
    assert device.agent.poll(device.now) == []
    device.now += 0.1 * STALL_S
    effects = device.agent.poll(device.now)
    assert StopSpan(span.number) in effects
    assert Subscribe(blob_topic("test", order.bundle.transfer)) in effects
    late = FetchedChunk(span.number, 1, data[4096:8192])
    assert device.agent.fetched(late, device.now) == []  # of a span that was stopped


@pytest.mark.python_only("spans")
def test_a_blob_that_a_server_had_not_is_never_asked_for_there_again(
    device: Harness, server: BlobServer
) -> None:
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    data = device.served[order.bundle.transfer][:4096]
    assert device.agent.fetched(FetchedChunk(span.number, 0, data), device.now) == []
    effects = device.agent.fetched(SpanEnd(span.number, "answered 404"), device.now)
    effects += device.agent.poll(device.now)
    asked = [m for m in device.messages(effects) if isinstance(m, Get)]
    assert len(asked) == 2, "at once, over MQTT: the rest of the bundle, and the model"
    device.tell(Cancel(order.run, 0, "stopped"))
    device.now += PAUSE_FIRST_S
    again = placed(device, server, 2)
    (span,) = only(device.tell(again), FetchSpan)
    assert span.manifest == again.model


@pytest.mark.python_only("spans")
def test_a_download_that_was_stopped_begins_again_at_the_server(
    device: Harness, server: BlobServer
) -> None:
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    assert StopSpan(span.number) in device.tell(Cancel(order.run, 0, "stopped"))
    (again,) = only(device.tell(placed(device, server, 2)), FetchSpan)
    assert again.manifest == span.manifest


@pytest.mark.python_only("spans")
def test_while_the_devices_own_network_is_gone_nobody_is_asked_nor_blamed(
    device: Harness, server: BlobServer
) -> None:
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    device.agent.disconnected()
    why = "http://127.0.0.1: Network is unreachable"
    assert device.agent.fetched(SpanEnd(span.number, why), device.now) == [StopSpan(span.number)]
    device.agent = device.start()  # and before a reboot's first connection
    assert only(device.agent.poll(device.now), FetchSpan) == []
    device.order_at_hand = order
    device.pump(device.connect())
    device.settle()
    assert device.chunks_sent == device.agent.peer.counters["http_failed"] == 0
    assert device.report().http_bytes == order.bundle.size + order.model.size


@pytest.mark.python_only("spans")
def test_a_download_stops_when_the_network_goes_and_goes_on_when_it_is_back(
    device: Harness, server: BlobServer
) -> None:
    (span,) = only(device.tell(placed(device, server)), FetchSpan)
    device.agent.disconnected()
    assert device.agent.poll(device.now) == [StopSpan(span.number)]
    (again,) = only(device.connect(), FetchSpan)
    assert again == replace(span, number=again.number)


@pytest.mark.python_only("spans")
def test_a_full_disk_stops_a_download_which_goes_on_later(
    device: Harness, server: BlobServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    with monkeypatch.context() as full:
        full.setattr(device.agent.blobs, "write_part", storage_error)
        part = FetchedChunk(span.number, 0, device.served[order.bundle.transfer][:4096])
        assert StopSpan(span.number) in device.agent.fetched(part, device.now)
    device.order_at_hand = order
    device.settle()
    assert device.chunks_sent == 0
    assert device.report().http_bytes == order.bundle.size + order.model.size


@pytest.mark.python_only("spans")
def test_a_device_that_may_not_asks_nobody(device: Harness, server: BlobServer) -> None:
    device.permits = None
    device.agent = device.start()
    device.connect()
    device.give(placed(device, server))
    device.settle()
    assert server.asked == []
    assert device.report().http_bytes == 0


@pytest.mark.python_only("spans")
def test_a_link_that_becomes_metered_ends_a_download_which_goes_on_over_mqtt(
    tmp_path: Path, server: BlobServer
) -> None:
    device, metered = Harness(tmp_path), False
    device.permits = lambda url: not metered
    device.agent = device.start()
    device.connect()
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    metered = True
    device.now += CHECK_S
    effects = device.agent.poll(device.now)
    assert StopSpan(span.number) in effects
    assert Subscribe(blob_topic("test", order.bundle.transfer)) in effects
    device.order_at_hand = order
    device.pump(effects)
    device.settle()
    assert server.asked == []
    assert device.agent.peer.counters["http_failed"] == 0
    assert device.chunks_sent == order.bundle.count + order.model.count


@pytest.mark.python_only("spans")
def test_a_limit_of_the_day_holds_for_http_too(tmp_path: Path, server: BlobServer) -> None:
    device = Harness(tmp_path)
    device.permits, device.limits = lambda url: True, LimitsConfig(megabytes_per_day=0.01)
    device.agent = device.start()
    device.connect()
    order = placed(device, server)
    (span,) = only(device.tell(order), FetchSpan)
    data = device.served[order.bundle.transfer]
    for index in range(3):
        part = FetchedChunk(span.number, index, data[4096 * index : 4096 * (index + 1)])
        assert device.agent.fetched(part, device.now) == []
    device.now += 10  # when gates are looked at
    assert StopSpan(span.number) in device.agent.poll(device.now)


def test_a_bundle_with_another_hash_than_the_place_says_is_none_of_it(
    device: Harness, server: BlobServer
) -> None:
    other = make_bundle(7)
    order = placed(device, server)
    sha256 = hashlib.sha256(other).digest()
    device.give(device.order(1, theta_of(1), places=(Place(sha256, order.places[0].url),)))
    device.settle()
    assert server.asked == []
    assert np.isfinite(device.delta()).all()
