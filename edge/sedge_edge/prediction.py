"""The personal model at work: predictions from what is on the device's disk, without any network."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import open_trainer
from sedge_edge.config import BackendConfig, EdgeConfig
from sedge_edge.data import as_inputs
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.rounds.storage import FolderVectors
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, unpack


@dataclass(frozen=True)
class PersonalModel:
    """A bundle and the device's own theta (n,) for it."""

    bundle: Bundle
    theta: Theta

    @property
    def num_classes(self) -> int:
        """0 for a model that does not classify."""
        return self.bundle.manifest.num_classes


def personal_model(config: EdgeConfig, run: str | None) -> PersonalModel:
    """The model of a run, or of the newest one. Raises ``ConfigError`` when there is none."""
    state = Journal(config.state_dir / "journal", AgentState, SCHEMA).load() or AgentState()
    having = {name: known for name, known in state.runs.items() if known.kept.model is not None}
    name = run if run is not None else next(reversed(having), None)
    known = having.get(name) if name is not None else None
    if known is None or known.kept.model is None:
        found = ", ".join(having) or "no run with a model yet"
        raise ConfigError("run", run or "newest", f"one of: {found}", str(config.state_dir))
    blobs = BlobFolder(config.state_dir)
    bundle = unpack(blobs.read(known.bundle))
    theta = FolderVectors(blobs).read(known.kept.model, bundle.manifest.layout).copy()
    return PersonalModel(bundle, theta)


def predict_file(model: PersonalModel, path: Path, backend: BackendConfig) -> NDArray[np.float32]:
    """The model's outputs (N, C) for the inputs in a file. Raises ``DataError`` for a bad file."""
    try:
        # Opened here: np.load leaves the file of a broken archive open.
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            inputs = found if isinstance(found, np.ndarray) else found["x"]
    except (
        Exception
    ) as exc:  # a damaged file makes numpy, zipfile and zlib raise ten kinds of error
        raise DataError(f"{path}: {exc}, expected .npy, or .npz with x") from exc
    rows = as_inputs(inputs, model.bundle.manifest, str(path))
    return open_trainer(model.bundle, backend.name, backend.threads).predict(model.theta, rows)
