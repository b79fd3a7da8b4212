"""Measures the CPU time that a device's update costs the coordinator.

    python -m tools.bench coordinator [--devices 100] [--rounds 4] [--strategy fedavg] [--folder /tmp]
    python -m tools.bench coordinator --group-commit

A real coordinator with a real store receives the authenticated frames of many devices from a caller in the
same thread: an offer, then the chunks of a large update. This covers everything that the coordinator does
for an update, except for the link to the broker: frame and MAC, chunks to disk, decoding, validation,
receipt, and the device's share of closing the round. Updates have the largest elements of a delta, in bf16:
"random" (normal values without structure) and "rows" (rows of 1024 with very different scales, like a
hidden layer's), both with a durable store and without fsync. Planning the next round is reported
separately. Milliseconds per update are this process's CPU time (one thread, kernel included), as the median
of all rounds but the first. ``received_per_s`` is updates per second of wall time, from the first frame to
the last receipt, if each turn of the event loop processes ``--turn`` devices. The last line is JSON.

With ``--group-commit``: updates per second of wall time, with fsync, when 1, 8 or 32 updates share a
transaction, on SQLite and on a PostgreSQL server started for this; ``times`` is the ratio to one update per
transaction, and ``processor_ms`` is an update's CPU time. The updates in a transaction share one flush, so
the gain is larger on slower disks.
"""

import argparse
import hashlib
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import WHOLE, CodecConfig
from sedge_cloud.config import CloudConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed
from sedge_cloud.ingest import uploads as inbox
from sedge_cloud.rounds import cohort as cohorts
from sedge_cloud.rounds import scheduler
from sedge_cloud.store.cache import Memory
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder, open_store
from sedge_cloud.store.settings import StoreConfig
from sedge_protocol.codec import ValueCoding, encode, top_k
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import VERSIONS, open_frame
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello, Offer, Order, decode_body
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES, describe
from sedge_protocol.wire.update import Metrics, Report, encode_update

FLEET = "bench"
RUN = "run"
EMPTY_PROGRAM = bytes.fromhex("08093a0312016742040a001014")  # an ONNX model without nodes
SHARES = (0.5, 0.04)
# With --group-commit: the numbers of updates that arrive in each turn of the event loop.
TURNS = (1, 8, 32)
PLAN = "plan and order the next round"
# How many distinct deltas the updates are made from; more would only take longer to prepare.
DELTAS = 4
Row = dict[str, str | int | float]
Frames = list[bytes]


def synthetic_delta(kind: str, size: int, seed: int) -> Theta:
    """Return a random delta (n,), with or without structure."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 1e-3, size).astype(np.float32)
    if kind == "random":
        return noise
    scales = np.random.default_rng(0).lognormal(0, 1, -(-size // 1024)).astype(np.float32)
    return noise * np.repeat(scales, 1024)[:size]


def make_bundle(folder: Path, size: int) -> Path:
    """Make a bundle whose program does nothing."""
    layout = Layout.of([("theta", (size,), Role.PARAMETER)])
    sha256 = hashlib.sha256(EMPTY_PROGRAM).hexdigest()
    manifest = bundles.BundleManifest(
        format=bundles.FORMAT,
        name="bench",
        layout=layout,
        batch_size=8,
        input=bundles.TensorSpec("float32", (10,)),
        target=bundles.TensorSpec("int64", ()),
        num_classes=10,
        uses_batch_statistics=False,
        programs=(bundles.Program("gradient", "onnxruntime", "gradient.onnx", sha256),),
        verification=bundles.Verification(0.0, 0.0, 1e-4, {}),
    )
    theta = np.random.default_rng(1).normal(0, 0.05, size).astype(np.float32)
    bundles.save(folder, bundles.Bundle(manifest, {"gradient.onnx": EMPTY_PROGRAM}), theta)
    return folder


def update_for(order: Order, layout: Layout, payload: bytes, number: int) -> bytes:
    """Return an update that matches its order."""
    metrics = Metrics(0.5, 0.25, 10)
    report = Report(
        run=order.run, round=order.round, task=order.task, layout_hash=layout.hash,
        model_hash=order.model_hash, patch_hash=order.patch_hash, num_examples=100 + number,
        before=metrics, after=metrics, train_loss=1.5, steps=3, seconds=float(number),
    )  # fmt: skip
    return encode_update(report, payload)


class Stages:
    """Measures CPU seconds by stage. Time in a nested stage counts only for the inner stage."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._open: list[str] = []
        self._since = 0.0

    def watch(self, owner: object, method: str, stage: str) -> None:
        """Attribute the time of all later calls of a method to a stage."""
        call: Callable[..., object] = getattr(owner, method)

        def timed(*args: object, **kwargs: object) -> object:
            self._switch()
            self._open.append(stage)
            try:
                return call(*args, **kwargs)
            finally:
                self._switch()
                self._open.pop()

        setattr(owner, method, timed)

    def _switch(self) -> None:
        now = time.process_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


