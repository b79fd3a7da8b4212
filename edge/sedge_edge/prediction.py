"""Loads the personal model from the device's disk, and predicts with it, without any network.

A device that has not trained yet predicts with the model that it would start from. This is the fleet's
model, with its patch, or with the device's class shares if an evaluation has shown that these help.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.config import BackendConfig
from sedge_edge.data import as_inputs
from sedge_edge.data.archive import named_inputs
from sedge_edge.data.images import IMAGE_ENDINGS, read_image, read_images
from sedge_edge.data.table import DELIMITERS, read_table
from sedge_edge.jobs.global_model import held_model, needed_blobs
from sedge_edge.jobs.storage import UnchangedVectors
from sedge_edge.rounds.frozen_data import read_bundle
from sedge_edge.rounds.run_state import RunState
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.training.start_vector import assemble
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.host.array_files import read_arrays
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.messages import Order


@dataclass(frozen=True)
class PersonalModel:
    """A bundle, and theta (n,) to predict with: the device's own or, if ``trained`` is false, the fleet's.

    ``state_dir`` is the folder of the agent that the model comes from.
    """

    bundle: Bundle
    theta: Theta
    trained: bool = True
    state_dir: Path | None = None

    @property
    def num_classes(self) -> int:
        """The number of classes, or 0 for a model that is not a classifier."""
        return self.bundle.manifest.num_classes


@dataclass(frozen=True)
class Source:
    """Where to read a run's model: in the device's kept state, or from an order whose blobs are on disk."""

    kept: RunState | None
    order: Order | None = None

    @property
    def bundle(self) -> bytes:
        """The hash of the bundle."""
        if self.kept is not None:
            return self.kept.bundle
        assert self.order is not None
        return self.order.bundle.sha256

    @property
    def names(self) -> object:
        """A value that changes whenever the model does, but not because of an evaluation."""
        return (self.bundle, self.kept.kept.model) if self.kept and self.trained else self

    @property
    def trained(self) -> bool:
        """Whether the device has trained the model."""
        return self.kept is not None and self.kept.kept.model is not None


def newest(state_dir: Path, run: str | None) -> Source:
    """Find the model of a run.

    The default is the run trained last or, if none has been trained, the run received last.

    Raises ``ConfigError`` if there is no such model.
    """
    state = Journal(state_dir / "journal", AgentState, SCHEMA).load()
    sources = {} if state is None else _sources(state, BlobFolder(state_dir))
    name = run if run is not None else next(reversed(sources), None)
    source = sources.get(name) if name is not None else None
    if source is None:
        expected = (
            f"one of: {', '.join(sources)}"
            if sources
            else "a run with a model, but none has arrived"
        )
        raise ConfigError("run", run or "newest", expected, str(state_dir))
    return source


def _sources(state: AgentState, blobs: BlobFolder) -> dict[str, Source]:
    """Return the models keyed by run.

    Models that the device has trained come last, the newest at the end.
    """
    kept = {name: Source(entry) for name, entry in state.runs.items()}
    trained = {name: source for name, source in kept.items() if source.trained}
    others = _received(state, blobs)
    for name, entry in state.runs.items():
        if entry.steps or blobs.has(entry.base):
            others.setdefault(name, kept[name])
    return {name: found for name, found in others.items() if name not in trained} | trained


def _received(state: AgentState, blobs: BlobFolder) -> dict[str, Source]:
    """Return the orders that are ready to begin, keyed by run. A gate may delay them for a long time."""
    return {
        order.run: Source(None, order)
        for order in state.continued_orders(blobs.has)
        if all(blobs.has(manifest.sha256) for manifest in needed_blobs(order, blobs.has))
    }


def load_model(state_dir: Path, source: Source) -> PersonalModel:
    """Load the model that ``newest`` returned.

    Raises ``StorageError`` or ``CodecError`` if it is missing or damaged.
    """
    blobs = BlobFolder(state_dir)
    bundle, vectors = read_bundle(blobs, source.bundle), UnchangedVectors(blobs)
    layout, entry = bundle.manifest.layout, source.kept
    if entry is None:
        assert source.order is not None
        theta = assemble(source.order, blobs, vectors, layout, ()).theta
    elif (own := entry.kept.model or entry.kept.start) is not None:
        theta = vectors.read(own, layout)
    else:
        theta = held_model(entry.base, entry.steps, blobs, vectors, layout)
    return PersonalModel(bundle, theta.copy(), source.trained, state_dir)


def personal_model(state_dir: Path, run: str | None = None) -> PersonalModel:
    """Load the model of a run, or of the newest one. Raises ``ConfigError`` if there is none."""
    return load_model(state_dir, newest(state_dir, run))


def predict_file(
    model: PersonalModel, path: Path, backend: BackendConfig, folder: Path = Path()
) -> NDArray[np.float32]:
    """Return the model's outputs (N, C, ...) for the inputs in a file.

    ``folder`` contains the user's code. Raises ``DataError`` for a bad file, and ``ConfigError`` for a
    backend or code that fails.
    """
    manifest = model.bundle.manifest
    rows = as_inputs(_inputs(path, manifest.input.shape), manifest, str(path))
    code = UserCode(folder, backend.model)
    trainer = open_trainer(model.bundle, backend.name, backend.threads, code, model.state_dir)
    return trainer.predictor(model.theta)(rows)


def _inputs(path: Path, shape: tuple[int, ...]) -> object:
    """Read a file of inputs whose rows have this shape: one array (N, ...), or several named arrays.

    A table may contain the target, which is left out. Raises ``DataError`` for a bad file.
    """
    ending, expected = path.suffix.lower(), ".npy, .npz with x or inputs by name, .csv, or an image"
    if ending in DELIMITERS:
        return read_table(path, math.prod(shape)).x
    if ending in IMAGE_ENDINGS:
        return read_image(path, shape)
    try:
        if path.is_dir():
            return read_images(path, shape).x
        with path.open("rb") as file:
            arrays = read_arrays(file, str(path), expected)
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}, expected {expected}") from exc
    if isinstance(arrays, dict):
        return arrays["x"] if "x" in arrays else named_inputs(arrays)
    return arrays
