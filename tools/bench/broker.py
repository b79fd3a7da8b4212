"""The throughput of a link over a real broker, compared with paho-mqtt alone.

A Mosquitto on the loopback interface, one process that sends and one that receives, like a device and the
coordinator. The same chunks are sent in three ways, in turn within each round:

    paho     paho-mqtt alone with its network threads, and as many messages in flight as a link has
    link     ``MqttLink`` and the event loop on both ends, frames sealed beforehand and not opened
    frames   the same, but the sender seals every chunk (HMAC-SHA256) and the receiver opens it

MB/s are chunk bytes between the arrivals of the first and the last chunk; a share is the median over the
rounds of a way's rate relative to paho's in the same round. The processor time per message, in
microseconds, is given for sender, broker (read in steps of 10 ms) and receiver; on a busy machine it is the
more stable figure. A broker drops messages when a receiver falls far behind; "lost" counts these. Linux
only.
"""

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from threading import Semaphore
from urllib.parse import urlsplit

import numpy as np
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from tools.bench.harness import Figure, Result, Target, at_least, bench

from sedge_emulate.broker.brokers import Broker
from sedge_protocol.host.loop import Loop
from sedge_protocol.host.mqtt import WINDOW, BrokerSettings, Connected, MqttLink, Received
from sedge_protocol.wire import topics
from sedge_protocol.wire.peer import Peer

WAYS = ("paho", "link", "frames")
KEY, TRANSFER = b"k" * 32, b"t" * 16
# The source of the chunks: larger than a core's caches.
BLOB_BYTES = 2**24
MODEL = 582_026
FIRST, LAST = b"first", b"last"
# After this much silence a receiver has everything that the broker did not drop.
SILENCE_S = 3.0
TIMEOUT_S = 60.0
# For chunks of 64 KiB, sealed and opened: MB/s, and the share of paho's rate.
TARGET_KIB, TARGET_MB_S, TARGET_SHARE = 64, 400.0, 0.75
Row = dict[str, str | int | float]

_listening: Event


@cache
def random_bytes() -> bytes:
    """The source of the chunks."""
    return os.urandom(BLOB_BYTES)


@dataclass(frozen=True)
class Case:
    """One transfer of ``count`` chunks of ``size`` bytes over its own topic."""

    url: str
    fleet: str
    way: str
    size: int
    count: int

    @property
    def topic(self) -> str:
        """The topic of the chunks."""
        return topics.up(self.fleet, "device")

    def peer(self) -> Peer:
        """Either end of the channel; both have the same keys here."""
        return Peer(self.topic, KEY, KEY, 1, 0)

    def payloads(self) -> Iterator[bytes]:
        """The chunks as they are sent: frames sealed one by one, or a single one repeated."""
        peer, blob = self.peer(), random_bytes()
        same = peer.chunk(TRANSFER, 0, blob[: self.size]).payload
        for index in range(self.count):
            if self.way == "frames":
                offset = index * self.size % BLOB_BYTES
                same = peer.chunk(TRANSFER, index, blob[offset : offset + self.size]).payload
            yield same


@dataclass(frozen=True)
class Sent:
    """Processor seconds of the sender, from the first chunk to the broker's last acknowledgement."""

    cpu_s: float


@dataclass(frozen=True)
class Arrived:
    """Received messages, seconds between the first and the last, and the receiver's processor seconds."""

    messages: int
    seconds: float
    cpu_s: float


class Tally:
    """Counts and opens what arrives. The first message is the receiver's own: it is subscribed."""

    def __init__(self, case: Case) -> None:
        self.subscribed = self.done = False
        self.messages = 0
        self._case = case
        self._peer = case.peer()
        self._first_s = self._last_s = self._cpu_s = 0.0

    def take(self, topic: str, payload: bytes) -> None:
        """One message."""
        if payload == FIRST:
            self.subscribed = True
        elif payload == LAST:
            self.done = True
        else:
            if self._case.way == "frames":
                opened = self._peer.open(payload, topic)
                assert opened is not None and len(opened[0].body) == self._case.size
            self._last_s = time.perf_counter()
            if not self.messages:
                self._first_s, self._cpu_s = self._last_s, time.process_time()
            self.messages += 1

    def silent(self) -> bool:
        """Whether chunks arrived and then stopped."""
        return self.messages > 0 and time.perf_counter() - self._last_s > SILENCE_S

    def arrived(self) -> Arrived:
        """The result."""
        seconds = self._last_s - self._first_s
        return Arrived(self.messages, seconds, time.process_time() - self._cpu_s)


