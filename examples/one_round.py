"""Runs one FedOBP round in one process.

The coordinator's and the devices' cores exchange real frames, without a broker.

python examples/one_round.py
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from sedge_cloud import RunConfig, open_folder, start_run
from sedge_cloud.coding import EXACT, WHOLE
from sedge_cloud.config import TrainingConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed
from sedge_edge import (
    Examples,
    Identity,
    OpenBundles,
    StartJob,
    local_context,
    open_agent,
    run_job,
    split,
)
from sedge_emulate.data.datasets import digits
from sedge_export import export
from sedge_export.models import mlp
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello

TRAINING = TrainingConfig(local_epochs=5, learning_rate=0.05, momentum=0.7)
OPTIONS = {"quantile": 0.99}
# Send all elements in the single round; by default, a broadcast leaves some for later rounds.
RUN = RunConfig(
    strategy="fedobp",
    options=OPTIONS,
    num_rounds=1,
    training=TRAINING,
    broadcast=WHOLE,
    codec=EXACT,
)


class Device:
    """A device that has only the digits in ``labels``. It does its work synchronously, without a thread."""

    def __init__(self, name: str, secret: bytes, folder: Path, labels: range) -> None:
        data = digits()
        mine = np.isin(data.targets, labels)
        examples = split(Examples(data.inputs[mine], data.targets[mine]), 0.25, seed=0)
        hello = Hello(
            bytes(16), "example", ("onnxruntime",), ("zstd",), (), len(examples[0].targets)
        )
        identity = Identity(name, "home", DeviceKeys.of(secret), hello)
        self.agent = open_agent(identity, folder, np.random.default_rng(0), 1)
        self.place = local_context(self.agent, examples, OpenBundles("auto", threads=1))

    def frames(self, effects: Sequence[object], now: float) -> Iterator[Send]:
        """Yield the frames that the agent sends. Jobs that it requests run immediately."""
        for effect in effects:
            if isinstance(effect, StartJob):
                outcome = run_job(effect.job, self.place)
                yield from self.frames(self.agent.finished(outcome, now), now)
            elif isinstance(effect, Send):
                yield effect


def main(folder: Path) -> None:
    """Export a model, enrol two devices, and deliver frames until the run has ended."""
    model, sample, bundle = mlp(64, 32, 10), torch.randn(16, 1, 8, 8), folder / "bundle"
    export(model, sample, batch_size=16, name="digits", num_classes=10, folder=bundle)
    store, now, devices = open_folder(folder / "cloud"), 0.0, dict[str, Device]()
    start_run(store, "run", bundle, RUN)
    for name, labels in (("left", range(5)), ("right", range(5, 10))):
        store.add_device(name, name.encode().ljust(32))
        devices[name] = Device(name, name.encode().ljust(32), folder / name, labels)
    cloud = Coordinator("home", store, gather_s=0.0, incarnation=1)
    wire: list[object] = [*cloud.load(now)]
    for device in devices.values():
        device.agent.will()
        wire += device.frames(device.agent.connected(now, max_packet_bytes=400_000), now)
    while cloud.runs["run"].status == "running":
        now += 0.1
        wire += cloud.poll(now, room=16)
        while wire:
            match wire.pop(0):
                case RoundClosed(summary=s):
                    print(f"{s.task}: accuracy {s.before:.2f} before, {s.after:.2f} after training")
                    print(f"  {len(s.devices)} updates of {s.update_bytes} bytes in all")
                case Send(topic=topic, payload=frame) if topic.endswith("/up"):
                    wire += cloud.receive(topic, frame, now)
                case Send(topic=topic, payload=frame):
                    for name, device in devices.items():
                        if "/blob/" in topic or f"/{name}/" in topic:
                            wire += device.frames(device.agent.receive(topic, frame, now), now)
                case _:
                    pass
    store.close()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
