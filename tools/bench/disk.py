"""Counts what a round writes to a device's disk: bytes and fsyncs.

Two real agents and the real coordinator exchange frames in one process, as in examples/one_round.py, in
rounds of FedOBP with a 4-layer CNN of 582,026 parameters, of which 4 % are sent. Every write and fsync in
the agents' folders is counted by the purpose of the file. The first rounds are left out, because they also
download the bundle and the whole model. Figures are means per device and round.

Each round stores two vectors of the model's size: the error-feedback residual and the device's own model.
Every ninth round also writes the global model; the rounds in between store only the steps that lead to it.
By default, 18 rounds are measured, so the global model is written twice.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tools.bench.harness import BadOption, Figure, Result, at_most, bench
from tools.bench.substitution import substituted

from sedge_cloud import RunConfig, open_folder, start_run
from sedge_cloud.coding import CodecConfig
from sedge_cloud.config import TrainingConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed
from sedge_cloud.figures.numbers import size
from sedge_edge import Examples, Identity, OpenBundles, StartJob, local_context, open_agent, run_job
from sedge_edge.training.job import CODECS
from sedge_export import export
from sedge_export.models import avgcnn
from sedge_protocol.codec import ValueCoding
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello

WARM_UP = 2
# The targets. A round needs these fsyncs: two for each of the journal's four commits (file and folder); one
# for each of three blobs and for one download; two for the blobs' folder, before the commits that name the
# blobs; one for the global model, in a ninth of the rounds. A round writes two vectors of the model's size,
# in a ninth of the rounds a third one, and small files.
TARGET = {"fsyncs": 14.2, "models": 2.2}
SHAPE = (1, 28, 28)


class Meter:
    """Counts writes and fsyncs by the kind of file, while it is switched on."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset the counts."""
        self.written: Counter[str] = Counter()
        self.fsyncs: Counter[str] = Counter()
        self.jobs = self.update_bytes = 0

    @contextmanager
    def on(self) -> Generator[None]:
        """Count within this context."""
        pwrite, fsync = os.pwrite, os.fsync

        def counted_write(descriptor: int, data: bytes | memoryview, offset: int) -> int:
            written = pwrite(descriptor, data, offset)
            self.written[kind(descriptor)] += written
            return written

        def counted_fsync(descriptor: int) -> None:
            self.fsyncs[kind(descriptor)] += 1
            fsync(descriptor)

        with (
            substituted(os, "pwrite", counted_write),
            substituted(os, "fsync", counted_fsync),
        ):
            yield


def kind(descriptor: int) -> str:
    """Classify what an open file is used for."""
    path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
    if path.is_dir():
        return "folders"
    if path.name.startswith("journal"):
        return "journal"
    return "downloads" if path.suffix == ".part" else "blobs"


class Device:
    """An agent that does its jobs immediately, without a thread."""

    def __init__(self, name: str, folder: Path, meter: Meter, seed: int) -> None:
        rng = np.random.default_rng(seed)
        inputs = rng.standard_normal((64, *SHAPE)).astype(np.float32)
        examples = Examples(inputs, rng.integers(0, 10, 64, np.int64))
        hello = Hello(
            bytes(16), "bench", ("onnxruntime",), ("zstd",), CODECS, 64, 64, versions=VERSIONS
        )
        identity = Identity(name, "home", DeviceKeys.of(name.encode().ljust(32)), hello)
        self.meter = meter
        self.agent = open_agent(identity, folder, np.random.default_rng(0), 1)
        self.place = local_context(self.agent, (examples, examples), OpenBundles("onnxruntime", 1))

    def connect(self, now: float) -> list[Send]:
        """Handle a new connection. Returns the frames to send."""
        self.agent.will()
        with self.meter.on():
            return [*self._frames(self.agent.connected(now, max_packet_bytes=400_000), now)]

    def receive(self, topic: str, payload: bytes, now: float) -> list[Send]:
        """Handle a frame. Returns the frames sent in answer."""
        with self.meter.on():
            return [*self._frames(self.agent.receive(topic, payload, now), now)]

    def _frames(self, effects: Sequence[object], now: float) -> Iterator[Send]:
        for effect in effects:
            if isinstance(effect, StartJob):
                outcome = run_job(effect.job, self.place)
                self.meter.jobs += 1
                self.meter.update_bytes += len(self.agent.blobs.read(outcome.update))
                yield from self._frames(self.agent.finished(outcome, now), now)
            elif isinstance(effect, Send):
                yield effect


def played(folder: Path, rounds: int) -> Result:
    """Play the rounds. Returns means per device and round."""
    torch.manual_seed(0)
    model, bundle = avgcnn(), folder / "bundle"
    sample = torch.randn(32, *SHAPE)
    export(model, sample, batch_size=32, name="cnn", num_classes=10, folder=bundle)
    config = RunConfig(
        strategy="fedobp",
        options={"quantile": 0.9995},
        num_rounds=rounds,
        evaluate=False,
        training=TrainingConfig(local_epochs=1, learning_rate=0.01, momentum=0.7),
        codec=CodecConfig(ValueCoding.BF16, 0.04),
    )
    store, now, meter = open_folder(folder / "cloud"), 0.0, Meter()
    start_run(store, "run", bundle, config)
    devices: dict[str, Device] = {}
    for seed, name in enumerate(("left", "right")):
        store.add_device(name, name.encode().ljust(32))
        devices[name] = Device(name, folder / name, meter, seed)
    cloud = Coordinator("home", store, gather_s=0.0, incarnation=1)
    wire: list[object] = [*cloud.load(now)]
    for device in devices.values():
        wire += device.connect(now)
    while cloud.runs["run"].status == "running":
        now += 0.1
        wire += cloud.poll(now, room=16)
        while wire:
            match wire.pop(0):
                case RoundClosed(summary=s) if s.round <= WARM_UP:
                    meter.reset()
                case Send(topic=topic, payload=frame) if topic.endswith("/up"):
                    wire += cloud.receive(topic, frame, now)
                case Send(topic=topic, payload=frame):
                    for name, device in devices.items():
                        if "/blob/" in topic or f"/{name}/" in topic:
                            wire += device.receive(topic, frame, now)
                case _:
                    pass
    store.close()
    counted = meter.jobs
    vector = 4 * sum(p.numel() for p in model.parameters())  # bytes
    written = {name: round(total / counted) for name, total in meter.written.items()}
    return {
        "target": TARGET,
        "rounds": rounds - WARM_UP,
        "parameters": vector // 4,
        "update_bytes": round(meter.update_bytes / counted),
        "written_bytes": sum(written.values()),
        "models": round(meter.written.total() / counted / vector, 2),
        "fsyncs": round(meter.fsyncs.total() / counted, 1),
        "written_by": written,
        "fsyncs_by": {name: round(count / counted, 1) for name, count in meter.fsyncs.items()},
    }


def figures(row: Result) -> list[Figure]:
    """Return the bytes and fsyncs that a round costs a device's disk."""
    what = f"a device's writes in a round of the CNN, for an update of {size(row['update_bytes'])}"
    measured = f"{size(row['written_bytes'])} with {row['fsyncs']:g} fsyncs"
    met = (at_most(most, row[name], name) for name, most in row["target"].items())
    return [Figure(what, measured, tuple(met))]


@bench("Writes to a device's disk", figures)
def measure(rounds: int = 20) -> Result:
    """Play the rounds in a temporary folder."""
    if rounds <= WARM_UP:
        raise BadOption(f"--rounds: found {rounds}, expected more than {WARM_UP}")
    with tempfile.TemporaryDirectory() as temporary:
        return played(Path(temporary), rounds)
