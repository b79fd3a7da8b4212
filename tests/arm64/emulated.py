"""A fleet some of whose devices are emulated arm64 machines."""

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tests.edge.backends.conftest import unpacked_wheel
from tools.arm64 import guest, packages
from tools.bench.parts.real_fleet import WITH_EXECUTORCH, RealFleet, wait_until

from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_emulate.data.datasets import Dataset
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta

HERE = Path(__file__).parent
NUMPY = "numpy_client:fit"


class Measured(NamedTuple):
    """What an emulated agent says of itself at its end: its peak memory, and the modules it had loaded."""

    peak_mib: float
    modules: frozenset[str]


class MixedFleet(RealFleet):
    """A ``RealFleet`` whose devices have real images, and of which some are emulated."""

    def enrol(self, device: str, backend: str, dataset: Dataset, examples: int) -> None:
        """Add a device whose agent has one backend; its examples follow from the number in its name.

        torch has a small CNN, and ``NUMPY`` its file.
        """
        self.add_device(device, int(device[-1]), examples=examples, dataset=dataset)
        with (self.folder / device / "edge.toml").open("a") as config:
            config.write(f'\n[backend]\nname = "{backend}"\n')
            if backend == "torch":
                config.write('model = "sedge_export.models:avgcnn"\n')
        if backend == NUMPY:
            shutil.copy(HERE / "numpy_client.py", self.folder / device)

    def start_here(self, device: str, backend: str) -> None:
        site = WITH_EXECUTORCH.format(folder=str(unpacked_wheel()))
        self.start_agent(device, script=site if backend == "executorch" else "")

    def start_emulated(self, device: str, backend: str, cpu: str) -> None:
        home = self.folder / device
        agent = [guest.PYTHON, str(HERE / "measured_agent.py"), str(home / "measured.json")]
        words = [*agent, "-c", str(home / "edge.toml"), "run"]
        sites = [packages.agent("onnxruntime" if backend == NUMPY else backend)]
        self.start(device, *guest.command(cpu, words, sites, [self.folder, HERE]))

    def run_to_end(self, bundle: Path, text: str, seconds: float) -> float:
        """Do a run; it must finish. Returns the mean accuracy of what it ends with."""
        self.start_run(bundle, text)
        wait_until(self.finished, seconds, "the run ends")
        return self.rounds()[-1].before

    def measured(self, device: str) -> Measured:
        """Stop an emulated agent; what it has measured."""
        assert self.stop(device) == 0, self.log(device)
        report = json.loads((self.folder / device / "measured.json").read_text())
        return Measured(report["peak_mib"], frozenset(report["modules"]))

    def trained(self, device: str) -> Theta:
        """The device's own model (n,) as it has kept it."""
        state_dir = self.folder / device / "state"
        state = Journal(state_dir / "journal", AgentState, SCHEMA).load()
        assert state is not None
        name = state.runs["run"].kept.model
        assert name is not None
        theta: Theta = np.frombuffer(BlobFolder(state_dir).read(name), "<f4")
        return theta
