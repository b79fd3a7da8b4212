"""Reads examples from numpy's .npz files: arrays x (or named inputs), y and ``group``."""

from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from sedge_edge.data.memory import require_room
from sedge_protocol.errors import DataError
from sedge_protocol.host.array_files import read_arrays

_EXPECTED = "an .npz with plain arrays x and y"
_NO_INPUTS = ("y", "group")
_TARGETS = ("label", "labels", "target", "targets")


def read_archive(path: Path) -> tuple[object, object, object]:
    """Return x or a dict of named inputs, y, and ``group``. Arrays that the file lacks are None.

    Raises ``DataError`` for an unreadable file.
    """
    try:
        with path.open("rb") as file:
            _require_room(path)
            arrays = read_arrays(file, str(path), _EXPECTED)
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    if not isinstance(arrays, dict):
        raise DataError(f"{path}: a single array, expected {_EXPECTED}")
    if "y" not in arrays and any(_is_target(name) for name in arrays):
        there = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"{path}: the arrays are {there}, expected the names x and y")
    x = arrays["x"] if "x" in arrays else named_inputs(arrays)
    return x, arrays.get("y"), arrays.get("group")


def named_inputs(
    arrays: Mapping[str, NDArray[np.generic]],
) -> dict[str, NDArray[np.generic]]:
    """Return the inputs in an .npz file without x, keyed by name."""
    return {name: array for name, array in arrays.items() if name not in _NO_INPUTS}


def _is_target(name: str) -> bool:
    lower = name.lower()
    return lower in ("y", *_TARGETS) or lower.startswith("y_")


def _require_room(path: Path) -> None:
    try:
        with ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except (BadZipFile, NotImplementedError, ValueError):
        return  # the error is reported when the array is read
    require_room(size, f"{path}: its arrays", "keep fewer examples, or smaller ones")
