"""Gives other programs access to the newest model that the device's agent has.

    model = sedge_edge.Model("/var/lib/sedge")
    outputs = model.predict(inputs)

The agent does not need to be running. If it is, it is not disturbed, because it replaces its journal
atomically, and files that the journal names never change. Programs that lack permission to read the agent's
folder can use the agent's socket (model_socket.py).
"""

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import AUTO, NO_CODE, UserCode, open_trainer
from sedge_edge.data import as_inputs
from sedge_edge.prediction import Source, load_model, newest
from sedge_edge.training.trainer import Predictor, Trainer
from sedge_protocol.errors import ConfigError, DataError, SedgeError
from sedge_protocol.wire.bundle import BundleManifest

# Inputs (N, ...), or a dict that maps input names to arrays, for a model with several inputs.
Given: TypeAlias = NDArray[np.generic] | Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True, eq=False)
class Classified:
    """The result of classifying: outputs (N, C), classes (N,), probabilities (N, C) and the classes' names.

    For a model with a label for each token or pixel, classes are (N, ...), and outputs and probabilities
    are (N, C, ...) or (N, ..., C). ``labels`` is empty if the bundle does not name its classes.
    """

    outputs: NDArray[np.float32]
    classes: NDArray[np.intp]
    probabilities: NDArray[np.float32]
    labels: tuple[str, ...]


class Model:
    """The personal model in an agent's folder ``state_dir``, from ``run`` or else the newest run.

    Thread-safe. Raises ``ConfigError`` if there is no model, or no backend that can run it, and
    ``StorageError`` if it cannot be read.
    """

    def __init__(
        self,
        state_dir: Path | str,
        run: str | None = None,
        backend: str = AUTO,
        threads: int = 1,
        code: UserCode = NO_CODE,
    ) -> None:
        self._folder = Path(state_dir)
        if not (self._folder / "journal").is_file():
            raise ConfigError("state_dir", str(state_dir), "an agent's folder, with its journal")
        self._run, self._backend, self._threads, self._code = run, backend, threads, code
        self._lock = threading.Lock()
        self._source: Source | None = None
        self._seen = self._stamp()
        self._load()

    def predict(self, inputs: Given) -> NDArray[np.float32]:
        """Return the outputs (N, C, ...) for inputs (N, ...).

        Raises ``DataError`` if they do not fit the model.
        """
        return self._predicted(inputs)[1]

    @property
    def manifest(self) -> BundleManifest:
        """The bundle's description of the model: its input, classes and labels."""
        with self._lock:
            self._refresh()
            return self._manifest

    def classify(self, inputs: Given) -> Classified:
        """Return the class of each input and the probabilities of all classes.

        Raises the same errors as ``predict``.
        """
        manifest, outputs = self._predicted(inputs)
        if not manifest.num_classes:
            raise DataError(f"bundle {manifest.name!r}: its outputs are not classes")
        axis = manifest.class_axis(outputs.shape)
        likely = _softmax(outputs, axis)
        return Classified(outputs, outputs.argmax(axis=axis), likely, manifest.labels)

    def _predicted(self, inputs: Given) -> tuple[BundleManifest, NDArray[np.float32]]:
        with self._lock:
            self._refresh()
            manifest, predictor = self._manifest, self._predictor
        return manifest, predictor(as_inputs(inputs, manifest, "inputs"))

    def _refresh(self) -> None:
        """Switch to a newer model, if there is one. If it cannot be read, the old one stays in use."""
        stamp = self._stamp()
        if stamp != self._seen:
            try:
                self._load()
                self._seen = stamp
            except (SedgeError, OSError):
                pass  # the next call will try again

    def _load(self) -> None:
        source = newest(self._folder, self._run)
        if self._source is not None and source.names == self._source.names:
            return
        model = load_model(self._folder, source)
        if self._source is not None and source.bundle == self._source.bundle:
            trainer = self._trainer
        else:
            trainer = open_trainer(
                model.bundle, self._backend, self._threads, self._code, self._folder
            )
        # The old predictor stays in use until this one is ready.
        predictor = trainer.predictor(model.theta)
        self._trainer: Trainer = trainer
        self._predictor: Predictor = predictor
        self._manifest: BundleManifest = model.bundle.manifest
        self._source = source

    def _stamp(self) -> tuple[int, int] | None:
        """Return a value that changes with each commit of the agent's journal.

        Returns None if the journal cannot be read.
        """
        try:
            found = os.stat(self._folder / "journal")
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns


def _softmax(outputs: NDArray[np.float32], axis: int) -> NDArray[np.float32]:
    """Return the probabilities for logits (N, ...) whose classes are along ``axis``."""
    with np.errstate(invalid="ignore"):  # infinite outputs become NaN
        powers = np.exp(outputs - outputs.max(axis=axis, keepdims=True))
    found: NDArray[np.float32] = powers / powers.sum(axis=axis, keepdims=True)
    return found