class LinkStation:
    """One end over ``MqttLink``: tallies what arrives, and sends payloads while there is room."""

    def __init__(self, case: Case, name: str, tally: Tally | None = None) -> None:
        settings = BrokerSettings(case.url, f"{case.fleet}-{name}")
        self.link = MqttLink(settings, (case.topic,) if tally else ())
        self.payloads: Iterator[bytes] | None = None
        self._case = case
        self._tally = tally

    def fileno(self) -> int | None:
        """The link's socket."""
        return self.link.fileno()

    def wants_write(self) -> bool:
        """Whether the link has bytes to write."""
        return self.link.wants_write()

    def timer(self) -> float:
        """When ``step`` is next due."""
        return self.link.timer()

    def step(self) -> None:
        """Like the agent and the coordinator: take what has arrived, send while there is room."""
        for event in self.link.step():
            if isinstance(event, Received) and self._tally:
                self._tally.take(event.topic, event.payload)
            elif isinstance(event, Connected) and self._tally:
                self.link.send(self._case.topic, FIRST)
        while self.link.room and self.payloads:
            payload = next(self.payloads, None)
            if payload is None:
                self.payloads = None
            else:
                self.link.send(self._case.topic, payload)


def send_by_link(case: Case) -> Sent:
    station, loop = LinkStation(case, "sender"), Loop()
    loop.run([station], lambda: station.link.up)
    random_bytes()
    start = time.process_time()
    station.payloads = case.payloads()
    station.step()
    loop.run([station], lambda: station.payloads is None)
    station.link.send(case.topic, LAST)
    station.link.close()
    loop.close()
    return Sent(time.process_time() - start)


def receive_by_link(case: Case) -> Arrived:
    tally = Tally(case)
    station, loop = LinkStation(case, "receiver", tally), Loop()
    loop.run([station], lambda: tally.subscribed)
    _listening.set()
    loop.run([station], lambda: tally.done or tally.silent())
    station.link.close()
    loop.close()
    return tally.arrived()


def paho_client(case: Case, name: str) -> paho.Client:
    client = paho.Client(
        CallbackAPIVersion.VERSION2, f"{case.fleet}-{name}", protocol=MQTTProtocolVersion.MQTTv5
    )
    client.max_inflight_messages_set(WINDOW)
    return client


def open_client(client: paho.Client, case: Case) -> None:
    """Connect, and wait for the broker to accept."""
    url = urlsplit(case.url)
    client.connect(url.hostname or "", url.port or 1883)
    client.loop_start()
    deadline = time.monotonic() + TIMEOUT_S
    while not client.is_connected() and time.monotonic() < deadline:
        time.sleep(0.01)


def send_by_paho(case: Case) -> Sent:
    client, room = paho_client(case, "sender"), Semaphore(WINDOW)

    def on_publish(
        client: paho.Client, data: object, mid: int, reason: ReasonCode, properties: Properties
    ) -> None:
        room.release()

    client.on_publish = on_publish
    open_client(client, case)
    random_bytes()
    start = time.process_time()
    for payload in case.payloads():
        room.acquire()
        client.publish(case.topic, payload)
    client.publish(case.topic, LAST, 1).wait_for_publish(TIMEOUT_S)
    sent = Sent(time.process_time() - start)
    client.disconnect()
    client.loop_stop()
    return sent


def receive_by_paho(case: Case) -> Arrived:
    tally, client = Tally(case), paho_client(case, "receiver")

    def on_message(client: paho.Client, data: object, message: paho.MQTTMessage) -> None:
        tally.take(message.topic, bytes(message.payload))

    client.on_message = on_message
    open_client(client, case)
    client.subscribe(case.topic, 1)
    client.publish(case.topic, FIRST, 1)
    while not tally.subscribed:
        time.sleep(0.01)
    _listening.set()
    while not (tally.done or tally.silent()):
        time.sleep(0.05)
    arrived = tally.arrived()
    client.disconnect()
    client.loop_stop()
    return arrived


# The work of the two processes.


def get_ready(event: Event) -> None:
    """Initialise a process: set the event, and allocate and free a model, as agent and coordinator do.

    This makes glibc's malloc keep memory. In a fresh process every chunk of 64 KiB would cost the receiver
    some 15 page faults, a third of its time.
    """
    global _listening
    _listening = event
    model = np.ones(MODEL, np.float32)
    del model


