"""A coordinator on the bench: real store, real frames sealed by the devices' own keys, no broker.

``Cloud`` holds a store and the core that works on it; ``say`` hands it a frame of a device and gives
what it answers that device; ``poll`` lets time pass. The bundle's program does nothing.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from tests.cloud.stores import open_store
from tests.fleet import EMPTY_PROGRAM, bundle_of

from sedge_cloud.admin.runs import start_run
from sedge_cloud.clocks import Wall, as_it_is
from sedge_cloud.coding import EXACT, WHOLE
from sedge_cloud.config import RobustConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import CloudEffect
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.named_blobs import NamedBlob
from sedge_cloud.runs.run import StrategyState
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import RunRow
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Note, Send
from sedge_protocol.wire.frame import NO_TRANSFER, VERSIONS, Frame, Kind, open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Get, Hello, Message, Offer, Order, decode_body
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import Manifest, describe, to_bitmap
from sedge_protocol.wire.update import Metrics, Report, encode_update

FLEET = "bench"
RUN = "run"
# The loop's clock at the beginning of a test.
BEGUN = 1000.0
# n = 12,000: a dense float32 vector is 48 kB, more than fits inline, and twelve chunks of 4 KiB.
LAYOUT = Layout.of(
    [("body.weight", (100, 119), Role.PARAMETER), ("head.bias", (100,), Role.PARAMETER)]
)
CONFIG = RunConfig(strategy="fedavg", num_rounds=2, broadcast=WHOLE, codec=EXACT)
# Every device is trusted, so that averages are those that one does by hand.
TRUSTING = RobustConfig(clip=0.0, rule="mean", max_weight=0.0)

M = TypeVar("M", bound=Message)
E = TypeVar("E")


# The columns of the body's weight are channels; the rows are classes.
AXES = Axes((119,), ((FIXED, 0), (FIXED,)))


def make_bundle(
    folder: Path,
    layout: Layout = LAYOUT,
    init: Theta | None = None,
    axes: Axes | None = None,
    dropped: float = 0.0,
    program: bytes = EMPTY_PROGRAM,
) -> Path:
    files = {"gradient": program}
    made = bundle_of(layout, files, 119, 100, name="bench", axes=axes, dropped=dropped)
    bundles.save(folder, made, random_theta(1, layout.size) if init is None else init)
    return folder


def make_width(folder: Path, dropped: float) -> Path:
    """The bundle of the model's form that lacks this share of the channels."""
    axes = AXES.narrowed(dropped)
    return make_bundle(folder, AXES.layout(LAYOUT, axes), axes=axes, dropped=dropped)


def random_theta(seed: int, size: int = LAYOUT.size) -> Theta:
    """A vector (n,) that no codec makes much smaller."""
    return np.random.default_rng(seed).normal(0, 0.1, size).astype(np.float32)


def secret_of(device: str) -> bytes:
    return device.encode().ljust(32, b"\0")


class Device:
    """A device's end of the wire: it seals and opens frames, and does nothing by itself."""

    def __init__(self, name: str, incarnation: int = 1, secret: bytes | None = None) -> None:
        self.name = name
        self.keys = DeviceKeys.of(secret or secret_of(name))
        self.topic = topics.up(FLEET, name)
        self.peer = Peer(self.topic, self.keys.up, self.keys.down, incarnation, 0)

    def read(self, send: Send) -> Message:
        """The message in a frame that was sent to this device."""
        frame = open_frame(send.payload, send.topic, self.keys.down, self.peer.versions)
        return decode_body(frame.kind, frame.body)

    def opens(self, send: Send) -> bool:
        """Whether a frame that was sent to this device is one that it has not had yet."""
        return self.peer.open(send.payload, send.topic) is not None


