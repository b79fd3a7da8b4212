"""Measures what a large fleet's status page costs the coordinator, and how long a browser waits for it.

A real coordinator with its recorder runs in one process with all the other threads of ``sedge-cloud
serve``. The fleet has closed some rounds of a tenth of its devices and has one open. Then, ``RATE`` times a
second, a device's hello says that it starts or stops waiting, so the facts are new whenever they are read,
as the result shows. This is measured three times: without a page (the problem log still reads the facts),
with a page that nobody reads, and with readers in a separate process, which hold the stream open and fetch
the page at every change, as browsers do.

A share is CPU time relative to wall time. It counts the recorder, which runs in the loop, and the other
threads, which may hold the interpreter all the time. First paint is what a browser waits for: the time to
the last byte of the page, which needs no other files.
"""

import http.client
import logging
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from tools.bench.coordinator import FLEET, RUN, Device, make_bundle
from tools.bench.harness import Figure, Result, bench
from tools.bench.parts.real_fleet import free_port

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import WHOLE
from sedge_cloud.config import CloudConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.facts.snapshot import STALE_S
from sedge_cloud.figures.numbers import percent, size
from sedge_cloud.outlets.settings import HttpConfig
from sedge_cloud.outlets.sidecars import sidecars
from sedge_cloud.recorder import Recorder
from sedge_cloud.service import on_the_wall
from sedge_cloud.store.opening import open_folder
from sedge_protocol.codec import ValueCoding, encode, top_k
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Hello

SIZE = 2000
HELLO = Hello(b"!" * 16, "bench", ("onnxruntime",), ("zstd",), num_train=100, versions=VERSIONS)
WAITS = msgspec.structs.replace(HELLO, waits="31 % battery")
# Hellos per second. Each of a thousand devices then has news every fifty seconds, far below its rate limit.
RATE = 20
# How many devices wait at the same time.
WAITING = 10
# The threads that run alongside the coordinator's loop.
BESIDE = ("status page", "problem log")


class Fleet:
    """A coordinator and simulated devices, whose messages reach it without a broker."""

    def __init__(self, folder: Path, devices: int) -> None:
        self.state = folder / "state"
        self.store = open_folder(self.state, durable=False)
        self.layout = Layout.of([("theta", (SIZE,), Role.PARAMETER)])
        self.devices = {name: Device(name) for name in (f"device-{i:04}" for i in range(devices))}
        for name in self.devices:
            self.store.add_device(name, name.encode().ljust(32, b"\0"))
        config = RunConfig(strategy="fedavg", num_rounds=10**6, fraction_train=0.1, broadcast=WHOLE)
        start_run(self.store, RUN, make_bundle(folder / "bundle", SIZE), config)
        self.core = Coordinator(FLEET, self.store, 1.0, 1, wall=on_the_wall)
        self.recorder = Recorder(self.core, on_the_wall)
        self.recorder.link(True, time.monotonic())
        self.core.load(time.monotonic())
        self._news = news([*self.devices])

    def say(self, name: str, message: Hello) -> None:
        """Deliver a device's message to the coordinator."""
        device = self.devices[name]
        self.core.receive(device.topic, device.peer.seal(message), time.monotonic())

    def round(self) -> None:
        """Let every device that has an order answer it, so that the next round opens."""
        payload = encode(top_k(np.ones(SIZE, np.float32), 20), ValueCoding.BF16)
        effects: list[object] = [*self.core.poll(time.monotonic(), 10**6)]
        for device in self.devices.values():
            with suppress(StopIteration):  # the device has no order
                (frame,) = device.frames(device.order(effects), self.layout, payload, 0)
                self.core.receive(device.topic, frame, time.monotonic())

    def work(self, seconds: float) -> float:
        """Deliver hellos at ``RATE`` for this long.

        Returns the share of this time that the recorder and the other threads take.
        """
        begun, recorded, beside = time.monotonic(), 0.0, cpu_beside()
        while time.monotonic() < begun + seconds:
            name, message = next(self._news)
            self.say(name, message)
            at = time.thread_time()
            self.recorder.poll(time.monotonic())
            recorded += time.thread_time() - at
            time.sleep(1 / RATE)
        return (recorded + cpu_beside() - beside) / (time.monotonic() - begun)


def cpu_beside() -> float:
    """Return the CPU seconds that the threads alongside the loop have used so far."""
    threads = [t.ident for t in threading.enumerate() if t.name in BESIDE and t.ident is not None]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in threads)