class Device:
    """A device that prepares its frames in advance."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys = DeviceKeys.of(name.encode().ljust(32, b"\0"))
        self.topic = topics.up(FLEET, name)
        self.peer = Peer(self.topic, self.keys.up, self.keys.down, 1, 0)

    def order(self, effects: list[object]) -> Order:
        """Return the last order for this device in ``effects``."""
        mine = [
            e for e in effects if isinstance(e, Send) and e.topic == topics.down(FLEET, self.name)
        ]
        frames = [open_frame(send.payload, send.topic, self.keys.down) for send in mine]
        messages = [decode_body(frame.kind, frame.body) for frame in frames]
        return next(message for message in reversed(messages) if isinstance(message, Order))

    def frames(self, order: Order, layout: Layout, payload: bytes, number: int) -> Frames:
        """Return an update's frames: the offer and, unless it contains the whole update, the chunks."""
        blob = update_for(order, layout, payload, number)
        manifest = describe(blob)
        whole = blob if len(blob) <= MAX_INLINE_BYTES else b""
        offer = Offer(order.run, order.round, manifest, 1, whole)
        frames = [self.peer.seal(offer, manifest.transfer)]
        if not whole:
            for index in range(manifest.count):
                offset, length = manifest.span(index)
                chunk = blob[offset : offset + length]
                frames.append(self.peer.chunk(manifest.transfer, index, chunk).payload)
        return frames


class Online:
    """A coordinator whose devices are online and whose first round is open."""

    def __init__(
        self, folder: Path, store: Store, devices: int, size: int, config: RunConfig,
        memory: Memory | None = None,
    ) -> None:  # fmt: skip
        self.now = 0.0
        self.devices = [Device(f"d{i:05}") for i in range(devices)]
        for device in self.devices:
            store.add_device(device.name, device.name.encode().ljust(32, b"\0"))
        config = msgspec.structs.replace(config, evaluate=False, min_available_devices=devices)
        start_run(store, RUN, make_bundle(folder / "bundle", size), config)
        self.core = Coordinator(FLEET, store, 0.0, 1, memory=memory)
        self.effects: list[object] = [*self.core.load(0.0), *self.core.connected(0.0)]
        for device in self.devices:
            self.hello(device)
        self.poll()
        self.layout = self.core.runs[RUN].manifest.layout

    def hello(self, device: Device) -> None:
        """Pass the coordinator a device's hello."""
        hello = Hello(bytes(16), "bench", ("onnxruntime",), ("zstd",), versions=VERSIONS)
        self.effects += self.core.receive(device.topic, device.peer.seal(hello), self.now)

    def poll(self) -> None:
        """Let the coordinator do everything that is due."""
        self.effects = [*self.core.poll(self.now, 64)]


class Bench(Online):
    """Runs rounds and measures their stages."""

    def __init__(self, folder: Path, args: argparse.Namespace, store: Store, turn: int) -> None:
        config = RunConfig(
            strategy=args.strategy,
            num_rounds=args.rounds + 1,
            codec=CodecConfig(values=ValueCoding.BF16, fraction=0.5),
            broadcast=WHOLE,
        )
        super().__init__(folder, store, args.devices, args.size, config)
        self.turn = turn
        # For each round, wall time and CPU time from the first frame to the last receipt.
        self.received_s: list[float] = []
        self.processor_s: list[float] = []
        self.stages = Stages()
        self._watch(store)

    def _watch(self, store: Store) -> None:
        watch = self.stages.watch
        for method in ("open_part", "write_part", "take_part", "write", "read", "has"):
            watch(store.parts if method.endswith("_part") else store.blobs, method, "blobs on disk")
        watch(store, "commit_receipts", "receipt in the database")
        for method in ("update", "order", "round"):
            watch(store, method, "rows read")
        for device in self.devices:
            watch(self.core.devices[device.name].peer, "open", "frames and MACs")
        watch(inbox, "judge", "decode and validate")
        watch(self.core, "receive", "all else of receiving")
        watch(self.core.garbage, "collect", "delete what nothing names")
        watch(scheduler, "aggregate_and_close", "aggregate and close")
        watch(cohorts, "plan_round", PLAN)
        watch(store, "open_round", PLAN)
        watch(self.core, "poll", PLAN)

    def received_per_s(self) -> int:
        """Return updates per second, as the median of all rounds but the first."""
        return round(len(self.devices) / median(self.received_s[1:]))

    def play(self, payloads: list[bytes]) -> dict[str, float]:
        """Play one round. Returns CPU milliseconds per update, by stage."""
        batches = [
            device.frames(device.order(self.effects), self.layout, payloads[i % DELTAS], i)
            for i, device in enumerate(self.devices)
        ]
        self.effects = []
        self.stages.seconds.clear()
        began, used = time.perf_counter(), time.process_time()
        for number, (device, frames) in enumerate(zip(self.devices, batches, strict=True), 1):
            for frame in frames:
                if self.core.admits(device.topic, frame, self.now):
                    self.core.receive(device.topic, frame, self.now)
            if number % self.turn == 0 or number == len(self.devices):
                self.core.commit(self.now)
        self.received_s.append(time.perf_counter() - began)
        self.processor_s.append(time.process_time() - used)
        self.effects += self.core.poll(self.now, 64)
        (summary,) = [e.summary for e in self.effects if isinstance(e, RoundClosed)]
        assert len(summary.devices) == len(self.devices) and not summary.failure
        scale = 1000 / len(self.devices)
        return {stage: seconds * scale for stage, seconds in self.stages.seconds.items()}


