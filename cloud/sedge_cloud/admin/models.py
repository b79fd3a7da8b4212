"""Reads the models of runs, to export them or to start other runs from them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RunRow
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.model_files import read_tensors
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, unpack


def find_run(store: Store, name: str) -> RunRow:
    """Return a run's row. Raises ``ConfigError`` when there is no such run."""
    run = next((row for row in store.runs() if row.run == name), None)
    if run is None:
        raise ConfigError("run", name, "the name of a run (see `run list`)")
    return run


def read_bundle(store: Store, row: RunRow, width: int = 0) -> Bundle:
    """Read a run's bundle for this width, with the values of its frozen tensors."""
    bundle = unpack(store.blobs.read(row.bundles[width]))
    frozen = bundle.manifest.frozen
    if frozen is None:
        return bundle
    values = frozen.values(store.blobs.read(frozen.blob.sha256))
    return Bundle(bundle.manifest, bundle.files, values)


def global_model(store: Store, row: RunRow) -> Theta:
    """Read a run's global model (n,)."""
    run = Run(row, store)
    return RunStore(store).theta(run.state.model, run.manifest.layout.size)


def first_model(store: Store, source: str, bundle: Bundle, init: Theta) -> Theta:
    """Read a run's initial model (n,) from ``source``, which names another run or a .npz file.

    Raises ``ConfigError`` naming the first tensor that does not match ``bundle``, and ``DataError`` for a
    file that is not a .npz archive. ``init`` (n,), the initial model in the bundle, gives the expected
    shapes.
    """
    if source.endswith(".npz"):
        with as_caller():
            tensors: Mapping[str, NDArray[np.generic]] = read_tensors(Path(source))
    else:
        row = find_run(store, source)
        tensors = read_bundle(store, row).views(global_model(store, row))
    why = _difference(tensors, bundle, init)
    if why:
        raise ConfigError("--from", source, f"a model with the bundle's tensors: {why}")
    layout = bundle.manifest.layout
    return layout.flatten({t.name: tensors[t.name].astype(np.float32) for t in layout.tensors})


def _difference(tensors: Mapping[str, NDArray[np.generic]], bundle: Bundle, init: Theta) -> str:
    """Describe the first tensor that does not match the bundle. Returns an empty string if all match."""
    views = bundle.views(init)
    for name, expected in views.items():
        tensor = tensors.get(name)
        if tensor is None:
            return f"{name!r} is missing"
        if tensor.shape != expected.shape or tensor.dtype != np.float32:
            here = f"float32 {expected.shape}"
            return f"{name!r} is {tensor.dtype} {tensor.shape} there and {here} in the bundle"
        if not np.isfinite(tensor).all():
            return f"{name!r} holds NaN or inf"
        if name not in bundle.manifest.layout.by_name and not np.array_equal(tensor, expected):
            return f"{name!r} is frozen but has different values there"
    unknown = next((name for name in tensors if name not in views), None)
    return "" if unknown is None else f"the bundle has no {unknown!r}"
