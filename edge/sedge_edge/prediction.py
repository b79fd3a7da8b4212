"""The personal model on the device's disk, and predictions without any network."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.config import BackendConfig
from sedge_edge.data import as_inputs
from sedge_edge.rounds.frozen_data import read_bundle
from sedge_edge.rounds.state import SCHEMA, AgentState, RunState
from sedge_edge.rounds.storage import FolderVectors
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle


@dataclass(frozen=True)
class PersonalModel:
    """A bundle and the device's own theta (n,) for it."""

    bundle: Bundle
    theta: Theta

    @property
    def num_classes(self) -> int:
        """0 for a model that does not classify."""
        return self.bundle.manifest.num_classes


def newest(state_dir: Path, run: str | None) -> RunState:
    """What the device keeps of a run with a model, or of the newest. Raises ``ConfigError`` without one."""
    state = Journal(state_dir / "journal", AgentState, SCHEMA).load() or AgentState()
    with_model = {name: entry for name, entry in state.runs.items() if entry.kept.model is not None}
    name = run if run is not None else next(reversed(with_model), None)
    entry = with_model.get(name) if name is not None else None
    if entry is None:
        runs = ", ".join(with_model) or "no run with a model yet"
        raise ConfigError("run", run or "newest", f"one of: {runs}", str(state_dir))
    return entry


def load_model(state_dir: Path, entry: RunState) -> PersonalModel:
    """The model of an entry from ``newest``. Raises ``StorageError`` when it is missing or damaged."""
    assert entry.kept.model is not None
    blobs = BlobFolder(state_dir)
    bundle = read_bundle(blobs, entry.bundle)
    theta = FolderVectors(blobs).read(entry.kept.model, bundle.manifest.layout).copy()
    return PersonalModel(bundle, theta)


def personal_model(state_dir: Path, run: str | None = None) -> PersonalModel:
    """The model of a run, or of the newest one. Raises ``ConfigError`` when there is none."""
    return load_model(state_dir, newest(state_dir, run))


def predict_file(
    model: PersonalModel, path: Path, backend: BackendConfig, folder: Path = Path()
) -> NDArray[np.float32]:
    """The model's outputs (N, C) for the inputs in a file; ``folder`` holds the user's code.

    Raises ``DataError`` for a bad file, ``ConfigError`` for a backend or code that fails.
    """
    try:
        # np.load(path) would leave the file of a broken archive open.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            inputs = loaded if isinstance(loaded, np.ndarray) else loaded["x"]
    except Exception as exc:  # numpy, zipfile and zlib raise ten kinds of error for a damaged file
        raise DataError(f"{path}: {exc}, expected .npy, or .npz with x") from exc
    rows = as_inputs(inputs, model.bundle.manifest, str(path))
    code = UserCode(folder, backend.model)
    trainer = open_trainer(model.bundle, backend.name, backend.threads, code)
    return trainer.predictor(model.theta)(rows)
