"""The service: what it makes of the link's events, what it hands over, when it wants to run."""

import logging
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cloud.helper import FLEET, RUN, Cloud, a_hello, small_update
from tests.cloud.stores import on_both
from tests.fleet import FakeLink, failing

from sedge_cloud.admin.runs import stop_run
from sedge_cloud.events import Event, RoundClosed, RoundOpened, RunEnded, UpdateReceived
from sedge_cloud.ingest.rate_limit import BURST, COST
from sedge_cloud.service import RELOAD_S, Service
from sedge_cloud.store.records import Summary
from sedge_protocol.errors import StorageError
from sedge_protocol.host.mqtt import BrokerSettings, Connected, Disconnected, LinkEvent, Received
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import NO_TRANSFER, Kind
from sedge_protocol.wire.messages import Cancel, Get, Message, Offer, Order, Welcome
from sedge_protocol.wire.topics import ITSELF, all_up, down, hint, shard_of, up
from sedge_protocol.wire.transfer import describe, to_bitmap


class Loop(FakeLink):
    """A link on which what the coordinator says to itself comes back."""

    limit = 400_000

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.to_itself: list[bytes] = []

    def reaches(self, payload: bytes) -> bool:
        """Whether the broker lets a message of this size through, which it does not announce."""
        return len(payload) <= self.limit

    def send(self, topic: str, payload: bytes) -> None:
        if topic == up(FLEET, ITSELF):
            self.to_itself.append(payload)
            self.events += [Received(topic, payload)] if self.reaches(payload) else []
        else:
            super().send(topic, payload)


class Bench:
    """A service on a fake link."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sedge_cloud.service.MqttLink", Loop)
        self.cloud = Cloud(folder)
        self.events: list[Event] = []
        settings = BrokerSettings("mqtt://broker.example", "coordinator-bench")
        self.service = Service(self.cloud.core, settings, self.events.append)
        link: object = self.service.link
        assert isinstance(link, Loop)
        self.link: Loop = link
        self.service.ready()
        self.happen(Connected(400_000))

    def happen(self, *events: LinkEvent) -> None:
        self.link.events += [
            event
            for event in events
            if not isinstance(event, Received) or self.link.admit(event.topic, event.payload)
        ]
        self.service.step()
        while self.link.events:
            self.service.step()

    def hear(self, name: str, message: Message, transfer: bytes = NO_TRANSFER) -> None:
        payload = self.cloud.devices[name].peer.seal(message, transfer)
        self.happen(Received(up(FLEET, name), payload))

    def told(self, name: str) -> list[Message]:
        device = self.cloud.devices[name]
        sends = [send for send in self.link.sent if send.topic == down(FLEET, name)]
        return [device.read(send) for send in sends]

    def asked(self, name: str) -> bool:
        topic = hint(FLEET, shard_of(name))
        return any(send.topic == topic for send in self.link.sent)

    def offer(self, name: str) -> None:
        order = [message for message in self.told(name) if isinstance(message, Order)][-1]
        data = small_update(order)
        manifest = describe(data)
        self.hear(name, Offer(RUN, order.round, manifest, 1, data), manifest.transfer)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A service with devices a and b enrolled and a run waiting for them."""
    return Bench(tmp_path, monkeypatch)


@on_both
def test_a_run_over_the_link(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "sedge.cloud")
    assert bench.link.subscriptions == (all_up(FLEET), topics.first_version_up(FLEET))
    assert bench.asked("a")  # "who is there?"
    for name in "ab":
        bench.hear(name, a_hello(name))
    for _ in range(3):
        for name in "ab":
            bench.offer(name)
    kinds = [type(event) for event in bench.events]
    one_round = [RoundOpened, UpdateReceived, UpdateReceived, RoundClosed]
    assert kinds == 3 * one_round + [RunEnded]
    for text in (
        "device a is online",
        "run run, round 1: train on 2 devices",
        "run run, round 1: closed with 2 of 2 updates, accuracy 0.2500 before, 0.7500 after",
        "run run, round 3: evaluate on 2 devices",
        "run run: finished",
    ):
        assert text in caplog.messages
    assert any(line.startswith("update of a, ") for line in caplog.messages)


