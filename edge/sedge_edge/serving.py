"""The device's model for other programs, always the newest that the agent has.

    model = sedge_edge.Model("/var/lib/sedge")
    outputs = model.predict(inputs)

No agent needs to run, and none is disturbed: it replaces its journal in one step, and files that the
journal names never change.
"""

import os
import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import AUTO, open_trainer
from sedge_edge.data import as_inputs
from sedge_edge.prediction import PersonalModel, load_model, newest
from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import ConfigError, SedgeError


class Model:
    """The personal model in an agent's ``state_dir``: of a run, or of the newest. Thread-safe.

    Raises ``ConfigError`` when there is no model, or no backend that runs it, and ``StorageError`` when it
    cannot be read.
    """

    def __init__(
        self, state_dir: Path | str, run: str | None = None, backend: str = AUTO, threads: int = 1
    ) -> None:
        self._folder = Path(state_dir)
        if not (self._folder / "journal").is_file():
            raise ConfigError("state_dir", str(state_dir), "an agent's folder, with its journal")
        self._run, self._backend, self._threads = run, backend, threads
        self._lock = threading.Lock()
        self._names: tuple[bytes, bytes | None] | None = None
        self._seen = self._stamp()
        self._load()

    def predict(self, inputs: NDArray[np.generic]) -> NDArray[np.float32]:
        """The outputs (N, C) for inputs (N, ...). Raises ``DataError`` for what the model cannot take."""
        with self._lock:
            self._refresh()
            model, trainer = self._model, self._trainer
        rows = as_inputs(inputs, model.bundle.manifest, "inputs")
        return trainer.predict(model.theta, rows)

    def _refresh(self) -> None:
        """Take over a newer model. The old one serves on while the new one cannot be read."""
        stamp = self._stamp()
        if stamp != self._seen:
            try:
                self._load()
                self._seen = stamp
            except (SedgeError, OSError):
                pass  # the next call tries again

    def _load(self) -> None:
        entry = newest(self._folder, self._run)
        names = entry.bundle, entry.kept.model
        if names == self._names:
            return
        model = load_model(self._folder, entry)
        if self._names is None or names[0] != self._names[0]:
            self._trainer: Trainer = open_trainer(model.bundle, self._backend, self._threads)
        self._model: PersonalModel = model
        self._names = names

    def _stamp(self) -> tuple[int, int] | None:
        """Another one after each commit of the agent's journal; None while it cannot be looked at."""
        try:
            found = os.stat(self._folder / "journal")
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns
