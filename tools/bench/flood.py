"""Measures the honest devices' rate of updates while one enrolled device floods the coordinator.

It starts a real Mosquitto with the configuration that ``sedge-cloud init`` writes (on the loopback
interface only), a real ``sedge-cloud serve`` and an endless run of FedAvg. The honest devices follow the
whole protocol but do not train: each downloads every round's model and uploads an update of about five
chunks. A lost message delays them by up to two seconds. Another device, in a separate process, does not
answer orders, and sends ``--rate`` messages a second (inf: as many as the broker accepts) of one kind:

    chunk    sealed, for a transfer that it has not offered: these get no answer
    get      sealed, for all chunks of the round's model
    hello    sealed, each with a higher start count of the device
    garbage  64 bytes that are not a frame
    mac      a chunk with a wrong MAC

Each flood is between two calm periods of the same length. The share is the rate of committed updates during
the flood, relative to the calm periods. The result also has the flooder's messages per second, the seconds
after the flood until every honest device has committed another update, the share of a core that the
coordinator used (the more stable figure on a busy machine), how often honest devices had to repeat a GET or
an offer, and the number of lines that the coordinator logged in the meantime.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np
from tools.bench.coordinator import RUN, make_bundle, synthetic_delta, update_for
from tools.bench.harness import Figure, Result, at_least, at_most, bench, chosen

from sedge_cloud.admin.enrolment import add_device
from sedge_cloud.admin.runs import start_run
from sedge_cloud.admin.templates import write_first_files
from sedge_cloud.broker.child import find_mosquitto
from sedge_cloud.broker.ports import LOOPBACK, on_free_port, wait_until_accepting
from sedge_cloud.coding import WHOLE
from sedge_cloud.config import RunConfig, load_cloud
from sedge_cloud.store.opening import open_folder
from sedge_protocol.codec import ValueCoding, encode, top_k
from sedge_protocol.host.loop import Loop
from sedge_protocol.host.mqtt import (
    BrokerSettings,
    Connected,
    Disconnected,
    MqttLink,
    Received,
    TooLarge,
)
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import VERSIONS, open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import (
    Busy,
    Committed,
    Get,
    Have,
    Hello,
    Message,
    Offer,
    Order,
    Reject,
    Welcome,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import Fetch, Upload, describe, to_bitmap

FLEET = "bench"
KINDS = {
    "chunk": "chunks that it has not offered",
    "get": "GETs for a whole model",
    "hello": "HELLOs with ever later starts",
    "garbage": "bytes that are not a frame",
    "mac": "frames with a wrong MAC",
}
FLOODER = "flooder"
# The model has 13 chunks, and an update has five.
SIZE = 200_000
# The targets: the minimum of the honest devices' update rate during a flood, as a share of the calm rate,
# and the maximum number of log lines.
TARGET_SHARE, TARGET_LINES = 0.8, 30
START_S = 30.0
# How long after a flood every honest device may take to commit another update.
BACKLOG_S = 120.0
BODY_BYTES = 4096
# How many messages the flooder sends before it checks the clock and incoming messages again.
BATCH = 64
TRAIN_S = 0.5
HELLO = Hello(b"!" * 16, "bench", ("onnxruntime",), ("zstd",), versions=VERSIONS)
Row = dict[str, str | int | float]


@dataclass(frozen=True)
class Account:
    """A device's account, as ``device add`` creates it."""

    url: str
    name: str
    secret: bytes