def send(case: Case) -> Sent:
    if not _listening.wait(TIMEOUT_S):
        raise TimeoutError(f"{case}: the receiver is not subscribed after {TIMEOUT_S:.0f} s")
    _listening.clear()
    return send_by_paho(case) if case.way == "paho" else send_by_link(case)


def receive(case: Case) -> Arrived:
    return receive_by_paho(case) if case.way == "paho" else receive_by_link(case)


# The whole measurement.


class Bench:
    """A broker and the two processes, as a context manager."""

    def __init__(self, megabytes: int) -> None:
        context = get_context("spawn")
        listening = context.Event()
        self._bytes = megabytes * 1_000_000
        self._broker = Broker()
        self._sender, self._receiver = (
            ProcessPoolExecutor(1, context, get_ready, (listening,)) for _ in range(2)
        )
        self._open = ExitStack()
        self._runs = 0

    def __enter__(self) -> "Bench":
        for part in (self._broker, self._sender, self._receiver):
            self._open.enter_context(part)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def once(self, way: str, size: int) -> Row:
        """One transfer."""
        self._runs += 1
        count = self._bytes // size
        case = Case(self._broker.url, f"bench-{self._runs}", way, size, count)
        broker_s = self._broker_cpu_s()
        arriving, sending = self._receiver.submit(receive, case), self._sender.submit(send, case)
        sent, arrived = sending.result(), arriving.result()
        broker_s = self._broker_cpu_s() - broker_s
        rate = (arrived.messages - 1) / arrived.seconds
        return {
            "mb_s": rate * size / 1e6,
            "messages_s": rate,
            "lost": count - arrived.messages,
            "sender_us": 1e6 * sent.cpu_s / count,
            "broker_us": 1e6 * broker_s / count,
            "receiver_us": 1e6 * arrived.cpu_s / arrived.messages,
        }

    def _broker_cpu_s(self) -> float:
        """User and system seconds of the broker's process (proc(5): fields 14 and 15)."""
        fields = Path(f"/proc/{self._broker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def in_turn(over: Bench, size: int, rounds: int) -> list[Row]:
    """All ways in turn, so that a slow spell of the machine affects all of them. One row per way."""
    measured: dict[str, list[Row]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):  # the first is a warm-up
        for way in WAYS:
            row = over.once(way, size)
            if number:
                measured[way].append(row)
    rows: list[Row] = []
    for way, own_rows in measured.items():
        pairs = zip(own_rows, measured["paho"], strict=True)
        shares = [float(own["mb_s"]) / float(raw["mb_s"]) for own, raw in pairs]
        row = {"kib": size // 1024, "way": way}
        row |= {
            key: round(statistics.median(float(r[key]) for r in own_rows), 1) for key in own_rows[0]
        }
        row["of_paho"] = round(statistics.median(shares), 3)
        rows.append(row)
    return rows


def figures(found: Result) -> list[Figure]:
    """The link compared with paho alone, by chunk size; targets are for frames of one size."""
    target = found["target"]
    written: list[Figure] = []
    for kib in dict.fromkeys(row["kib"] for row in found["broker"]):
        rows = {r["way"]: r for r in found["broker"] if r["kib"] == kib}
        raw, link, frames = (rows[way] for way in WAYS)
        what = f"chunks of {kib} KiB over Mosquitto, sealed and opened, against paho alone"
        measured = (
            f"{frames['mb_s']:.0f} MB/s, {frames['messages_s']:,.0f} a second, "
            f"{frames['of_paho']:.2f} of its rate ({raw['mb_s']:.0f} MB/s); unsealed {link['of_paho']:.2f}"
        )
        if frames["lost"]:
            measured += f"; the broker threw {frames['lost']:,.0f} away"
        met: tuple[Target, ...] = ()
        if kib == target["kib"]:
            rate = at_least(target["mb_s"], frames["mb_s"], "MB/s")
            met = (rate, at_least(target["of_paho"], frames["of_paho"]))
        written.append(Figure(what, measured, met))
    return written


@bench("Link and broker", figures)
def measure(rounds: int = 5, kib: Sequence[int] = (16, 64, 256), megabytes: int = 192) -> Result:
    """So many megabytes a transfer, in chunks of each size."""
    with Bench(megabytes) as over:
        rows = [row for size in kib for row in in_turn(over, size * 1024, rounds)]
    targets = {"kib": TARGET_KIB, "mb_s": TARGET_MB_S, "of_paho": TARGET_SHARE}
    return {"broker": rows, "target": targets}