class Cloud:
    """A store with enrolled devices and, unless ``config`` is None, a run; and the core on it.

    With ``widths``, shares above 0, the run has a bundle for each of them as well.
    """

    def __init__(
        self,
        folder: Path,
        config: RunConfig | None = CONFIG,
        devices: Sequence[str] = ("a", "b"),
        widths: Sequence[float] = (),
        layout: Layout = LAYOUT,
        init: Theta | None = None,
        wall: Wall = as_it_is,
    ) -> None:
        self.folder = folder
        self.now, self.wall = BEGUN, wall
        self.effects: list[object] = []
        self.devices: dict[str, Device] = {}
        self.bundle = make_bundle(folder / "bundle", layout, init, AXES if widths else None)
        narrower = [make_width(folder / f"bundle-{dropped}", dropped) for dropped in widths]
        self.store = open_store(folder / "state")
        for name in devices:
            self.enrol(name)
        if config is not None:
            start_run(self.store, RUN, self.bundle, config, narrower)
        self.core = self._incarnation()

    @classmethod
    def of(cls, store: Store, folder: Path, names: Sequence[str], incarnation: int) -> "Cloud":
        """Devices in a later life of theirs, at a store that is there; ``begin`` comes next."""
        cloud = cls.__new__(cls)
        cloud.folder, cloud.now, cloud.wall, cloud.effects = folder, BEGUN, as_it_is, []
        cloud.devices = {name: Device(name, incarnation) for name in names}
        cloud.store = store
        return cloud

    def begin(self) -> None:
        self.core = self._incarnation()

    def enrol(self, name: str) -> None:
        self.store.add_device(name, secret_of(name))
        self.devices[name] = Device(name)

    def second_store(self) -> Store:
        """The store, opened once more, as by a command while the service runs."""
        return open_store(self.folder / "state")

    def restart(self) -> None:
        """What a kill -9 and a new start leave: the store, and nothing else."""
        self.store.close()
        self.store = self.second_store()
        self.core = self._incarnation()

    def come_back(self, codecs: tuple[str, ...] = ()) -> None:
        """A new start, after which all devices come online again."""
        self.restart()
        self.hello(codecs=codecs)

    def say(self, name: str, message: Message, transfer: bytes = NO_TRANSFER) -> list[Message]:
        """A device sends a message; what it is answered at once."""
        return self.give(name, self.devices[name].peer.seal(message, transfer))

    def give(self, name: str, payload: bytes) -> list[Message]:
        """These bytes arrive on a device's topic; what it is answered at once."""
        return self._keep(self.arrive(topics.up(FLEET, name), payload), name)

    def arrive(self, topic: str, payload: bytes) -> list[CloudEffect]:
        """These bytes arrive on a topic, and no more in this turn; what the core does at once."""
        admitted = self.core.admits(topic, payload, self.now)
        received = self.core.receive(topic, payload, self.now) if admitted else []
        return received + self.core.commit(self.now)

    def chunk(self, name: str, transfer: bytes, index: int, data: bytes) -> list[Message]:
        """A device sends a chunk; what it is answered at once."""
        return self.give(name, self.devices[name].peer.chunk(transfer, index, data).payload)

    def poll(self, seconds: float = 0.0, room: int = 64) -> None:
        """Let time pass and the core do what is due."""
        self.now += seconds
        self._keep(self.core.poll(self.now, room), "")

    def load(self) -> None:
        """Let the core look for changes of the store by other processes."""
        self._keep(self.core.load(self.now), "")

    def notice(self) -> None:
        """Let the core look for changes by other processes, and act on them."""
        self.load()
        self.poll()

    def hello(self, *names: str, codecs: tuple[str, ...] = ()) -> None:
        """These devices come online, and the core gets to work."""
        for name in names or tuple(self.devices):
            self.say(name, a_hello(self.devices[name].name, codecs=codecs))
        self.poll()

    def messages(self, name: str, kind: type[M]) -> list[M]:
        """Every message of one kind that a device has been sent so far."""
        device = self.devices[name]
        sends = [send for send in self.sends(topics.down(FLEET, name)) if not is_chunk(send)]
        found = [device.read(send) for send in sends]
        return [message for message in found if isinstance(message, kind)]

    def sends(self, topic: str) -> list[Send]:
        """Every frame sent on a topic so far."""
        return [e for e in self.effects if isinstance(e, Send) and e.topic == topic]

    def chunks(self, topic: str, key: bytes | None = None) -> list[Frame]:
        """Every chunk sent on a topic so far, unkeyed ones unless there is a key."""
        sends = filter(is_chunk, self.sends(topic))
        return [open_frame(send.payload, topic, key) for send in sends]

    def events(self, kind: type[E]) -> list[E]:
        """Every effect of one kind so far."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def notes(self, level: int) -> list[str]:
        return [note.text for note in self.events(Note) if note.level == level]

    def order(self, name: str) -> Order:
        """The last order that a device has been sent."""
        return self.messages(name, Order)[-1]

    def offer(
        self, name: str, blob: bytes, number: int = 1, order: Order | None = None
    ) -> list[Message]:
        """A device offers an update, whole, for its last order or this one; the answer."""
        order = order or self.order(name)
        manifest = describe(blob)
        offer = Offer(order.run, order.round, manifest, number, blob)
        return self.say(name, offer, manifest.transfer)

    def upload(self, name: str, blob: bytes, chunk_bytes: int = 2**12) -> list[Message]:
        """A device offers an update for its last order and sends every chunk; the last answer."""
        order = self.order(name)
        manifest = describe(blob, chunk_bytes)
        self.say(name, Offer(order.run, order.round, manifest, 1), manifest.transfer)
        found: list[Message] = []
        for index, data in enumerate(pieces(manifest, blob)):
            found = self.chunk(name, manifest.transfer, index, data)
        return found

    def send(self, *names: str) -> list[bytes]:
        """These devices upload large random updates for their last orders. Returns them."""
        blobs = [update(self.order(name), random_theta(i)) for i, name in enumerate(names)]
        for name, blob in zip(names, blobs, strict=True):
            self.upload(name, blob)
        return blobs

    def answer(self, *names: str) -> None:
        """These devices send a good small update for their last order, and the core gets to work."""
        for name in names:
            self.offer(name, small_update(self.order(name), seed=len(name)))
        self.poll()

    def run_row(self) -> RunRow:
        return next(row for row in self.store.runs() if row.run == RUN)

    def state(self) -> StrategyState:
        return msgspec.msgpack.decode(self.run_row().state, type=StrategyState)

    def summaries(self) -> list[Summary]:
        """The closed rounds as the store has them."""
        rows = self.store.rounds(RUN)
        return [msgspec.msgpack.decode(r.summary, type=Summary) for r in rows if r.summary]

    def model(self, blob: bytes) -> Theta:
        """A stored vector (n,), decoded."""
        return decode(self.store.blobs.read(blob), LAYOUT.size).dense()

    def _incarnation(self) -> Coordinator:
        core = Coordinator(FLEET, self.store, 1.0, 1, wall=self.wall)
        self.core = core
        self._keep([*core.load(self.now), *core.connected(self.now)], "")
        return core

    def _keep(self, effects: Sequence[object], name: str) -> list[Message]:
        self.effects += effects
        down = topics.down(FLEET, name)
        return [
            self.devices[name].read(effect)
            for effect in effects
            if isinstance(effect, Send) and effect.topic == down and not is_chunk(effect)
        ]


def began(
    folder: Path,
    devices: Sequence[str] = "ab",
    config: RunConfig = CONFIG,
    codecs: tuple[str, ...] = (),
    **values: object,
) -> Cloud:
    """A coordinator whose devices are online; its run has this configuration but for these values."""
    cloud = Cloud(folder, msgspec.structs.replace(config, **values), devices)
    cloud.hello(codecs=codecs)
    return cloud


def served(cloud: Cloud, name: str) -> list[NamedBlob]:
    """What a device may fetch in the open round."""
    builder = cloud.core.ingest.open.order_builder
    return list(builder.served(cloud.core.runs[RUN], cloud.core.open[RUN], name))


def fetch_model(cloud: Cloud, *names: str) -> None:
    """These devices ask for every chunk of the whole model in their last order, and get it."""
    for name in names:
        order = cloud.order(name)
        missing = to_bitmap(range(order.model.count), order.model.count)
        cloud.say(name, Get(order.run, order.round, missing), order.model.transfer)
    cloud.poll(1.0)


def second_round(folder: Path) -> Cloud:
    """A coordinator of four rounds in its second, with a's update."""
    cloud = began(folder, num_rounds=4, evaluate=False)
    cloud.send("a", "b")
    cloud.poll()
    cloud.offer("a", small_update(cloud.order("a")))
    return cloud


