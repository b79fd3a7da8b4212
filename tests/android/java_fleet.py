"""Devices in Java in a fleet of real processes."""

import os
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from tests.android import class_means
from tests.android.java import JAVA
from tools.bench.parts.real_fleet import RealFleet

from sedge_cloud.store.opening import open_folder

MAIN = "org.sedge.jvm.Main"
MEANS = "org.sedge.edge.backends.ClassMeans"


class JavaFleet:
    """A fleet some of whose agents are in Java; every device has examples of class_means.py.

    ``backend`` is the class that trains in Java, ``options`` are the JVM's.
    """

    def __init__(
        self, fleet: RealFleet, class_path: str, backend: str = MEANS, options: Sequence[str] = ()
    ) -> None:
        self.fleet = fleet
        self._words = [*JAVA, *options, "-cp", class_path, MAIN]
        self._backend = backend

    def add(self, device: str, seed: int, url: str | None = None, examples: int = 60) -> Path:
        """Enrol a device and give it examples; its folder."""
        home = self.fleet.folder / device
        self.fleet.add_device(device, seed, url)
        x, y = class_means.examples(examples, seed)
        np.savez(home / "train.npz", x=x, y=y)
        return home

    def start(self, device: str) -> None:
        home = str(self.fleet.folder / device)
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        self.fleet.start(device, [*self._words, home, self._backend], environment)


def model_hashes(fleet: RealFleet) -> list[bytes]:
    """Of each round's global model."""
    with closing(open_folder(fleet.folder / "state")) as store:
        return [row.model_hash for row in store.rounds("run")]
