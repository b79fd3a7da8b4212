"""Brokers that misbehave: silent, dead, stuck, refusing, or not speaking MQTT at all.

A script plays the broker: it answers each CONNECT with bytes and does no more.
"""

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from paho.mqtt.enums import MQTTProtocolVersion
from tests.protocol.driven import Driven, drive
from tests.protocol.driven import quick as quick

from sedge_protocol.errors import LinkError
from sedge_protocol.host import mqtt
from sedge_protocol.host.mqtt import BrokerSettings, Connected, MqttLink, Received
from sedge_protocol.host.probe import NoAnswer, measure, number_of, numbered, probe
from sedge_protocol.wire import reconnect
from sedge_protocol.wire.reconnect import Ended

ACCEPTED = b"\x20\x03\x00\x00\x00"  # CONNACK of MQTT 5: no session, success, no properties
NOT_AUTHORISED = b"\x20\x03\x00\x87\x00"
ACCEPTED_OLD = b"\x20\x02\x00\x00"  # of MQTT 3.1.1
REFUSED_OLD = b"\x20\x02\x00\x01"  # and of a broker that does not speak it
REFUSED_TOPIC = b"\x90\x04\x00\x01\x00\x87"  # SUBACK of a failure
TOPIC = b"\x90\x04\x00\x01\x00\x00"  # and of a success
MESSAGE = b"\x30\x07\x00\x04down\x00"  # an empty one on "down"
LEVEL = 8  # where a CONNECT has its protocol level, when it is short
CLIENT_ID = slice(20, 57)  # and its client id: "pi-1-" and 32 hex digits


class FakeBroker:
    """Accepts connections, reads each CONNECT, and answers with its script's next bytes (or the last).

    It answers ``later`` to all that follows, or ``echoes`` so many of the bytes that follow a SUBSCRIBE,
    and then hangs up.
    """

    def __init__(
        self,
        *script: bytes,
        reads: bool = True,
        hangs_up: bool = False,
        later: bytes = b"",
        echoes: int = 0,
    ) -> None:
        self.script = script
        self.connects: list[bytes] = []
        self._later, self._echoes = later, echoes
        self._reads, self._hangs_up = reads, hangs_up
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def settings(self) -> BrokerSettings:
        return BrokerSettings(f"mqtt://127.0.0.1:{self._server.getsockname()[1]}", "pi-1")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join()
        for connection in self._open:
            connection.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self._open.append(connection)
            answer = self.script[min(len(self.connects), len(self.script) - 1)]
            with contextlib.suppress(OSError):
                self.connects.append(connection.recv(4096))
                connection.sendall(answer)
                if self._hangs_up:
                    connection.close()
                elif self._echoes:
                    _echo(connection, self._echoes)
                elif self._reads:
                    threading.Thread(
                        target=_read, args=(connection, self._later), daemon=True
                    ).start()


def _read(connection: socket.socket, answer: bytes) -> None:
    with contextlib.suppress(OSError):
        while connection.recv(65536):
            connection.sendall(answer)


def _echo(connection: socket.socket, most: int) -> None:
    size = connection.recv(2)[1]
    connection.recv(size)
    while most > 0 and (data := connection.recv(65536)):
        connection.sendall(data)
        most -= len(data)
    connection.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mqtt, "CONNECT_TIMEOUT_S", 0.2)
    monkeypatch.setattr(mqtt, "CLOSE_S", 0.1)


class Played(Driven):
    def __init__(self, broker: FakeBroker, *topics: str) -> None:
        super().__init__(MqttLink(broker.settings, topics))
        self.broker = broker


Play = Callable[..., Played]


@pytest.fixture
def play() -> Iterator[Play]:
    """Makes links to brokers of these scripts, and closes them in the end."""
    played: list[Played] = []

    def begin(*script: bytes, topics: str = "", **manners: Any) -> Played:
        played.append(Played(FakeBroker(*script, **manners), *topics.split()))
        return played[-1]

    yield begin
    for one in played:
        one.link.close()
        one.broker.close()


def test_a_port_that_accepts_and_stays_silent(play: Play) -> None:
    driven = play(b"")
    drive(lambda: len(driven.losses()) == 3, driven)
    assert all("accepted the connection but did not answer" in e.reason for e in driven.losses())


@pytest.mark.parametrize(
    ("script", "levels"),
    [
        ((b"",), [5, 4, 5, 4]),
        ((b"", ACCEPTED_OLD, ACCEPTED), [5, 4, 5, 5]),
        ((b"", REFUSED_OLD), [5, 4, 5, 4]),  # no third version is tried
    ],
)
def test_versions_take_turns_while_nobody_answers(
    play: Play, script: tuple[bytes, ...], levels: list[int]
) -> None:
    """One hang-up, of a proxy whose broker restarts, is not the broker's last word on MQTT 5."""
    driven = play(*script, hangs_up=True)
    drive(lambda: len(driven.broker.connects) >= 4, driven)
    assert [connect[LEVEL] for connect in driven.broker.connects[:4]] == levels


