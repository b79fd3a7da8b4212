"""What one device may say: honest ones never notice, a flood changes nothing for the others."""

import logging

import msgspec
import pytest
from tests.cloud.helper import FLEET, RUN, Cloud, Device, a_hello
from tests.fleet import failing

from sedge_cloud.ingest.rate_limit import BURST, COST, LINES, LINES_S, UNIT_BYTES, TokenBucket, cost
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import ASKING, HEADER, MAX_BODY_BYTES, VERSIONS, Frame, Kind
from sedge_protocol.wire.message_limit import PACKET_SIZES, SMALL
from sedge_protocol.wire.messages import DOCTOR, Get, Hello, Message, Offer, Reject, Welcome
from sedge_protocol.wire.transfer import describe, to_bitmap

BLOB = b"an update"
MANIFEST = describe(BLOB)


def test_what_a_message_costs() -> None:
    header = HEADER.size
    chunk = bytes([0, 0, 0, Kind.CHUNK])
    assert [cost(b""), cost(b"SG"), cost(bytes(9))] == [1, 1, 1]
    assert cost(chunk.ljust(header + UNIT_BYTES)) == 1
    assert cost(chunk.ljust(header + UNIT_BYTES + 1)) == 2
    kinds = (Kind.HELLO, Kind.JOIN, Kind.OFFER, Kind.GET, Kind.CHUNK)
    assert [cost(bytes([0, 0, 0, kind])) for kind in kinds] == [100, 10, 5, 5, 1]


def test_doctors_in_a_row_are_no_flood(cloud: Cloud) -> None:
    """Three at once, next to an agent: each asks once, and with two HELLOs for each size that it tries."""
    cloud.hello("a")
    doctor = Device("a", ASKING)
    for number in range(3):
        hello = Hello(DOCTOR + bytes([number] * 8), "0.1.0", versions=VERSIONS)
        for padding in (0, *PACKET_SIZES, *([SMALL] * len(PACKET_SIZES))):
            size = min(padding, MAX_BODY_BYTES - 200)
            padded = msgspec.structs.replace(hello, padding=bytes(size))
            (answer,) = cloud.give("a", doctor.peer.seal(padded))
            assert isinstance(answer, Welcome)
    assert cloud.core.counters["flood"] == 0


def test_an_upload_of_two_hundred_chunks_a_second_is_never_cut() -> None:
    bucket, chunk = TokenBucket(), bytes([0, 0, 0, Kind.CHUNK]).ljust(HEADER.size + 2**16)
    assert all(bucket.spend(number / 200, cost(chunk)) for number in range(4000))


def flood(cloud: Cloud, payload: bytes) -> int:
    """Many of one frame from device a; how many of them were looked at."""
    before = cloud.core.counters["flood"]
    sent = int(BURST) + 500
    for _ in range(sent):
        cloud.give("a", payload)
    return sent - (cloud.core.counters["flood"] - before)


def test_a_flood_of_offers_is_cut_and_said_once(cloud: Cloud) -> None:
    cloud.hello("a", "b")
    offer = Offer(RUN, 9, MANIFEST, 1, BLOB)  # of a round that is not there: rejected each time
    count = int(BURST / COST[Kind.OFFER]) + 100
    answers = [cloud.say("a", offer, MANIFEST.transfer) for _ in range(count)]
    heard = [answer for answer in answers if answer]
    assert len(heard) == (BURST - COST[Kind.HELLO]) // COST[Kind.OFFER]
    assert all(isinstance(message, Reject) for answer in heard for message in answer)
    assert not any(answers[-100:])
    cloud.poll()
    assert sum("messages per second" in text for text in cloud.notes(logging.WARNING)) == 1
    # The others are heard meanwhile, and it is again when it has calmed down.
    assert isinstance(cloud.say("b", a_hello("again"))[0], Welcome)
    cloud.poll(1.0)
    assert cloud.say("a", offer, MANIFEST.transfer)


@pytest.mark.parametrize("kind", ["garbage", "hello"])
def test_what_is_above_the_allowance_is_not_even_parsed(
    cloud: Cloud, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.hello("a", "b")
    hello = cloud.devices["a"].peer.seal(a_hello("again"))
    payload = {"garbage": b"?", "hello": hello}[kind]
    opened: list[str] = []
    peer = cloud.core.devices["a"].peer
    real = peer.open

    def watched(payload: bytes, topic: str, latest: int) -> tuple[Frame, Message | None] | None:
        opened.append(kind)
        return real(payload, topic, latest)

    monkeypatch.setattr(peer, "open", watched)
    assert flood(cloud, payload) == len(opened) <= BURST
    assert not cloud.say("a", a_hello("more"))
    assert isinstance(cloud.say("b", a_hello("again"))[0], Welcome)


def test_a_get_pays_for_the_chunks_that_it_queues(cloud: Cloud) -> None:
    cloud.hello("a", "b")
    cloud.answer("b")  # so that nobody else is waited for
    order, heard = cloud.order("a"), 0
    everything = Get(RUN, order.round, to_bitmap(range(order.model.count), order.model.count))
    for _ in range(int(BURST)):
        flooded = cloud.core.counters["flood"]
        cloud.say("a", everything, order.model.transfer)
        heard += cloud.core.counters["flood"] == flooded
        cloud.poll(0.0)
    assert heard == (BURST - COST[Kind.HELLO]) // (COST[Kind.GET] + order.model.count)


def test_an_offer_for_no_run_reads_no_runs(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.hello("a")
    monkeypatch.setattr(cloud.store, "runs", lambda: pytest.fail("read every run's state"))
    (answer,) = cloud.say("a", Offer("nothing", 1, MANIFEST, 1, BLOB), MANIFEST.transfer)
    assert isinstance(answer, Reject) and answer.reason == "unknown-run"


def test_the_log_takes_so_many_lines_of_a_sender(cloud: Cloud) -> None:
    cloud.hello("a", "b")
    said = len(cloud.events(Note))
    heard = flood(cloud, b"not a frame")
    for _ in range(100):
        cloud.arrive(f"sedge/1/{FLEET}/device/nobody/up", b"")
    cloud.poll()
    assert len(cloud.events(Note)) - said <= 2 * LINES + 1  # and that it says too much
    assert cloud.core.counters["foreign"] == 100
    timer = cloud.core.timer()
    assert timer is not None and timer <= cloud.now + LINES_S
    before = len(cloud.notes(logging.WARNING))
    cloud.poll(LINES_S)
    left_out = heard - LINES + 1  # one line was that it is online
    assert cloud.notes(logging.WARNING)[before:] == [
        f"device a: {left_out} more lines like these in 60 s were left out",
        f"unknown senders: {100 - LINES} more lines like these in 60 s were left out",
    ]
    cloud.poll(LINES_S)
    assert len(cloud.notes(logging.WARNING)) == before + 2
    cloud.give("a", b"not a frame")
    assert len(cloud.notes(logging.WARNING)) == before + 3


def test_a_frame_whose_sender_cannot_be_looked_up_is_repeated(cloud: Cloud) -> None:
    """It is not a stranger's, and the coordinator goes on."""
    with failing(cloud.store, "devices_named", StorageError("the server is away")):
        assert cloud.say("a", a_hello("lost")) == []
        cloud.poll()
        assert cloud.notes(logging.ERROR) == ["the server is away"]
    assert not cloud.core.counters["foreign"]
    assert isinstance(cloud.say("a", a_hello("again"))[0], Welcome)
