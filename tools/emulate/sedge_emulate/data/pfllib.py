"""Reads data sets written by PFLlib's generators, with files for each client, such as ``train/0.npz``.

Each client has a train and a test file with one array ``data``, a pickled dict of arrays x (n, ...) and y
(n,). The pickle is read without running any code in it (see plain_pickle.py). PFLlib's images are already
normalised.
"""

import zipfile
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.lib import format as npy

from sedge_edge.data import converted
from sedge_edge.training.examples import Examples
from sedge_emulate.data.plain_pickle import read_plain
from sedge_protocol.errors import DataError

_PARTS = ("train", "test")


def is_pfllib(folder: Path) -> bool:
    """Return True if ``folder`` was written by PFLlib."""
    return all((folder / part / "0.npz").is_file() for part in _PARTS)


def read_pfllib(folder: Path) -> tuple[list[Examples], list[Examples]]:
    """Read every client's train and test examples. Raises ``DataError`` if a client has only one file."""
    train, test = (
        sorted(int(path.stem) for path in (folder / part).glob("*.npz") if path.stem.isdecimal())
        for part in _PARTS
    )
    if train != test or train != list(range(len(train))):
        lone = min({*train, *test, len(train)} - (set(train) & set(test)), default=0)
        expected = "a train and a test file for each client, numbered from 0"
        raise DataError(f"{folder}: client {lone}, expected {expected}")
    return (
        [_client(folder / "train" / f"{client}.npz") for client in train],
        [_client(folder / "test" / f"{client}.npz") for client in test],
    )


def _client(path: Path) -> Examples:
    where = str(path)
    try:
        with zipfile.ZipFile(path) as archive, archive.open("data.npy") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            dtype = read(file)[2]
            found = read_plain(cast(BinaryIO, file), where) if dtype.hasobject else None
    except KeyError as exc:
        raise DataError(f"{path}: no array data, expected a client's file") from exc
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    except (zipfile.BadZipFile, ValueError, EOFError) as exc:
        raise DataError(f"{path}: damaged, expected a client's file") from exc
    match found:
        case [{"x": x, "y": y}]:
            return converted(x, y, where)
        case _:
            raise DataError(f"{path}: {type(found).__name__}, expected a dict with x and y")


def joined(clients: list[Examples]) -> Examples:
    """Concatenate all clients' examples. Raises ``DataError`` if their shapes differ."""
    try:
        return Examples(
            np.concatenate([client.inputs for client in clients]),
            np.concatenate([client.targets for client in clients]),
        )
    except ValueError as exc:
        shapes = {client.inputs.shape[1:]: None for client in clients}
        found = ", ".join(map(str, shapes))
        raise DataError(
            f"clients differ: found examples of shape {found}, expected one shape"
        ) from exc