def test_it_answers_whoever_asks_and_names_a_second_coordinator(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    itself, answer = up(FLEET, ITSELF), down(FLEET, ITSELF)
    token = bench.link.to_itself[0]  # said on every connection: a deaf one does not bring it back
    for payload in (token, b"a doctor"):
        bench.happen(Received(itself, payload))
        assert bench.link.sent[-1] == Send(answer, payload)
    said = len(bench.link.sent)
    bench.happen(Received(itself, bytes(200_000)))
    assert len(bench.link.sent) == said, "a doctor that measures hears it itself"
    assert not caplog.messages
    bench.happen(Received(itself, bytes(len(token))))
    (line,) = caplog.messages
    assert line == "a second coordinator of this fleet has connected: stop one of the two"


def test_a_device_unlike_others_is_named(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sedge.cloud")
    summary = Summary("r", 3, "train", 2, 0, (), 0, 0, 0, 0, {}, distrusted={"b": 0.125})
    bench.service._report(RoundClosed(summary))
    assert ("sedge.cloud", logging.WARNING) in [entry[:2] for entry in caplog.record_tuples]
    assert caplog.messages[-1].startswith("run r, round 3: the update of b is unlike the others")
    assert caplog.messages[-1].endswith("weighted by 0.125")
    closed = "run r, round 3: closed with 0 of 2 updates, accuracy 0.0000 before, 0.0000 after"
    assert caplog.messages[-2] == closed


def test_a_full_link_is_waited_for_and_not_asked_again_and_again(bench: Bench) -> None:
    for name in "ab":
        bench.hear(name, a_hello(name))
    manifest = describe(bench.cloud.store.blobs.read(bench.cloud.state().model))
    bench.link.room = 0
    bench.hear("a", Get(RUN, 1, b"\1"), manifest.transfer)
    bench.hear("b", Get(RUN, 1, b"\1"), manifest.transfer)
    now = time.monotonic()
    due = bench.cloud.core.timer()
    assert due is not None and due <= now  # chunks are due, and there is no room for them
    assert bench.service.timer() > now
    bench.link.room = 1
    assert bench.service.timer() == due


def test_no_strangers_or_floods_are_queued(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.ingest.rate_limit.RATE", 0.0)
    bench.hear("a", a_hello("a"))
    floods = {up(FLEET, "stranger"): 0, up(FLEET, "a"): int(BURST) - COST[Kind.HELLO]}
    for topic, allowed in floods.items():
        assert sum(bench.link.admit(topic, bytes(64)) for _ in range(int(BURST))) == allowed
    bench.hear("b", a_hello("b"))
    assert [type(message) for message in bench.told("b")[-2:]] == [Welcome, Order]
    assert bench.cloud.core.counters["foreign"] == BURST
    assert bench.cloud.core.counters["flood"] == COST[Kind.HELLO]


def test_devices_are_heard_once_it_is_known_how_large_messages_may_be(bench: Bench) -> None:
    """One step may bring a cut, a new connection and what came over it."""
    hello = bench.cloud.devices["a"].peer.seal(a_hello("a"))
    bench.link.sent.clear()
    bench.happen(Disconnected("cut", 0.1), Connected(400_000), Received(up(FLEET, "a"), hello))
    assert not bench.cloud.core.devices["a"].online
    assert bench.asked("a"), "it is asked for another"
    bench.hear("a", a_hello("a"))
    assert bench.cloud.core.devices["a"].online


def test_a_broker_with_another_limit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It announces none. What devices fetch is cut anew, and they hear what they may send."""
    for name in "ab":
        bench.hear(name, a_hello(name))
    (before,) = (m for m in bench.told("a") if isinstance(m, Order))
    bench.link.limit = 65_536
    bench.link.sent.clear()
    bench.happen(Disconnected("cut", 0.1), Connected(400_000))
    assert "the broker forwards messages of up to 65536 bytes" in caplog.messages
    bench.hear("a", a_hello("a"))
    *welcomes, order = bench.told("a")
    assert isinstance(order, Order) and order.model.sha256 == before.model.sha256
    assert (before.model.chunk_bytes, order.model.chunk_bytes) == (65_536, 32_768)
    assert {m.max_packet for m in welcomes if isinstance(m, Welcome)} == {65_536}
    bench.link.sent.clear()
    get = Get(RUN, 1, to_bitmap([0], order.model.count))
    bench.hear("a", get, order.model.transfer)
    bench.hear("b", a_hello("b"))
    bench.hear("b", get, order.model.transfer)
    topic = topics.blob(FLEET, order.model.transfer)
    assert [send.topic for send in bench.link.sent if len(send.payload) > 1000] == [topic]


def test_a_broken_disk_does_not_end_it(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    with failing(bench.cloud.store, "save_hello", StorageError("disk on fire")):
        bench.hear("a", a_hello("a"))
    assert "disk on fire" in caplog.messages


@on_both
def test_what_changes_beside_it_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        bench.hear(name, a_hello(name))
    stop_run(bench.cloud.second_store(), RUN)
    later = time.monotonic() + RELOAD_S
    monkeypatch.setattr("sedge_cloud.service.time.monotonic", lambda: later)
    bench.service.step()
    assert bench.events[-1] == RunEnded(RUN, "stopped")
    assert bench.told("a")[-1] == Cancel(RUN, 0, "the run was stopped")


def test_what_the_service_manager_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"\0sedge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + path[1:])
        bench = Bench(tmp_path, monkeypatch)
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"STATUS=0 of 2 devices online"
        bench.service.close()
        assert manager.recv(100) == b"STOPPING=1" and bench.link.closed