@pytest.mark.parametrize(
    "refusal",
    [b"\x20\x03\x00\x84\x00", REFUSED_OLD],
    ids=["as MQTT 5 says it", "as 3.1.1 says it"],
)
def test_a_refused_version_is_not_asked_for_again(play: Play, refusal: bytes) -> None:
    """Not even after a connection of the other version has come and gone."""
    driven = play(refusal, ACCEPTED_OLD, hangs_up=True)
    drive(lambda: len(driven.broker.connects) >= 4, driven)
    assert driven.connections()
    assert [connect[LEVEL] for connect in driven.broker.connects[:4]] == [5, 4, 4, 4]
    assert "nsupported protocol version" in driven.losses()[0].reason


@pytest.mark.parametrize(
    ("code", "words"),
    [(0x86, "Bad user name or password"), (0x87, "Not authorized"), (0x88, "Server unavailable")],
)
def test_a_refusal_says_why_and_to_whom(play: Play, code: int, words: str) -> None:
    driven = play(bytes([0x20, 3, 0, code, 0]))
    drive(lambda: len(driven.losses()) == 2, driven)
    for loss in driven.losses():
        assert loss.reason == f"{driven.broker.settings.url} refused 'pi-1': {words}"
    assert driven.link._version is MQTTProtocolVersion.MQTTv5


@pytest.mark.parametrize("early", [REFUSED_TOPIC, b""])
def test_a_refused_subscription_ends_the_connection(play: Play, early: bytes) -> None:
    """Half a device, which sends and never hears, would be worse than one that says what is wrong."""
    driven = play(ACCEPTED + early, later=REFUSED_TOPIC, topics="down")
    drive(lambda: bool(driven.losses()), driven)
    assert driven.losses()[0].reason.endswith("refused a subscription: Not authorized")
    with pytest.raises(LinkError, match="refused a subscription"):
        probe(driven.broker.settings, "down")


@pytest.mark.parametrize("question", [None, "down"])
def test_an_answer_that_does_not_come_in_time(play: Play, question: str | None) -> None:
    with pytest.raises(LinkError, match="did not answer within 0 s"):
        probe(play(b"").broker.settings, "down", question, 0.05)


def measured(play: Play, answer: bytes, seconds: float, **manners: Any) -> tuple[int, int]:
    """The largest packet that comes back, and how many connections it took."""
    broker, token = play(answer, **manners).broker, b"token"

    def make(number: int, packet: int) -> tuple[str, bytes]:
        return "down", numbered(token, number, "down", packet)

    size = measure(broker.settings, "down", make, lambda said: number_of(token, said), seconds)
    return size, len(broker.connects)


def test_a_size_that_ends_two_connections_is_too_large(play: Play) -> None:
    assert measured(play, ACCEPTED + TOPIC, 15.0, echoes=150_000) == (2**16, 3)


@pytest.mark.parametrize(
    ("hangs_up", "words"),
    [(False, "nothing came back on down within 0 s"), (True, "closed the connection")],
)
def test_a_size_that_is_not_known_in_time(play: Play, hangs_up: bool, words: str) -> None:
    with pytest.raises(NoAnswer, match=words):
        measured(play, ACCEPTED + TOPIC, 0.2, hangs_up=hangs_up)


@pytest.mark.parametrize(
    ("answer", "hangs_up", "ended", "failures"),
    [
        (b"", False, Ended.UNANSWERED, [1, 2, 3]),
        (b"", True, Ended.UNANSWERED, [1, 2, 3]),  # a proxy whose broker is not there
        (NOT_AUTHORISED, True, Ended.TURNED_AWAY, [1, 2, 3]),
        (ACCEPTED, True, Ended.TURNED_AWAY, [1, 2, 3]),
        (ACCEPTED + REFUSED_TOPIC, False, Ended.TURNED_AWAY, [1, 2, 3]),
        (ACCEPTED + MESSAGE, True, Ended.HEARD, [0, 0, 0]),
    ],
    ids=["silent", "hangs up", "refuses us", "throws us out", "refuses a topic", "was there"],
)
def test_how_a_connection_ends_decides_when_the_next_one_comes(
    answer: bytes,
    hangs_up: bool,
    ended: Ended,
    failures: list[int],
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Ended, int]] = []

    def longest_s(ended: Ended, failures: int, away_s: float, devices: int) -> float:
        asked.append((ended, failures))
        return 0.01

    monkeypatch.setattr(reconnect, "longest_s", longest_s)
    driven = play(answer, hangs_up=hangs_up, topics="down")
    drive(lambda: len(asked) >= 3, driven)
    assert asked[:3] == [(ended, count) for count in failures]