class Station:
    """A device's link and its end of the channel. Messages are passed to ``hear``, chunks to ``take``."""

    def __init__(self, account: Account) -> None:
        self.keys = DeviceKeys.of(account.secret)
        settings = BrokerSettings(account.url, account.name, account.name, self.keys.password)
        self._down = topics.down(FLEET, account.name)
        self.topic = topics.up(FLEET, account.name)
        self._hint = topics.hint(FLEET, topics.shard_of(account.name))
        self.link = MqttLink(settings, (self._down, self._hint))
        self.incarnation = int(time.time())
        self.peer = Peer(self.topic, self.keys.up, self.keys.down, self.incarnation, 0)
        self.order: Order | None = None

    def fileno(self) -> int | None:
        """Return the link's socket."""
        return self.link.fileno()

    def wants_write(self) -> bool:
        """Return True if the link has bytes to write."""
        return self.link.wants_write()

    def timer(self) -> float:
        """Return when ``step`` is next due."""
        return self.link.timer()

    def step(self) -> None:
        """Process whatever has arrived."""
        for event in self.link.step():
            match event:
                case Connected():
                    self.greet()
                case Disconnected():
                    self.lost()
                case Received(topic=self._down):
                    opened = self.peer.open(event.payload, event.topic)
                    if opened is not None and opened[1] is not None:
                        self.hear(opened[1])
                case Received(topic=self._hint):  # the coordinator has just started
                    self.greet()
                case Received():
                    self.take(event.topic, event.payload)
                case TooLarge():
                    raise RuntimeError(str(event))

    def send(self, send: Send) -> None:
        """Pass a frame to the link."""
        self.link.send(send.topic, send.payload)

    def greet(self) -> None:
        """Send HELLO."""
        self.send(self.peer.message(HELLO))

    def hear(self, message: Message) -> None:
        """Process a message from the coordinator."""
        if isinstance(message, Order):
            self.order = message
        elif isinstance(message, Welcome) and message.nonce != HELLO.nonce:  # asks for a hello
            self.greet()

    def take(self, topic: str, payload: bytes) -> None:
        """Process a chunk for the whole fleet."""

    def lost(self) -> None:
        """Handle the loss of the link."""


class Honest(Station):
    """A device that downloads each round's model and uploads an update, without training."""

    def __init__(self, account: Account, layout: Layout, payload: bytes, number: int) -> None:
        super().__init__(account)
        self.committed = self.repeated = 0
        self._layout, self._payload, self._number = layout, payload, number
        self._rng = np.random.default_rng(number)
        self._blob, self._asked = b"", 0
        self._fetch: Fetch | None = None
        self._upload: Upload | None = None

    def timer(self) -> float:
        """Return when ``step`` is next due."""
        work = self._upload or self._fetch
        due = None if work is None else work.timer()
        return self.link.timer() if due is None else min(self.link.timer(), due)

    def step(self) -> None:
        """Process the messages that have arrived, and do whatever is due."""
        super().step()
        now = time.monotonic()
        if self.order is None or not self.link.up:
            return
        if self._fetch is not None:
            missing = self._fetch.poll(now)
            if missing is not None:
                self._asked += 1
                self.repeated += self._asked > 2  # first one chunk, then all others
                get = Get(RUN, self.order.round, missing)
                self.send(self.peer.message(get, self._fetch.manifest.transfer))
        elif self._upload is not None:
            for index in self._upload.poll(now):
                self.send(self._next(self._upload, self.order, index))

    def hear(self, message: Message) -> None:
        """Process a message from the coordinator."""
        now = time.monotonic()
        known = self.order.round if self.order else 0
        super().hear(message)
        match message:
            case Order() if message.round > known:
                self._upload, self._asked = None, 0
                self._fetch = Fetch(message.model, set(), self._rng)
                self._fetch.connected(now)
                self.link.subscribe(topics.blob(FLEET, message.model.transfer))
            case Have() if self._upload is not None:
                self._upload.receive(message.number, message.bitmap, message.credit, now)
            case Busy() if self._upload is not None:
                self._upload.busy(message.retry_ms / 1000, now)
            case Committed() if self._upload is not None:
                self.committed += 1
                self._upload = None
            case Reject():
                raise SystemExit(f"{self.topic}: {message}")
            case _:
                pass

    def take(self, topic: str, payload: bytes) -> None:
        """Process a chunk of a model."""
        frame, now = open_frame(payload, topic, None), time.monotonic()
        if self._fetch is None or self.order is None:
            return
        if frame.transfer != self._fetch.manifest.transfer:
            return
        self._fetch.chunk(frame.index, frame.body, now)
        if self._fetch.complete:
            self.link.unsubscribe(topic)
            self._fetch = None
            self._blob = update_for(self.order, self._layout, self._payload, self._number)
            self._upload = Upload(describe(self._blob), self._rng)
            self._upload.connected(now + TRAIN_S)

    def lost(self) -> None:
        """Handle the loss of the link. The round starts over with the next order."""
        self.order = self._fetch = self._upload = None

    def _next(self, upload: Upload, order: Order, index: int | None) -> Send:
        manifest = upload.manifest
        if index is None:
            self.repeated += upload.number > 1
            offer = Offer(order.run, order.round, manifest, upload.number)
            return self.peer.message(offer, manifest.transfer)
        offset, length = manifest.span(index)
        return self.peer.chunk(manifest.transfer, index, self._blob[offset : offset + length])