def payloads_of(size: int, share: float, kind: str) -> list[bytes]:
    """Return coded updates."""
    count = max(1, round(share * size))
    deltas = (synthetic_delta(kind, size, seed) for seed in range(DELTAS))
    return [encode(top_k(delta, count), ValueCoding.BF16) for delta in deltas]


def measure_turns(args: argparse.Namespace) -> Iterator[Row]:
    """Yield updates per second, with fsync, for several numbers of updates per transaction.

    Measures both SQLite and PostgreSQL.
    """
    from tools.bench.parts.servers import PostgresServer

    payloads, share = payloads_of(args.size, SHARES[-1], "rows"), SHARES[-1]
    with closing(PostgresServer(fsync=True)) as server:
        for engine in ("SQLite", "PostgreSQL"):
            alone = 0
            for turn in TURNS:
                with tempfile.TemporaryDirectory(dir=args.folder) as name:
                    config = CloudConfig(FLEET, state_dir=f"{name}/state")
                    if engine == "PostgreSQL":
                        server.execute(f"CREATE DATABASE turn_{turn}")
                        url = StoreConfig(url=server.url(f"turn_{turn}"))
                        config = msgspec.structs.replace(config, store=url)
                    with closing(open_store(config)) as store:
                        bench = Bench(Path(name), args, store, turn)
                        for _ in range(args.rounds):
                            bench.play(payloads)
                received = bench.received_per_s()
                alone = alone or received
                yield {
                    "engine": engine, "share": share, "bytes": len(payloads[0]), "turn": turn,
                    "received_per_s": received, "times": round(received / alone, 2),
                    "processor_ms": round(1000 * median(bench.processor_s[1:]) / args.devices, 2),
                }  # fmt: skip


def measure(args: argparse.Namespace, share: float, kind: str, durable: bool) -> Row:
    """Return the medians over all rounds but the first."""
    payloads = payloads_of(args.size, share, kind)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        with closing(open_folder(folder / "state", durable=durable)) as store:
            bench = Bench(folder, args, store, args.turn)
            played = [bench.play(payloads) for _ in range(args.rounds)][1:]
        received = bench.received_per_s()
    stages = {stage: median(times.get(stage, 0.0) for times in played) for stage in played[-1]}
    plan = stages.pop(PLAN)
    total = sum(stages.values())
    return {
        "delta": kind,
        "share": share,
        "durable": durable,
        "bytes": len(payloads[0]),
        **{stage: round(stages[stage], 3) for stage in sorted(stages)},
        "all_ms": round(total, 3),
        "updates_per_s": round(1000 / total),
        "received_per_s": received,
        PLAN: round(plan, 3),
    }


def main() -> None:
    """Measure, and print the rows, then JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--size", type=int, default=582_026)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument(
        "--turn", type=int, default=32, help="devices that send in each turn of the loop"
    )
    parser.add_argument("--strategy", default="fedavg")
    parser.add_argument("--folder", type=Path, help="folder of the stores (default: the system's)")
    parser.add_argument(
        "--group-commit", action="store_true", help="measure only by turns, with fsync"
    )
    args = parser.parse_args()
    rows: list[Row] = []
    if args.group_commit:
        for row in measure_turns(args):
            rows.append(row)
            print(*(f"{key} {value}" for key, value in row.items()), sep=", ", flush=True)
        print(json.dumps({"size": args.size, "devices": args.devices, "turns": rows}))
        return
    for share in SHARES:
        for kind in ("random", "rows"):
            for durable in (True, False):
                rows.append(measure(args, share, kind, durable))
                print(*(f"{key} {value}" for key, value in rows[-1].items()), sep=", ", flush=True)
    print(json.dumps({"size": args.size, "devices": args.devices, "rows": rows}))


if __name__ == "__main__":
    main()
