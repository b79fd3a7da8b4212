"""Three real agents, a real coordinator and a real broker that do one run after another.

``Course`` is what a run has left behind: in the coordinator's store, and in the devices' journals.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from tools.bench.parts.real_fleet import RealFleet, wait_until
from torch import nn

from sedge_cloud.rounds.lifecycle import FINISHED, RUNNING
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import Summary
from sedge_cloud.store.rows import OrderRow
from sedge_cloud.strategy import Context
from sedge_edge.backends import open_trainer
from sedge_edge.backends.guided import GuidedLoss
from sedge_edge.config import load_config
from sedge_edge.data import load_data
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.rounds.run_state import RunState
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.training.trainer import Trainer
from sedge_export import export
from sedge_protocol.codec import SparseVector
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.bundle import unpack
from sedge_protocol.wire.update import Metrics, Report

# What each device's machine says of its memory, in MB.
MEMORY_MB = {"pi-1": 4000, "pi-2": 1200, "pi-3": 400}
DEVICES = tuple(MEMORY_MB)

RUN = """
strategy = "{strategy}"
num_rounds = {rounds}
min_train_devices = 3
min_available_devices = 3
min_updates = 3
deadline_s = 300
options = {{ {options} }}
# Every device is trusted, however small its share.
robust = {{ clip = 0, rule = "mean", max_weight = 0 }}
{more}
"""


def small_network(hidden: int) -> nn.Module:
    """Convolution, batch normalisation and two linear layers, for (1, 8, 8) and ten classes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )


def make_forms(
    folder: Path, hidden: int, shares: Sequence[float] = (0.0,), guided: GuidedLoss | None = None
) -> list[Path]:
    made: list[Path] = []
    for dropped in shares:
        sample, place = torch.randn(16, 1, 8, 8), folder / f"dropped-{dropped:g}"
        network = small_network(hidden)
        export(
            network,
            sample,
            batch_size=16,
            name="digits",
            num_classes=10,
            folder=place,
            dropped=dropped,
            guided=guided,
        )
        made.append(place)
    return made


@dataclass(frozen=True)
class Kept:
    """What a device has kept of a run: its journal's entry, its own model (m,), its part of a mixture."""

    entry: RunState
    model: Theta | None
    part: Theta | None


class Course:
    """A run that is over. All vectors are (n,), or (m,) in the width of their device."""

    def __init__(self, folder: Path, store: Store, name: str) -> None:
        self._folder, self._store = folder, store
        self._trainers: dict[int, Trainer] = {}
        self.run_store = RunStore(store)
        self.run = Run(next(row for row in store.runs() if row.run == name), store)
        rows = store.rounds(name)
        self.summaries = [
            msgspec.msgpack.decode(row.summary or b"", type=Summary) for row in rows if row.summary
        ]
        self.training_rounds = self.run.config.num_rounds
        # At once: a device keeps what it has of its last few runs only.
        self.kept = {device: self._kept(device) for device in DEVICES}

    @property
    def layout(self) -> Layout:
        return self.run.manifest.layout

    @cached_property
    def context(self) -> Context:
        """What the strategy would be given next."""
        return self.run_store.context(self.run)

    @cached_property
    def globals(self) -> list[Theta]:
        """The global model at the beginning of each round of training, and the last one."""
        rows = self._store.rounds(self.run.name)[: self.training_rounds]
        begun = [self.run_store.theta(row.model, self.layout.size) for row in rows]
        return [*begun, self.context.theta]

    def orders(self, number: int) -> dict[str, OrderRow]:
        """A round's orders by device; those of the last round say what a next one would start from."""
        return {order.device: order for order in self._store.orders(self.run.name, number)}

    @property
    def last_orders(self) -> dict[str, OrderRow]:
        """The orders of the evaluation, planned from what the last training left."""
        return self.orders(self.training_rounds + 1)

    def reports(self, number: int) -> dict[str, Report]:
        """A round's reports by device, of the updates that count."""
        rows = self._store.received(self.run.name, number).counted
        return {row.device: msgspec.msgpack.decode(row.report, type=Report) for row in rows}

    def model(self, device: str) -> Theta:
        model = self.kept[device].model
        assert model is not None
        return model

    def start(self, device: str) -> tuple[NDArray[np.uint32], NDArray[np.float32]]:
        """Indices and values of the patch in the device's last order; there must be one."""
        patch = self.patch(self.last_orders[device])
        assert patch is not None and patch.indices is not None
        return patch.indices, patch.values

    def patch(self, order: OrderRow) -> SparseVector | None:
        return self.run_store.patch(order, self.run.layout(order.width).size)

    def evaluate(self, device: str, theta: Theta) -> Metrics:
        """What a model (m,) is worth on a device's test examples."""
        width = self.last_orders[device].width
        if width not in self._trainers:
            packed = self._store.blobs.read(self.run.bundles[width].sha256)
            self._trainers[width] = open_trainer(unpack(packed), "onnxruntime", threads=1)
        home = self._folder / device
        _, test = load_data(load_config(home / "edge.toml").data, home)
        return self._trainers[width].evaluate(theta, test)

    def _kept(self, device: str) -> Kept:
        home = self._folder / device / "state"
        found = Journal(home / "journal", AgentState, SCHEMA).load()
        assert found is not None
        entry = found.runs[self.run.name]
        layout = self.run.layout(self.last_orders[device].width)
        vectors = FolderVectors(BlobFolder(home))
        model, part = (
            None if name is None else vectors.read(name, layout)
            for name in (entry.kept.model, entry.kept.part)
        )
        return Kept(entry, model, part)


class Trio:
    """The fleet; ``examples`` are each device's."""

    def __init__(self, folder: Path, examples: Sequence[int]) -> None:
        self.fleet = RealFleet(folder)
        config = folder / "cloud.toml"
        # Every blob of a round is asked for by all three at once, or by one device alone.
        config.write_text(f"gather_ms = 50\n{config.read_text()}")
        self.fleet.start_cloud()
        for seed, (device, count) in enumerate(zip(DEVICES, examples, strict=True)):
            self.fleet.add_device(device, seed, examples=count)
            self.start(device)
        self.store = open_folder(folder / "state")

    def close(self) -> None:
        self.fleet.close()
        self.store.close()

    def start(self, name: str) -> None:
        """Start a device's agent or, by the name "cloud", the coordinator."""
        if name == "cloud":
            self.fleet.start_cloud()
        else:
            self.fleet.start_agent(name, MEMORY_MB[name])

    def begin(self, name: str, bundles: Sequence[Path], text: str) -> None:
        self.fleet.start_run(bundles[0], text, name, bundles[1:])

    def end(self, name: str) -> Course:
        """Wait for the end of a run; it must be a good one."""
        wait_until(lambda: self.status(name) != RUNNING, 90, f"run {name} ends")
        assert self.status(name) == FINISHED, self.fleet.log("cloud")[-2000:]
        return Course(self.fleet.folder, self.store, name)

    def status(self, name: str) -> str:
        return next(row.status for row in self.store.runs() if row.run == name)