class Flooder(Station):
    """A device that sends one kind of message over and over."""

    def __init__(self, account: Account) -> None:
        super().__init__(account)
        # Authenticated only once, because on one machine the flooder's computing would slow down the
        # others.
        self._chunk = self.peer.chunk(b"t" * 16, 0, bytes(BODY_BYTES)).payload

    def payload(self, kind: str) -> bytes:
        """Return the next frame of a kind."""
        match kind:
            case "get":
                assert self.order is not None
                model = self.order.model
                get = Get(RUN, self.order.round, to_bitmap(range(model.count), model.count))
                return self.peer.message(get, model.transfer).payload
            case "hello":
                self.incarnation += 1
                self.peer = Peer(self.topic, self.keys.up, self.keys.down, self.incarnation, 0)
                return self.peer.message(HELLO).payload
            case "garbage":
                return bytes(64)
            case "mac":
                return self._chunk[:-1] + b"!"
            case _:
                return self._chunk


def flood(account: Account, asked: "Queue[tuple[str, float, float]]", sent: "Queue[int]") -> None:
    """Run the flooder's process. It joins the fleet, then floods when told to."""
    station, loop = Flooder(account), Loop()
    while True:
        loop.run([station], lambda: station.order is not None and not asked.empty())
        kind, rate, seconds = asked.get()
        if not kind:
            return
        start, count = time.monotonic(), 0
        while (passed := time.monotonic() - start) < seconds:
            for _ in range(BATCH):
                if count < rate * passed and station.link.room:
                    station.link.send(station.topic, station.payload(kind))
                    count += 1
            station.step()
            if count >= rate * passed:
                time.sleep(0.002)
        sent.put(count)


@contextmanager
def running(command: list[str], log: Path) -> Generator[subprocess.Popen[bytes]]:
    """Run a process in this context. Its output goes to a file."""
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


