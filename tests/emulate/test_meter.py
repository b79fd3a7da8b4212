"""What a virtual device's link is charged: every frame, once, under the right head."""

import pytest

from sedge_emulate.meter import CONNACK, SUBACK, UNIT_BYTES, Meter, packet_bytes
from sedge_protocol.wire.frame import HEADER, Frame, Kind, seal
from sedge_protocol.wire.messages import Hello, Message, Offer, Order, encode_body
from sedge_protocol.wire.transfer import describe

TOPIC = "sedge/1/f/device/d/up"
KEY = bytes(32)


def chunk(transfer: bytes, index: int, size: int = 5000) -> bytes:
    return seal(Frame(Kind.CHUNK, bytes(size), 1, 0, transfer, index), TOPIC, KEY)


def control(kind: Kind, message: Message) -> bytes:
    return seal(Frame(kind, encode_body(message), 1, 1), TOPIC, KEY)


def order(patch: bytes) -> Order:
    manifest = describe(bytes(100))
    return Order(
        run="r", round=1, task="train", bundle=manifest, model=manifest, model_hash=bytes(32),
        patch=patch, patch_hash=bytes(32),
    )  # fmt: skip


def test_a_chunk_is_payload_once_and_resent_after_that() -> None:
    meter = Meter()
    frame = chunk(bytes(16), 3)
    packet = 1 + 2 + 2 + len(TOPIC) + 1 + len(frame)  # header, length, topic, properties, frame
    meter.sent(TOPIC, frame)
    assert (meter.up.payload, meter.up.resent) == (5000, 0)
    assert meter.up.total == packet
    meter.sent(TOPIC, frame)
    meter.sent(TOPIC, chunk(bytes(16), 4))
    assert (meter.up.payload, meter.up.resent) == (10_000, 5000)
    assert (meter.up.total, meter.down.total) == (3 * packet, 0)


def test_messages_are_billed_by_their_begun_units() -> None:
    meter = Meter()
    around = packet_bytes(TOPIC, chunk(bytes(16), 0)) - 5000
    for index, size in enumerate((10, UNIT_BYTES - around, UNIT_BYTES - around + 1, 5000)):
        meter.sent(TOPIC, chunk(bytes(16), index, size))
    assert (meter.up.messages, meter.up.units) == (4, 5)
    meter.received(TOPIC, chunk(bytes([1]) * 16, 0, 20_000))
    assert (meter.down.messages, meter.down.units, meter.down.payload) == (1, 4, 20_000)
    assert (meter.up.messages, meter.up.units) == (4, 5)


@pytest.mark.parametrize("again", [False, True])
def test_what_an_offer_carries_is_payload(again: bool) -> None:
    data = bytes(700)
    offer = Offer("r", 1, describe(data), 1, data)
    meter = Meter()
    for _ in range(1 + again):
        meter.sent(TOPIC, control(Kind.OFFER, offer))
    assert (meter.up.payload, meter.up.resent) == (700, 700 * again)


def test_an_empty_offer_and_its_chunks_are_one_payload() -> None:
    data = bytes(range(256)) * 400
    manifest = describe(data)
    meter = Meter()
    meter.sent(TOPIC, control(Kind.OFFER, Offer("r", 1, manifest, 1)))
    for index in range(manifest.count):
        meter.sent(TOPIC, chunk(manifest.transfer, index, manifest.span(index)[1]))
    assert (meter.up.payload, meter.up.resent) == (len(data), 0)


def test_a_patch_inside_an_order_is_payload() -> None:
    meter = Meter()
    meter.received(TOPIC, control(Kind.ORDER, order(bytes(300))))
    meter.received(TOPIC, control(Kind.ORDER, order(bytes(300))))
    meter.received(TOPIC, control(Kind.ORDER, order(b"")))
    assert (meter.down.payload, meter.down.resent) == (300, 300)


def test_overhead_is_everything_else() -> None:
    meter = Meter()
    body = encode_body(Hello(bytes(16), "1"))
    meter.sent(TOPIC, control(Kind.HELLO, Hello(bytes(16), "1")))
    packet = 1 + 1 + 2 + len(TOPIC) + 1 + HEADER.size + len(body)
    assert meter.up.overhead == meter.up.total == packet


def test_subscriptions_and_connections_are_overhead() -> None:
    meter = Meter()
    meter.subscribed("abc")
    assert (meter.up.total, meter.down.total) == (2 + 2 + 1 + 2 + 3 + 1, SUBACK)
    meter.unsubscribed("abc")
    assert (meter.up.total, meter.down.total) == (11 + 10, 2 * SUBACK)
    meter.connected("device-1", TOPIC, bytes(90))
    assert meter.down.total == 2 * SUBACK + CONNACK
    assert (meter.up.payload, meter.down.payload) == (0, 0)


def test_old_transfers_are_forgotten() -> None:
    meter = Meter()
    for number in range(100):
        meter.sent(TOPIC, chunk(number.to_bytes(16, "big"), 0))
    meter.sent(TOPIC, chunk((99).to_bytes(16, "big"), 0))
    meter.sent(TOPIC, chunk((0).to_bytes(16, "big"), 0))
    assert (meter.up.resent, meter.up.payload) == (5000, 101 * 5000)
