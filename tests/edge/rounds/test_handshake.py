"""The hello: said until it is answered, and told when nobody does."""

import logging

import numpy as np
import pytest
from tests.edge.harness import DEVICE, DOWN, FLEET, KEYS, UP, Harness

from sedge_edge.rounds.handshake import (
    HINT_EVERY_S,
    HINTS,
    WARN_AFTER_HELLOS,
    Handshake,
)
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Goodbye, Hello, Message, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.reconnect import HELLOS_A_SECOND
from sedge_protocol.wire.topics import hint, shard_of
from sedge_protocol.wire.transfer import RETRY_MAX_S, SILENCE_S


class Bench:
    """A handshake, and the coordinator's end of its frames."""

    def __init__(self) -> None:
        self.cloud = Peer(DOWN, KEYS.down, KEYS.up, 7, 0)
        peer = Peer(UP, KEYS.up, KEYS.down, 1, 0)
        hello = Hello(bytes(16), "test", ("onnxruntime",), ("zstd",), num_train=1, num_test=1)
        self.handshake = Handshake(hello, peer, np.random.default_rng(0))

    def read(self, payload: bytes) -> Message:
        opened = self.cloud.open(payload, UP)
        assert opened is not None and opened[1] is not None
        return opened[1]

    def said(self, effects: list[Effect]) -> list[Hello]:
        found = [self.read(e.payload) for e in effects if isinstance(e, Send)]
        hellos = [message for message in found if isinstance(message, Hello)]
        assert len(hellos) == len(found)
        return hellos


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_session_has_one_nonce(bench: Bench) -> None:
    handshake = bench.handshake
    nonces: list[bytes] = []
    for _ in range(2):
        will = bench.read(handshake.will()[1])
        handshake.begin(0.0)
        (hello,) = bench.said(handshake.poll(0.0))
        goodbye = bench.read(handshake.goodbye().payload)
        assert isinstance(will, Goodbye) and will == goodbye
        assert hello.nonce == will.nonce
        nonces.append(hello.nonce)
    assert nonces[0] != nonces[1]


def test_it_is_said_until_it_is_welcomed(bench: Bench) -> None:
    handshake = bench.handshake
    assert handshake.timer() is None and handshake.poll(0.0) == []
    handshake.will()
    handshake.begin(0.0)
    now, hellos = 0.0, list[Hello]()
    for _ in range(4):
        assert handshake.timer() == now and not handshake.welcomed
        hellos += bench.said(handshake.poll(now))
        due = handshake.timer()
        assert due is not None and SILENCE_S < due - now <= SILENCE_S + RETRY_MAX_S
        assert handshake.poll(due - 0.1) == []
        now = due
    assert len(hellos) == 4 and len({hello.nonce for hello in hellos}) == 1
    (note,) = handshake.welcome(Welcome(hellos[0].nonce, "1", VERSIONS), now)
    assert isinstance(note, Note) and note.level == logging.INFO
    assert handshake.welcomed and handshake.ever_welcomed and handshake.timer() is None
    assert handshake.welcome(Welcome(hellos[0].nonce, "1", VERSIONS), now) == []  # said twice
    # A coordinator that has just started calls everyone; so it is said again.
    assert handshake.welcome(Welcome(bytes(16), "1", VERSIONS), now + 5) == []
    assert not handshake.welcomed and len(bench.said(handshake.poll(now + 5))) == 1


def test_a_device_that_was_welcomed_doubts_its_account_no_more(bench: Bench) -> None:
    handshake, now = bench.handshake, 0.0
    for doubts in (True, False):
        handshake.will()
        handshake.begin(now)
        warnings: list[str] = []
        hello = None
        while not warnings:
            effects = handshake.poll(now)
            warnings = [e.text for e in effects if isinstance(e, Note)]
            (hello,) = bench.said([e for e in effects if isinstance(e, Send)])
            now = handshake.timer() or now
        (warning,) = warnings
        assert warning.startswith("no coordinator answers on") and warning.endswith("?")
        assert ("does the broker know this connection" in warning) is doubts
        assert hello is not None
        handshake.welcome(Welcome(hello.nonce, "1", VERSIONS), now)


def test_another_of_our_name_is_told_once_and_not_answered(bench: Bench) -> None:
    """Two that answered each other's welcomes with hellos would do so at the speed of the link."""
    handshake, foreign = bench.handshake, Welcome(b"f" * 16, "1", VERSIONS)
    for _ in range(2):
        handshake.will()
        handshake.begin(0.0)
        (hello,) = bench.said(handshake.poll(0.0))
        assert handshake.welcome(foreign, 0.0) == []  # perhaps to the last connection's hello
        handshake.welcome(Welcome(hello.nonce, "1", VERSIONS), 0.0)
        (note,) = handshake.welcome(foreign, 1.0)
        assert isinstance(note, Note) and note.level == logging.WARNING
        assert "another process under this device's name" in note.text
        assert handshake.welcome(foreign, 2.0) == []
        assert handshake.welcomed


@pytest.mark.both_cores
def test_hints_are_answered_soon_and_not_often(device: Harness) -> None:
    """Whoever may publish on a shard's topic can ask: no call is lost, and nobody is made to chatter."""
    begun, said, step = device.now, list[float](), 2.0
    while device.now < begun + 1000.0:
        effects = device.agent.receive(hint(FLEET, shard_of(DEVICE)), b"", device.now)
        for message in device.messages([*effects, *device.agent.poll(device.now)]):
            assert isinstance(message, Hello)
            device.tell(Welcome(message.nonce, "1", VERSIONS, devices=400))
            said.append(device.now - begun)
        device.now += step
    assert max(said[:HINTS]) < HINTS * (400 / HELLOS_A_SECOND + step)
    waits = [later - first for first, later in zip(said[:-HINTS], said[HINTS:], strict=True)]
    assert min(waits) >= HINTS * HINT_EVERY_S
    assert len(said) >= 1000 // HINT_EVERY_S


def test_a_coordinator_that_does_not_hear_us_is_told_once(bench: Bench) -> None:
    handshake = bench.handshake
    handshake.will()
    handshake.begin(0.0)
    told: list[int] = []
    for number in range(1, 3 * WARN_AFTER_HELLOS):
        now = handshake.timer()
        assert now is not None
        notes = [e for e in handshake.poll(now) if isinstance(e, Note)]
        told += [number] * len(notes)
        assert all(UP in note.text and note.level == logging.WARNING for note in notes)
    assert told == [WARN_AFTER_HELLOS]
    handshake.begin(1000.0)  # another connection
    effects = [
        e for _ in range(WARN_AFTER_HELLOS) for e in handshake.poll(handshake.timer() or 0.0)
    ]
    assert isinstance(effects[-1], Note)
