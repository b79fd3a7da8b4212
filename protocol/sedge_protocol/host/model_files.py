"""A model as one file for other programs: its tensors by name, or its ``predict`` with these inside.

    .npz          numpy.load
    .safetensors  safetensors (extra "safetensors")
    .pt           a state_dict for torch.load and load_state_dict (needs torch)
    .onnx         x (B, ...) to logits (B, C), B being the bundle's batch size; its metadata say how
                  8-bit pixels become x (``pixels``), what comes out (``outputs``), and the classes' names

The ending of the name decides. torch and safetensors are imported only where they are asked for.
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
from sedge_protocol.host.disk import replace_file, translated
from sedge_protocol.layout import Theta
from sedge_protocol.wire.binding import bound_predict, described
from sedge_protocol.wire.bundle import Bundle

# As every device's data are read (sedge_edge.data).
PIXELS = "unsigned 8-bit values divided by 255"

Tensors = Mapping[str, NDArray[np.float32]]


def write_model(bundle: Bundle, theta: Theta, path: Path) -> None:
    """Write a bundle's model with theta (n,): whole or not at all, frozen tensors included.

    Raises ``ConfigError`` for another ending or a library that is missing, ``CodecError`` for a bundle
    without an ONNX program, ``StorageError`` when the disk refuses.
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
    """The arrays of a .npz file, by name. Raises ``DataError`` for anything else."""
    try:
        # np.load(path) would leave the file of a broken archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except Exception as exc:  # numpy, zipfile and zlib raise ten kinds of error for a damaged file
        # Of a file that is no archive, numpy only says how to load it unsafely.
        why = exc if isinstance(exc, OSError) else type(exc).__name__
        raise DataError(f"{path}: {why}, expected .npz") from exc


def _onnx(bundle: Bundle, theta: Theta) -> bytes:
    manifest = bundle.manifest
    facts = {"name": manifest.name, "outputs": "logits" if manifest.num_classes else "values"}
    if manifest.input.dtype == "float32":
        facts["pixels"] = PIXELS
    if manifest.labels:
        facts["labels"] = json.dumps(manifest.labels)
    return described(bound_predict(bundle, theta), facts)


def _npz(tensors: Tensors, path: Path) -> bytes:
    file = io.BytesIO()
    with ZipFile(file, "w") as archive:  # np.savez takes no tensor of the name "file"
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
