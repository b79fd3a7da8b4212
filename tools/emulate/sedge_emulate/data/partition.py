"""Reads a split from a file that says which examples of the data set each device has.

    .npy     (N,): each example's device number, from 0; -1 leaves the example out
    .json    a list with, for each device, its examples or {"train": [...], "test": [...]}
    .pkl     FL-bench's partition.pkl, read without running any code in it (see plain_pickle.py)

JSON may also be an object that has such a list under "data_indices", like FL-bench's file. Its "val"
examples are left out, because devices have no validation set.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import msgspec
import numpy as np

from sedge_emulate.data.plain_pickle import read_plain
from sedge_emulate.data.split import Indices
from sedge_protocol.errors import DataError
from sedge_protocol.host.array_files import read_arrays

# One device's examples, to be split later, or its train and test examples.
Part: TypeAlias = Indices | tuple[Indices, Indices]


def read_partition(path: Path, num_examples: int) -> list[Part]:
    """Read which of ``num_examples`` examples each device has.

    Raises ``DataError`` for an unreadable file, and for examples that do not exist or occur twice.
    """
    try:
        with path.open("rb") as file:
            if path.suffix == ".npy":
                numbers = read_arrays(file, str(path), "device numbers as .npy")
                parts = _by_example(numbers, num_examples, str(path))
            elif path.suffix == ".json":
                parts = _by_device(msgspec.json.decode(file.read()), str(path))
            else:
                parts = _by_device(read_plain(file, str(path)), str(path))
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    except msgspec.DecodeError as exc:
        raise DataError(f"{path}: {exc}, expected a list with each device's part") from exc
    _require_once(parts, num_examples, str(path))
    return parts


def _by_example(value: object, num_examples: int, where: str) -> list[Part]:
    devices = _integers(value, where)
    if len(devices) != num_examples:
        expected = f"one for each of {num_examples} examples"
        raise DataError(f"{where}: {len(devices)} device numbers, expected {expected}")
    if len(devices) and devices.min() < -1:
        raise DataError(f"{where}: device {devices.min()}, expected -1 or more")
    count = int(devices.max(initial=-1)) + 1
    if count > num_examples:
        raise DataError(
            f"{where}: device {count - 1} for {num_examples} examples, expected no more devices than "
            "examples"
        )
    return [np.flatnonzero(devices == device).astype(np.int64) for device in range(count)]


def _by_device(value: object, where: str) -> list[Part]:
    if isinstance(value, Mapping):
        value = cast(Mapping[object, object], value).get("data_indices")
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise DataError(f"{where}: {type(value).__name__}, expected a list with each device's part")
    parts: list[Part] = []
    for device, part in enumerate(cast(Sequence[object], value)):
        place = f"{where}: device {device}"
        if isinstance(part, Mapping):
            found = cast(Mapping[object, object], part)
            train, test = (
                _integers(found.get(key), f"{place}: {key}") for key in ("train", "test")
            )
            parts.append((train, test))
        else:
            parts.append(_integers(part, place))
    return parts


def _integers(value: object, where: str) -> Indices:
    """Convert a list of integers to an array (n,). Raises ``DataError`` for anything else."""
    if isinstance(value, list) and not value:
        return np.empty(0, np.int64)
    array = np.asarray(value)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise DataError(f"{where}: {array.dtype} of shape {array.shape}, expected integers (n,)")
    return array.astype(np.int64)


def _require_once(parts: Sequence[Part], num_examples: int, where: str) -> None:
    """Raise ``DataError`` unless every index is in range and occurs only once in all devices' parts."""
    holder = np.full(num_examples, -1, np.int64)
    for device, part in enumerate(parts):
        for indices in part if isinstance(part, tuple) else (part,):
            wrong = indices[(indices < 0) | (indices >= num_examples)]
            if wrong.size:
                expected = f"0 to {num_examples - 1}"
                raise DataError(
                    f"{where}: device {device}: example {wrong[0]}, expected {expected}"
                )
            values, counts = np.unique(indices, return_counts=True)
            twice = values[(counts > 1) | (holder[values] >= 0)]
            if twice.size:
                other = holder[twice[0]] if holder[twice[0]] >= 0 else device
                raise DataError(
                    f"{where}: device {device}: example {twice[0]} is already on device {other}"
                )
            holder[values] = device