@pytest.mark.parametrize(("first", "hints"), [(b"", [True]), (ACCEPTED, [False])])
def test_a_link_that_has_worked_asks_for_no_tls(
    first: bytes, hints: list[bool], play: Play
) -> None:
    """The broker hangs up, at once or after a connection that it accepted; then it always does."""
    driven = play(first, b"", hangs_up=True)
    drive(lambda: len(driven.losses()) >= 4, driven)
    assert ["expect TLS" in loss.reason for loss in driven.losses() if loss.is_news] == hints


def test_a_peer_that_has_vanished_is_noticed(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reset, no end: only the missing answer to a ping tells (fault N3)."""
    monkeypatch.setattr(mqtt, "KEEPALIVE_S", 1)
    driven = play(ACCEPTED)
    drive(lambda: bool(driven.losses()), driven)
    assert driven.link.counters.connections == 1
    assert "Keep alive timeout" in driven.losses()[0].reason


def test_a_link_that_hears_nothing_begins_again_under_another_client_id(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker lets us in and takes what we say; whatever it says itself does not reach us."""
    monkeypatch.setattr(mqtt, "DEAF_S", 0.1)
    monkeypatch.setattr(mqtt, "DEAF_MAX_S", 0.2)
    driven = play(*[ACCEPTED] * 3, ACCEPTED + b"\x30\x06\x00\x02ok\x00x")
    for number in range(1, 4):
        drive(lambda: driven.link.up, driven)
        driven.step()
        assert len(driven.losses()) == number - 1  # one that says nothing expects no answer
        driven.link.send("topic", b"hello")
        drive(lambda n=number: len(driven.losses()) == n, driven)  # type: ignore[misc]
    assert all("heard nothing for" in loss.reason for loss in driven.losses())
    assert driven.link._patience_s == mqtt.DEAF_MAX_S
    ids = [connect[CLIENT_ID] for connect in driven.broker.connects]
    assert len(set(ids)) == 3 and all(name.startswith(b"pi-1-") for name in ids)
    drive(lambda: driven.link.up and bool(driven.received()), driven)
    driven.link.send("topic", b"hello")
    assert (driven.link._deaf_at, driven.link._patience_s) == (None, mqtt.DEAF_S)


def test_a_broker_that_stops_reading(play: Play) -> None:
    driven = play(ACCEPTED, reads=False)
    drive(lambda: driven.link.up, driven)
    assert driven.link.room == mqtt.WINDOW
    handed = 0
    while driven.link.room and handed < 1000:
        driven.link.send("topic", bytes(200_000))
        handed += 1
    assert driven.link.room == 0
    assert driven.link.wants_write()
    assert handed - mqtt.WINDOW < 100  # the rest is in the sockets
    driven.link.close()
    assert not driven.link.up


def test_a_topic_that_is_no_text_is_dropped(play: Play) -> None:
    driven = play(ACCEPTED + b"\x30\x06\x00\x02\xff\xfe\x00x" + b"\x30\x06\x00\x02ok\x00x")
    drive(lambda: bool(driven.received()), driven)
    assert driven.received() == [Received("ok", b"x")]
    assert not driven.losses()


def test_random_packets_end_the_connection_and_nothing_else(play: Play) -> None:
    rng = random.Random(1)
    packets: list[bytes] = []
    for number in range(120):
        body = bytes(rng.choice((0, 1, 2, rng.randrange(256))) for _ in range(rng.randrange(30)))
        head = bytes([rng.choice((0x20, 0x30, 0x32, 0x40, 0x90, 0xB0, 0xD0, 0xE0, 0xFF))])
        packets.append((ACCEPTED if number % 3 else b"") + head + bytes([len(body)]) + body)
    driven = play(*packets, hangs_up=True, topics="down")
    drive(lambda: len(driven.broker.connects) >= len(packets), driven)
    assert len(driven.losses()) >= len(packets) - 1


def test_a_small_packet_limit_is_kept(play: Play) -> None:
    driven = play(b"\x20\x08\x00\x00\x05\x27" + (1000).to_bytes(4, "big"))
    drive(lambda: driven.link.up, driven)
    assert driven.events == [Connected(1000)]
    driven.link.send("topic", bytes(1000))
    driven.link.send("topic", bytes(900))
    assert (driven.link.counters.oversize, driven.link.counters.frames_sent) == (1, 1)


def test_a_connection_that_breaks_in_a_send_is_reported_at_once(play: Play) -> None:
    driven = play(ACCEPTED)
    drive(lambda: driven.link.up, driven)
    driven.cut()
    driven.link.send("topic", b"x")
    driven.link.send("topic", b"x")
    assert not driven.link.up
    assert driven.link.timer() == 0.0  # the core must learn of it now, not at the next retry
    driven.step()
    assert len(driven.losses()) == 1
