"""Two ends of a control channel."""

import pytest

from sedge_protocol.errors import FrameError, VersionError
from sedge_protocol.wire import messages, topics
from sedge_protocol.wire.frame import Frame, Kind, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import encode_body
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import describe

KEYS = DeviceKeys.of(bytes(range(32)))
UP, DOWN = topics.up("home", "pi-1"), topics.down("home", "pi-1")
NONCE = bytes(range(16))
BLOB = describe(b"blob")


def device(incarnation: int = 1, peer_incarnation: int = 0) -> Peer:
    return Peer(UP, KEYS.up, KEYS.down, incarnation, peer_incarnation)


def coordinator(incarnation: int = 1, peer_incarnation: int = 0) -> Peer:
    return Peer(DOWN, KEYS.down, KEYS.up, incarnation, peer_incarnation)


def test_nothing_can_be_played_back_to_its_sender() -> None:
    sender = device()
    payload = sender.message(messages.Goodbye(NONCE)).payload
    for topic in (UP, DOWN):
        with pytest.raises(FrameError, match="MAC"):
            sender.open(payload, topic)


def test_a_goodbye_may_come_late() -> None:
    """It is sealed when the connection begins; by its end the window may be far ahead."""
    sender, receiver = device(), coordinator()
    will = sender.seal(messages.Goodbye(NONCE))
    for _ in range(200):
        assert receiver.open(sender.message(messages.Hello(NONCE, "1")).payload, UP) is not None
    opened = receiver.open(will, UP)
    assert opened is not None
    assert opened[1] == messages.Goodbye(NONCE)


def test_a_frame_that_is_refused_changes_nothing() -> None:
    sender, receiver = device(), coordinator()
    payload = bytearray(sender.message(messages.Hello(NONCE, "1")).payload)
    payload[-1] ^= 1
    with pytest.raises(FrameError):
        receiver.open(bytes(payload), UP)
    payload[2] = 2
    with pytest.raises(VersionError):
        receiver.open(bytes(payload), UP)
    payload[2] = 1
    payload[-1] ^= 1
    assert not receiver.counters
    assert receiver.open(bytes(payload), UP) is not None


def test_an_offer_must_carry_its_own_transfer_id() -> None:
    offer = encode_body(messages.Offer("r", 1, BLOB, 1))
    for transfer in (bytes(16), describe(b"another").transfer):
        frame = Frame(Kind.OFFER, offer, 1, 1, transfer)
        with pytest.raises(FrameError, match="another blob's manifest"):
            coordinator().open(seal(frame, UP, KEYS.up), UP)


def test_a_start_count_ahead_of_the_clock_is_refused() -> None:
    receiver, forger, sender = (
        coordinator(),
        device(incarnation=2**32 - 1),
        device(incarnation=1_800_000_000),
    )
    goodbye = messages.Goodbye(NONCE)
    with pytest.raises(
        FrameError, match=r"frame.incarnation: a start at 2106-02-07 06:28:15 UTC by its clock"
    ):
        receiver.open(forger.seal(messages.Hello(NONCE, "1")), UP, 1_900_000_000)
    for message in (messages.Hello(NONCE, "1"), goodbye):
        assert receiver.open(sender.seal(message), UP, 1_800_000_000) is not None


def test_an_older_start_is_a_replay_unless_it_is_of_the_awaited_welcome() -> None:
    """Then the count that we stored was forged, or the coordinator has lost its own."""
    receiver, older = device(peer_incarnation=9), coordinator(incarnation=5)
    awaited, other = messages.Welcome(NONCE, "1"), messages.Welcome(bytes(16), "1")

    def opened(sender: Peer, message: messages.Message) -> bool:
        return receiver.open(sender.seal(message), DOWN) is not None

    assert not opened(older, awaited)
    receiver.awaited = NONCE
    assert not opened(older, other) and not opened(older, messages.Cancel("r", 1, ""))
    assert receiver.counters["replayed"] == 3
    again = older.seal(awaited)
    assert receiver.open(again, DOWN) is not None and receiver.open(again, DOWN) is None
    assert receiver.window.incarnation == 5 and opened(older, other)
    assert receiver.counters["replayed"] == 4


def test_a_hello_that_a_newer_one_has_overtaken_is_out_of_date() -> None:
    sender, receiver = device(), coordinator()
    first, second = (sender.seal(messages.Hello(NONCE, "1")) for _ in range(2))
    assert receiver.open(second, UP) is not None
    assert receiver.open(first, UP) is None
    assert receiver.counters["replayed"] == 1


def test_the_highest_common_version_is_spoken() -> None:
    sender = Peer(UP, KEYS.up, KEYS.down, 1, 0, (1, 2, 3))
    for theirs, version in (((1,), 1), ((1, 2), 2), ((3, 9), 3)):
        sender.agree(theirs)
        assert sender.seal(messages.Cancel("r", 1, ""))[2] == version
    with pytest.raises(VersionError, match="protocol versions 4, 5, this side speaks 1, 2, 3"):
        sender.agree((4, 5))


def test_chunks_take_no_sequence_number() -> None:
    sender = device()
    sent = sender.chunk(BLOB.transfer, 7, b"data")
    opened = Frame(Kind.CHUNK, b"data", 1, 0, BLOB.transfer, 7), None
    receiver = coordinator()
    assert (sent.topic, sender.sent) == (UP, 0)
    assert receiver.open(sent.payload, UP) == receiver.open(sent.payload, UP) == opened
    assert receiver.counters == {"chunk": 2}
