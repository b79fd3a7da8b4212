"""What the status page of a large fleet takes, and what of it the coordinator's loop pays.

    python -m tools.bench.status_page [--devices 1000] [--rounds 20] [--readers 3] [--seconds 5]

A real coordinator with its recorder and, in the same process as in ``sedge-cloud serve``, a real status
server. The fleet has closed some rounds of a tenth of its devices and has one open. Then devices say hello
as fast as the loop can take it, which changes the facts all the time: without a page, with one and nobody
there, and with readers, in a process of their own, that hold the stream open and fetch the page at every
change, as browsers do.

The loop's share is the time that the recorder takes in the loop, plus the processor time of the page's
thread, which may hold the interpreter all of it. First paint is what a browser waits for: the time to the
last byte of the page, which needs nothing else. The last line is JSON.
"""

import argparse
import http.client
import json
import tempfile
import threading
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import numpy as np
from tools.bench.coordinator import FLEET, RUN, make_bundle, update_for

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import WHOLE
from sedge_cloud.config import CloudConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed, RoundOpened
from sedge_cloud.status.live import Recorder
from sedge_cloud.status.server import StatusServer
from sedge_cloud.status.settings import HttpConfig
from sedge_cloud.store.database import Store
from sedge_protocol.codec import ValueCoding, encode, top_k
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello, Offer, Order, decode_body
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import describe

SIZE = 2000
HELLO = Hello(b"!" * 16, "bench", ("onnxruntime",), ("zstd",), num_train=100)


class Fleet:
    """A coordinator and the devices' ends of their channels."""

    def __init__(self, folder: Path, devices: int) -> None:
        self.state = folder / "state"
        self.store = Store(self.state, durable=False)
        self.layout = Layout.of([("theta", (SIZE,), Role.PARAMETER)])
        self.peers: dict[str, Peer] = {}
        self.keys: dict[str, DeviceKeys] = {}
        for i in range(devices):
            name, secret = f"device-{i:04}", i.to_bytes(32, "big")
            self.store.add_device(name, secret)
            keys = self.keys[name] = DeviceKeys.of(secret)
            self.peers[name] = Peer(topics.up(FLEET, name), keys.up, keys.down, 1, 0)
        config = RunConfig(strategy="fedavg", num_rounds=10**6, fraction_train=0.1, broadcast=WHOLE)
        start_run(self.store, RUN, make_bundle(folder / "bundle", SIZE), config)
        self.core = Coordinator(FLEET, self.store, 1.0, 1)
        self.recorder = Recorder(self.core, self.state)
        self.recorder.link(True)
        self.core.load(time.monotonic())

    def say(self, name: str, message: Hello | Offer, transfer: bytes = bytes(16)) -> None:
        """A device sends a message."""
        payload = self.peers[name].seal(message, transfer)
        self.core.receive(topics.up(FLEET, name), payload, time.monotonic())

    def round(self) -> None:
        """Every device that has an order answers it, and the next round opens."""
        payload = encode(top_k(np.ones(SIZE, np.float32), 20), ValueCoding.BF16)
        for effect in self.core.poll(time.monotonic(), 10**6):
            match effect:
                case RoundOpened() | RoundClosed():
                    self.recorder.observe(effect)
                case Send() if effect.topic.endswith("/down"):
                    name = effect.topic.split("/")[-2]
                    frame = open_frame(effect.payload, effect.topic, self.keys[name].down)
                    order = decode_body(frame.kind, frame.body)
                    if isinstance(order, Order):
                        blob = update_for(order, self.layout, payload, 0)
                        manifest = describe(blob)
                        offer = Offer(order.run, order.round, manifest, 1, blob)
                        self.say(name, offer, manifest.transfer)
                case _:
                    pass

    def work(self, seconds: float) -> float:
        """Take hellos for so long; the recorder's time."""
        end, recorded = time.monotonic() + seconds, 0.0
        while True:
            for name in self.peers:
                self.say(name, HELLO)
                begun = time.monotonic()
                self.recorder.poll(begun)
                recorded += time.monotonic() - begun
                if begun > end:
                    return recorded


def read(port: int, count: int, stop: Event) -> None:
    """Be some browsers: hold the stream, and fetch the page at every change."""
    threads = [threading.Thread(target=_browse, args=(port, stop)) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _browse(port: int, stop: Event) -> None:
    stream = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with suppress(ConnectionError):  # the server ends first
        stream.request("GET", "/events")
        answer = stream.getresponse()
        while not stop.is_set():
            if answer.readline() == b"event: change\n":
                fetch(port)


def fetch(port: int) -> tuple[float, int]:
    """Seconds to the page's last byte, and its size."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    size = len(connection.getresponse().read())
    connection.close()
    return time.monotonic() - begun, size


def page_cpu() -> float:
    """Processor time of the page's thread so far, in seconds."""
    thread = next(t for t in threading.enumerate() if t.name == "status page")
    return time.clock_gettime(time.pthread_getcpuclockid(thread.ident or 0))


def main() -> int:
    """Measure, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    seconds: float = arguments.seconds
    with tempfile.TemporaryDirectory() as name:
        fleet = Fleet(Path(name), arguments.devices)
        for device in fleet.peers:
            fleet.say(device, HELLO)
        for _ in range(arguments.rounds + 1):
            fleet.round()
        recorded = fleet.work(seconds)
        listen = HttpConfig("127.0.0.1:0")
        server = StatusServer(CloudConfig(FLEET, state_dir=str(fleet.state), http=listen))
        server.start()
        first, size = fetch(server.port)
        paints: list[float] = []
        for _ in range(5):
            time.sleep(1.1)  # until the facts are read again
            paints.append(fetch(server.port)[0])
        before = page_cpu()
        fleet.work(seconds)
        idle_cpu = page_cpu() - before
        context = get_context("spawn")
        stop = context.Event()
        readers = context.Process(target=read, args=(server.port, arguments.readers, stop))
        readers.start()
        fleet.work(3.0)  # until they have begun
        before = page_cpu()
        recorded_watched = fleet.work(seconds)
        cpu = page_cpu() - before
        stop.set()
        server.close()
        readers.terminate()
        readers.join()
        fleet.store.close()
    found: dict[str, float | int] = {
        "devices": arguments.devices,
        "rounds": arguments.rounds,
        "readers": arguments.readers,
        "first_paint_s": round(first, 4),
        "paint_s": round(median(paints), 4),
        "page_bytes": size,
        "recorder_share": round(recorded / seconds, 5),
        "idle_share": round(idle_cpu / seconds, 5),
        "loop_share": round((recorded_watched + cpu) / seconds, 5),
    }
    for key, value in found.items():
        print(f"{key:<16} {value:>12}")
    print(json.dumps({"bench": "status_page", **found}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
