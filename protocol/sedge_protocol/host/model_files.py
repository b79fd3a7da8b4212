"""Writes a model as one file for other programs: its named tensors, or an ONNX model that predicts.

    .npz          numpy.load
    .safetensors  safetensors (extra "safetensors")
    .pt           a state_dict for torch.load and load_state_dict (needs torch)
    .onnx         x (B, ...) to logits (B, C), B being the bundle's batch size; its metadata say how 8-bit
                  pixels become x (``pixels``), what the outputs are (``outputs``), and the classes' names

The suffix of the file name selects the format. torch and safetensors are imported only when needed.
"""

import io
import json
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.host.array_files import read_arrays
from sedge_protocol.host.disk import replace_file, translated
from sedge_protocol.layout import Theta
from sedge_protocol.wire.binding import bound_predict, described
from sedge_protocol.wire.bundle import Bundle

# How every device scales its pixels (sedge_edge.data).
PIXELS = "unsigned 8-bit values divided by 255"
IMAGE_NDIM = 3  # (C, H, W)

Tensors = Mapping[str, NDArray[np.float32]]


def write_model(bundle: Bundle, theta: Theta, path: Path) -> None:
    """Write a bundle's model with theta (n,) and the frozen tensors to a file, atomically.

    Raises ``ConfigError`` for an unknown suffix or a missing library, ``CodecError`` for a bundle without
    an ONNX program, and ``StorageError`` if the file cannot be written.
    """
    if path.suffix == ".onnx":
        data = _onnx(bundle, theta)
    elif path.suffix in _TENSORS:
        data = _TENSORS[path.suffix](bundle.views(theta), path)
    else:
        expected = f"a name that ends in {', '.join(_TENSORS)} or .onnx"
        raise ConfigError("--out", str(path), expected)
    with translated("write the model to", path):
        replace_file(path, data, path.with_name(f"{path.name}.part"))


def read_tensors(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the arrays in a .npz file, keyed by name. Raises ``DataError`` for any other file."""
    try:
        with path.open("rb") as file:
            found = read_arrays(file, str(path), ".npz")
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}, expected .npz") from exc
    if not isinstance(found, dict):
        raise DataError(f"{path}: a single array, expected .npz")
    return found


def _onnx(bundle: Bundle, theta: Theta) -> bytes:
    manifest = bundle.manifest
    facts = {"name": manifest.name, "outputs": "logits" if manifest.num_classes else "values"}
    if manifest.input.dtype == "float32" and len(manifest.input.shape) == IMAGE_NDIM:
        facts["pixels"] = PIXELS
    if manifest.labels:
        facts["labels"] = json.dumps(manifest.labels)
    return described(bound_predict(bundle, theta), facts)


def _npz(tensors: Tensors, path: Path) -> bytes:
    file = io.BytesIO()
    with ZipFile(file, "w") as archive:  # np.savez accepts no tensor named "file"
        for name, values in tensors.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.save(member, values)
    return file.getvalue()


def _safetensors(tensors: Tensors, path: Path) -> bytes:
    data: bytes = _library("safetensors.numpy", path).save(dict(tensors))
    return data


def _state_dict(tensors: Tensors, path: Path) -> bytes:
    torch, file = _library("torch", path), io.BytesIO()
    torch.save({name: torch.tensor(values) for name, values in tensors.items()}, file)
    return file.getvalue()


def _library(name: str, path: Path) -> Any:
    try:
        return import_module(name)
    except ImportError as exc:
        package = name.partition(".")[0]
        expected = (
            f"{package} to be installed for {path.suffix} (pip install 'sedge-fl[{package}]')"
        )
        raise ConfigError("--out", str(path), expected) from exc


_TENSORS: dict[str, Callable[[Tensors, Path], bytes]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".pt": _state_dict,
}