class Bench:
    """Runs broker, coordinator, honest devices and flooder, as a context manager."""

    def __init__(self, devices: int) -> None:
        self._count = devices
        self._open = ExitStack()

    def __enter__(self) -> "Bench":
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._log = self._folder / "cloud.log"
        on_free_port(self._start)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    def _start(self, port: int) -> None:
        folder, url = self._folder / str(port), f"mqtt://{LOOPBACK}:{port}"
        write_first_files(folder, FLEET, url)
        broker = folder / "mosquitto.conf"
        broker.write_text(
            broker.read_text().replace(f"listener {port}", f"listener {port} {LOOPBACK}")
        )
        toml = folder / "cloud.toml"
        # The coordinator waits this long for the GETs of all devices, and the flooder may never send one.
        toml.write_text(toml.read_text().replace("[broker]", "gather_ms = 100\n\n[broker]"))
        cloud = load_cloud(toml)
        names = [f"device-{number}" for number in range(self._count)]
        store = open_folder(Path(cloud.state_dir))
        accounts: list[Account] = []
        for name in [*names, FLOODER]:
            made = add_device(store, cloud, name, folder / name)
            secret = bytes.fromhex((made / "secret").read_text().strip())
            accounts.append(Account(url, name, secret))
        everyone = len(accounts)
        config = RunConfig(
            strategy="fedavg",
            num_rounds=100_000,
            evaluate=False,
            min_train_devices=everyone,
            min_available_devices=everyone,
            quorum=self._count / everyone - 0.01,
            broadcast=WHOLE,
        )
        start_run(store, RUN, make_bundle(folder / "bundle", SIZE), config)
        store.close()
        mosquitto = self._open.enter_context(
            running([find_mosquitto() or "mosquitto", "-c", str(broker)], folder / "broker.log")
        )
        wait_until_accepting(LOOPBACK, port, START_S, lambda: mosquitto.poll() is None)
        serve = [sys.executable, "-m", "sedge_cloud", "-c", str(toml), "serve"]
        self._serve = self._open.enter_context(running(serve, self._log))
        layout = Layout.of([("theta", (SIZE,), Role.PARAMETER)])
        payload = encode(top_k(synthetic_delta("random", SIZE, 0), SIZE // 2), ValueCoding.BF16)
        self._honest = [Honest(a, layout, payload, i) for i, a in enumerate(accounts[:-1])]
        self._loop = Loop()
        self._open.callback(self._loop.close)
        context = get_context("spawn")
        self._asked, self._sent = context.Queue(), context.Queue()
        flooder = context.Process(target=flood, args=(accounts[-1], self._asked, self._sent))
        flooder.start()
        self._open.callback(flooder.join)
        self._open.callback(self._asked.put, ("", 0.0, 0.0))
        if not self._run(lambda: all(device.committed for device in self._honest), START_S):
            raise SystemExit(f"no device takes part: {self._log.read_text()[-2000:]}")

    def calm(self, seconds: float) -> float:
        """Return the updates per second without a flood."""
        return self._run(lambda: False, seconds)

    def flood(self, kind: str, rate: float, seconds: float) -> Row:
        """Flood for a while.

        Returns the updates per second, the flooder's messages, and the number of log lines.
        """
        lines, repeated = self._lines(), self._repeated()
        cpu_s = self._cpu_s()
        self._asked.put((kind, rate, seconds))
        rate_found = self._run(lambda: False, seconds)
        self._run(lambda: not self._sent.empty(), START_S)
        sent, over = self._sent.get(), time.monotonic()
        committed = [device.committed for device in self._honest]
        self._run(lambda: all(map(_more, self._honest, committed)), BACKLOG_S)
        return {
            "updates_s": round(rate_found, 2),
            "sent_s": round(sent / seconds),
            "after_s": round(time.monotonic() - over, 1),
            "cores": round((self._cpu_s() - cpu_s) / seconds, 2),
            "repeated": self._repeated() - repeated,
            "lines": self._lines() - lines,
        }

    def _run(self, until: Callable[[], bool], seconds: float) -> float:
        """Let the honest devices work. Returns the committed updates per second."""
        before, start = self._committed(), time.monotonic()
        self._loop.run(self._honest, lambda: until() or time.monotonic() > start + seconds)
        return (self._committed() - before) / (time.monotonic() - start)

    def _committed(self) -> int:
        return sum(device.committed for device in self._honest)

    def _cpu_s(self) -> float:
        """Return the CPU time, in seconds, of the coordinator's process (proc(5): fields 14 and 15)."""
        text = Path(f"/proc/{self._serve.pid}/stat").read_text()
        fields = text.rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _repeated(self) -> int:
        return sum(device.repeated for device in self._honest)

    def _lines(self) -> int:
        """Count the lines of the log, except the INFO lines that every round writes."""
        lines = self._log.read_text().splitlines()
        return sum(" INFO " not in line for line in lines)


def _more(device: Honest, committed: int) -> bool:
    return device.committed > committed


def flooded(over: Bench, kind: str, rate: float, seconds: float) -> Row:
    """Measure one kind of flood between two calm periods."""
    before = over.calm(seconds)
    found = over.flood(kind, rate, seconds)
    calm = (before + over.calm(seconds)) / 2
    share = float(found["updates_s"]) / calm if calm else 0.0
    return {"kind": kind, "calm_s": round(calm, 2), **found, "share": round(share, 3)}


def figures(found: Result) -> list[Figure]:
    """Return the honest devices' rate while one device floods the coordinator."""
    target = found["target"]
    return [
        Figure(
            f"honest devices' rate while one sends "
            f"{found['rate']:,.0f} per second of: {KINDS[row['kind']]}",
            f"{row['share']:.2f} of the rate without a flood; "
            f"{row['cores']:.2f} of a core at the coordinator, {row['repeated']} messages resent, "
            f"{row['lines']} lines in the log",
            (
                at_least(target["share"], row["share"]),
                at_most(target["lines"], row["lines"], "lines"),
            ),
        )
        for row in found["flood"]
    ]


@bench("A flood from one device", figures)
def measure(
    devices: int = 8, rate: float = 3000.0, seconds: float = 10.0, kinds: Sequence[str] = ()
) -> Result:
    """Flood with each kind of message, at ``rate`` messages per second for ``seconds`` seconds."""
    names = chosen(kinds, KINDS)
    with Bench(devices) as over:
        rows = [flooded(over, kind, rate, seconds) for kind in names]
    targets = {"share": TARGET_SHARE, "lines": TARGET_LINES}
    return {"flood": rows, "rate": rate, "target": targets}