def all_rows(store: Store, tables: Iterable[str]) -> dict[str, list[tuple[object, ...]]]:
    """Every row of these tables, and that each blob that one names is there."""
    store.check()
    for sha256 in Garbage(store).named_blobs():
        store.update_blob(sha256)
    return {
        name: sorted(store._db.execute(f"SELECT * FROM {name}").fetchall(), key=str)
        for name in tables
    }


def is_chunk(send: Send) -> bool:
    """Whether this is a chunk's frame (WIRE section 3: the kind is the fourth byte)."""
    return send.payload[3] == Kind.CHUNK


class Faults:
    """Counts a cloud's calls to its store and blobs; the ``at``-th one meets ``error``.

    The error comes before the call does anything or, with ``after``, when all is done but the answer.
    """

    def __init__(self, cloud: Cloud, at: int, error: BaseException, after: bool) -> None:
        self.calls = 0
        self.struck = ""
        self._at, self._error, self._after = at, error, after
        for owner in (cloud.store, cloud.store.blobs):
            for name in dir(owner):
                method = getattr(owner, name)
                if callable(method) and not name.startswith("_") and name != "close":
                    setattr(owner, name, self._wrapped(name, method))

    def _wrapped(self, name: str, method: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            self.calls += 1
            strikes = self.calls == self._at
            if strikes:
                self.struck = name
            if strikes and not self._after:
                raise self._error
            found = method(*args, **options)
            if strikes:
                raise self._error
            return found

        return call


def a_hello(
    nonce: str = "",
    backends: tuple[str, ...] = ("onnxruntime",),
    compressions: tuple[str, ...] = ("zstd",),
    codecs: tuple[str, ...] = (),
    **changes: object,
) -> Hello:
    """A hello, with other values in these fields; ``nonce`` is padded."""
    padded = nonce.encode().ljust(16, b".")
    plain = Hello(padded, "bench", backends, compressions, codecs, 10, 10, versions=VERSIONS)
    return msgspec.structs.replace(plain, **changes)


def report_for(order: Order, layout: Layout = LAYOUT, **changes: object) -> Report:
    """A report that fits an order, but for these fields."""
    metrics = Metrics(0.5, 0.25, 10)
    fitting = Report(
        run=order.run,
        round=order.round,
        task=order.task,
        layout_hash=layout.hash,
        model_hash=order.model_hash,
        patch_hash=order.patch_hash,
        num_examples=10,
        before=metrics,
        after=msgspec.structs.replace(metrics, metric=0.75),
        train_loss=1.5,
        steps=3,
        seconds=2.0,
    )
    return msgspec.structs.replace(fitting, **changes)


def update(order: Order, delta: Theta, values: ValueCoding = ValueCoding.FP32) -> bytes:
    """The update blob of a device whose vector changed by delta (n,)."""
    vector = SparseVector(delta.size, None, delta)
    payload = encode(vector, values, Compression.ZSTD) if order.work.upload else b""
    return encode_update(report_for(order), payload if order.task == "train" else b"")


def small_update(order: Order, seed: int = 0, **changes: Any) -> bytes:
    """An update of ten elements, so small that it travels inside its offer; ``changes`` of its report."""
    indices = np.arange(seed, seed + 10, dtype=np.uint32)
    values = np.full(10, 0.5, np.float32)
    payload = encode(SparseVector(LAYOUT.size, indices, values)) if order.work.upload else b""
    report = report_for(order, **changes)
    return encode_update(report, payload if order.task == "train" else b"")


def pieces(manifest: Manifest, blob: bytes) -> list[bytes]:
    """The chunks of a blob as its manifest cuts it."""
    spans = (manifest.span(index) for index in range(manifest.count))
    return [blob[offset : offset + length] for offset, length in spans]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextlib.contextmanager
def as_nobody() -> Generator[Path]:
    """A folder and, where the tests run as root, no rights beyond those of a common user."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.getuid() != 0:
            yield folder
            return
        os.chown(folder, 65534, 65534)
        os.setresuid(65534, 65534, 0)
        try:
            yield folder
        finally:
            os.setresuid(0, 0, 0)
