"""Many devices answer at once, and the broker keeps little for the coordinator: each byte goes up once."""

from collections import deque
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, a_hello, random_theta, update

from sedge_cloud.ingest.credit import Credit
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import packet_bytes
from sedge_protocol.wire.messages import Busy, Committed, Have, Offer
from sedge_protocol.wire.topics import down
from sedge_protocol.wire.transfer import SILENCE_S, Intake, describe, from_bitmap

DEVICES = 100
# Half of what Sedge's brokers keep for a client, and how much the coordinator reads in a tick.
QUEUE_MESSAGES, QUEUE_BYTES = 100, 1_000_000
TICK_S, READ = 0.02, 4


class Sender:
    """A device with an update to send: offers, chunks, patience."""

    def __init__(self, cloud: Cloud, name: str, seed: int) -> None:
        self.cloud, self.name = cloud, name
        self.blob = update(cloud.order(name), random_theta(seed))
        self.manifest = describe(self.blob)
        self.number, self.due, self.done = 0, 0.0, False

    def offer(self, now: float) -> bytes:
        self.number += 1
        self.due = now + SILENCE_S * 2**self.number
        message = Offer(RUN, 1, self.manifest, self.number)
        return self.cloud.devices[self.name].peer.seal(message, self.manifest.transfer)

    def hear(self, message: object, now: float) -> list[bytes]:
        if isinstance(message, Committed):
            self.done = True
        if isinstance(message, Busy):
            self.due = now + message.retry_ms / 1000
        if not isinstance(message, Have) or self.done:
            return []
        self.due = now + SILENCE_S
        held, manifest = from_bitmap(message.bitmap, self.manifest.count), self.manifest
        missing = [index for index in range(manifest.count) if index not in held]
        peer, spans = self.cloud.devices[self.name].peer, map(manifest.span, missing)
        chunks = zip(missing[: message.credit], spans, strict=False)
        return [
            peer.chunk(manifest.transfer, index, self.blob[offset : offset + length]).payload
            for index, (offset, length) in chunks
        ]


def test_each_byte_goes_up_once(tmp_path: Path) -> None:
    """Although all devices offer at one moment."""
    names = [f"pi-{number}" for number in range(DEVICES)]
    cloud = Cloud(tmp_path, msgspec.structs.replace(CONFIG, min_available_devices=DEVICES), names)
    for name in names:
        cloud.say(name, a_hello(name))
    cloud.poll()
    senders = {name: Sender(cloud, name, seed) for seed, name in enumerate(names)}
    topics = {down(FLEET, name): name for name in names}
    queue, waiting, sent, now = deque[tuple[str, bytes]](), 0, 0, 0.0

    def push(name: str, payload: bytes) -> None:
        nonlocal waiting, sent
        sent += packet_bytes("", payload)
        if len(queue) < QUEUE_MESSAGES and waiting < QUEUE_BYTES:
            queue.append((name, payload))
            waiting += len(payload)

    seen = len(cloud.effects)
    while not all(sender.done for sender in senders.values()):
        now += TICK_S
        assert now < 600
        for name, sender in senders.items():
            if not sender.done and now >= sender.due:
                push(name, sender.offer(now))
        for _ in range(min(READ, len(queue))):
            name, payload = queue.popleft()
            waiting -= len(payload)
            cloud.give(name, payload)
        cloud.poll(TICK_S)
        for effect in cloud.effects[seen:]:
            if isinstance(effect, Send) and effect.topic in topics:
                name = topics[effect.topic]
                for payload in senders[name].hear(cloud.devices[name].read(effect), now):
                    push(name, payload)
        seen = len(cloud.effects)
    assert sent < 1.05 * sum(len(sender.blob) for sender in senders.values())


@pytest.mark.parametrize("sends", [False, True])
def test_no_device_keeps_the_others_waiting(sends: bool) -> None:
    """One that has all the credit and only repeats its offer, or sends for ever; and one that is gone."""
    credit, large = Credit(), Intake(describe(bytes(2**20), 2**18), set())
    greedy, gone, patient = (("greedy", b""), ("gone", b""), ("patient", b""))
    assert credit.ask(greedy, large, 0.0) and credit.timer() is None
    assert not credit.ask(gone, large, 0.0) and credit.timer() == 5
    turns: list[tuple[int, str]] = []
    for now in range(1, 70):
        credit.ask(greedy, large, now)
        if patient[0] not in (device for _, device in turns):
            assert not credit.ask(patient, large, now)
        if sends:
            credit.hear(greedy, now)
        turns += [(now, device) for device, _ in credit.poll(now)]
    expected = [(60, "patient")] if sends else [(5, "gone"), (10, "patient")]
    assert turns[: len(expected)] == expected