def news(names: Sequence[str]) -> Iterator[tuple[str, Hello]]:
    """Yield hellos without end: one device begins to wait, and one that has waited for a while stops."""
    for i in count():
        yield names[i % len(names)], WAITS
        yield names[(i - WAITING) % len(names)], HELLO


def read(port: int, readers: int, stop: Event, changes: "Synchronized[int]") -> None:
    """Act as several browsers, which hold the stream open and fetch the page at every change.

    ``changes`` counts the changes that the browsers receive.
    """
    threads = [threading.Thread(target=_browse, args=(port, stop, changes)) for _ in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _browse(port: int, stop: Event, changes: "Synchronized[int]") -> None:
    stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with suppress(ConnectionError):  # the server has ended before this process
        stream.request("GET", "/events")
        answer = stream.getresponse()
        while not stop.is_set():
            if answer.readline() == b"event: change\n":
                fetch(port)
                with changes.get_lock():
                    changes.value += 1


def fetch(port: int) -> tuple[float, int]:
    """Fetch the page. Returns the seconds to its last byte, and its size in bytes."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    size = len(connection.getresponse().read())
    connection.close()
    return time.monotonic() - begun, size


def paint(port: int) -> tuple[float, float, int]:
    """Return the seconds to the very first page and to a page whose facts are stale, and the page's size.

    The second is the median of five fetches.
    """
    first, size = fetch(port)
    later: list[float] = []
    for _ in range(5):
        time.sleep(STALE_S)  # makes the next fetch read the facts again
        later.append(fetch(port)[0])
    return first, median(later), size


def watched(fleet: Fleet, port: int, readers: int, seconds: float) -> tuple[float, float]:
    """Return ``work``'s share with readers, and the changes per minute that each reader received."""
    context = get_context("spawn")
    stop, changes = context.Event(), context.Value("i", 0)
    process = context.Process(target=read, args=(port, readers, stop, changes))
    process.start()
    while changes.value < readers:  # until the readers have begun
        fleet.work(1.0)
    before = changes.value
    share = fleet.work(seconds)
    told = (changes.value - before) / readers / seconds * 60
    stop.set()
    process.terminate()
    process.join()
    return share, told


def figures(row: Result) -> list[Figure]:
    """Return the figure for the page's cost to the coordinator and the time that a browser waits for it."""
    what = (
        f"the status page for {row['devices']:,} devices, {row['readers']} readers, "
        f"{row['changes_a_minute']:.0f} changes per minute sent to each"
    )
    measured = (
        f"{1000 * row['first_paint_s']:.0f} ms and {size(row['page_bytes'])} to the first paint; "
        f"{percent(row['without_page_share'], 2)} of the coordinator's time without a page, "
        f"{percent(row['idle_share'], 2)} with one that nobody reads, "
        f"{percent(row['loop_share'], 2)} with all readers"
    )
    return [Figure(what, measured, (("at most 1 %", row["loop_share"] <= 0.01),))]


@bench("Status page", figures)
def measure(
    devices: int = 1000, rounds: int = 20, readers: int = 3, seconds: float = 25.0
) -> Result:
    """Measure for ``seconds`` each: without a page, with a page that nobody reads, and with readers."""
    with tempfile.TemporaryDirectory() as name, open(os.devnull, "w") as log:
        logging.basicConfig(stream=log)  # the coordinator formats its log lines, as in the service
        fleet = Fleet(Path(name), devices)
        for device in fleet.devices:
            fleet.say(device, HELLO)
        for _ in range(rounds + 1):
            fleet.round()
        cloud = CloudConfig(FLEET, state_dir=str(fleet.state))
        nowhere = BrokerSettings("mqtt://127.0.0.1:1", "coordinator")
        with sidecars(cloud, nowhere):
            fleet.work(2 * STALE_S)  # the first reading of the facts goes through every round
            unwatched = fleet.work(seconds)
        port = free_port()
        page = msgspec.structs.replace(cloud, http=HttpConfig(f"127.0.0.1:{port}"))
        with sidecars(page, nowhere):
            first, later, bytes_of_page = paint(port)
            idle = fleet.work(seconds)
            share, told = watched(fleet, port, readers, seconds)
        fleet.store.close()
    return {
        "devices": devices,
        "rounds": rounds,
        "readers": readers,
        "changes_a_minute": round(told, 1),
        "first_paint_s": round(first, 4),
        "paint_s": round(later, 4),
        "page_bytes": bytes_of_page,
        "without_page_share": round(unwatched, 5),
        "idle_share": round(idle, 5),
        "loop_share": round(share, 5),
    }
