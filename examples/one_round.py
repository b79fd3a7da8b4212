"""One FedOBP round in one process, without a broker: the two cores hand each other real frames.

python examples/one_round.py
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import BroadcastConfig, RunConfig, TrainingConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import RoundClosed
from sedge_cloud.store.database import Store
from sedge_edge.agent import Agent, Identity, Work
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.runtime import Programs
from sedge_edge.training.examples import Examples, split
from sedge_edge.training.job import Workplace, perform
from sedge_emulate.data import digits
from sedge_export import export
from sedge_export.models import mlp
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello

PROGRAMS = Programs("auto", threads=1)


def make_device(name: str, secret: bytes, folder: Path, labels: range) -> tuple[Agent, Workplace]:
    """A device that knows only the digits in ``labels``."""
    dataset = digits()
    mine = np.isin(dataset.targets, labels)
    train, test = split(Examples(dataset.inputs[mine], dataset.targets[mine]), 0.25, seed=0)
    hello = Hello(bytes(16), "example", ("onnxruntime",), ("zstd",), num_train=len(train.targets))
    identity = Identity(name, "home", DeviceKeys.of(secret), hello)
    blobs, journal = BlobFolder(folder), Journal(folder / "journal", AgentState, SCHEMA)
    agent = Agent(identity, blobs, journal, np.random.default_rng(0), incarnation=1)
    place = Workplace(
        blobs,
        agent.vectors,
        train,
        test,
        lambda sha256: PROGRAMS.open(blobs, sha256),
        lambda: False,
        time.monotonic,
    )
    return agent, place


def act(agent: Agent, place: Workplace, effects: Sequence[object], now: float) -> Iterator[Send]:
    """What an agent sends; work is done on the spot, where a real device has a worker thread."""
    for effect in effects:
        if isinstance(effect, Work):
            yield from act(agent, place, agent.finished(perform(effect.job, place), now), now)
        elif isinstance(effect, Send):
            yield effect


def main(folder: Path) -> None:
    """Export a model, enrol two devices, and pass frames on until the run has ended."""
    model, sample = mlp(64, 32, 10), torch.randn(16, 1, 8, 8)
    export(model, sample, batch_size=16, name="digits", num_classes=10, folder=folder / "bundle")
    store, options = Store(folder / "cloud"), {"quantile": 0.99}
    training = TrainingConfig(local_epochs=5, learning_rate=0.05, momentum=0.7)
    whole = BroadcastConfig(whole=True)  # what a coded one leaves out would come in later rounds
    config = RunConfig(
        strategy="fedobp", options=options, num_rounds=1, training=training, broadcast=whole
    )
    start_run(store, "run", folder / "bundle", config)
    devices: dict[str, tuple[Agent, Workplace]] = {}
    for name, labels in (("left", range(5)), ("right", range(5, 10))):
        secret = name.encode().ljust(32)
        store.add_device(name, secret)
        devices[name] = make_device(name, secret, folder / name, labels)
    cloud = Coordinator("home", store, gather_s=0.0, incarnation=1)
    now, wire = 0.0, deque[object](cloud.load(0.0))
    for agent, place in devices.values():
        agent.will()
        wire += act(agent, place, agent.connected(now, max_packet_bytes=400_000), now)
    while cloud.runs["run"].status == "running":
        now += 0.1
        wire += cloud.poll(now, room=16)
        while wire:
            effect = wire.popleft()
            if isinstance(effect, RoundClosed):
                s = effect.summary
                print(f"{s.task}: accuracy {s.before:.2f} before, {s.after:.2f} after training")
                print(f"  {len(s.devices)} updates of {s.update_bytes} bytes in all")
            elif isinstance(effect, Send) and effect.topic.endswith("/up"):
                wire += cloud.receive(effect.topic, effect.payload, now)
            elif isinstance(effect, Send):
                for name, (agent, place) in devices.items():
                    if "/blob/" in effect.topic or f"/{name}/" in effect.topic:
                        wire += act(
                            agent, place, agent.receive(effect.topic, effect.payload, now), now
                        )
    store.close()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(temporary))
