"""The emulated devices: their share of the data, their folders, and the real agent in each."""

import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sedge_cloud.store import Store
from sedge_edge.agent import Agent, Identity
from sedge_edge.data import Examples
from sedge_edge.runtime import Programs, Runtime
from sedge_edge.state import SCHEMA, AgentState
from sedge_emulate.config import DataConfig
from sedge_emulate.data import Dataset, load
from sedge_emulate.split import dirichlet, pathological, subsample, train_test
from sedge_protocol.blobs import BlobFolder
from sedge_protocol.journal import Journal
from sedge_protocol.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.messages import Hello
from sedge_protocol.mqtt import BrokerSettings


@dataclass(frozen=True)
class Share:
    """What one device holds."""

    device: str
    train: Examples
    test: Examples

    @property
    def num_classes(self) -> int:
        """How many labels occur on the device."""
        return len(np.unique(np.concatenate([self.train.targets, self.test.targets])))


def share_out(
    config: DataConfig, devices: int, seed: int, base: Path
) -> tuple[Dataset, list[Share]]:
    """The data set and every device's part of it; the same seed gives the same parts.

    A source of the user's own is looked up in ``base``.
    """
    rng = np.random.default_rng(seed)
    dataset = load(config.dataset, base=base)
    if config.examples:
        dataset = subsample(dataset, config.examples, rng)
    if config.split == "dirichlet":
        parts = dirichlet(dataset.targets, devices, config.alpha, rng, config.min_examples)
    else:
        parts = pathological(dataset.targets, devices, config.classes_per_device, rng)
    width = len(str(devices - 1))
    shares: list[Share] = []
    for number, part in enumerate(parts):
        train, test = (
            Examples(dataset.inputs[indices], dataset.targets[indices])
            for indices in train_test(part, config.test_fraction, rng)
        )
        shares.append(Share(f"device-{number:0{width}d}", train, test))
    return dataset, shares


@dataclass(frozen=True)
class Site:
    """Where the devices of one run live and what they share."""

    fleet: str
    folder: Path
    url: str
    programs: Programs
    pool: Executor
    wake: Callable[[], None]


def enrol(share: Share, site: Site, store: Store, seed: int) -> Runtime:
    """Enrol a device with the coordinator's store and bring it to life."""
    secret = os.urandom(SECRET_BYTES)
    store.add_device(share.device, secret)
    hello = Hello(
        bytes(16), "emulated", ("onnxruntime",), ("zstd", "zlib", "none"),
        len(share.train.targets), len(share.test.targets),
    )  # fmt: skip
    identity = Identity(share.device, site.fleet, DeviceKeys.of(secret), hello)
    folder = site.folder / share.device
    journal = Journal(folder / "journal", AgentState, SCHEMA)
    rng = np.random.default_rng([seed, int(share.device.rpartition("-")[2])])
    agent = Agent(identity, BlobFolder(folder), journal, rng, int(time.time()))
    # Fleets of different runs share a broker; the client id keeps their sessions apart.
    settings = BrokerSettings(site.url, f"{site.fleet}-{share.device}")
    examples = (share.train, share.test)
    return Runtime(agent, settings, examples, site.programs, site.pool, site.wake)
