"""A split that a file says, in each of its forms, and every way to say a wrong one."""

import pickle
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sedge_emulate.data.partition import Part, read_partition
from sedge_protocol.errors import DataError


def written(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    if path.suffix == ".npy":
        np.save(path, value)
    elif path.suffix == ".pkl":
        path.write_bytes(pickle.dumps(value))
    else:
        path.write_bytes(msgspec.json.encode(value))
    return path


def lists(part: Part) -> list[Any]:
    return [half.tolist() for half in part] if isinstance(part, tuple) else part.tolist()


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("p.npy", np.array([1, 0, -1, 1, 0], np.int8), [[1, 4], [0, 3]]),  # each example's device
        ("p.json", [[3, 1], {"train": [0], "test": [4, 2]}, []], [[3, 1], [[0], [4, 2]], []]),
    ],
)
def test_who_has_what(tmp_path: Path, name: str, value: Any, parts: list[Any]) -> None:
    assert [*map(lists, read_partition(written(tmp_path, name, value), 5))] == parts


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_file_of_fl_bench(tmp_path: Path, protocol: int) -> None:
    """As its generate_data.py makes it: arrays in dicts in a list, besides what we have no use for."""
    half = {"train": np.array([5, 1], np.int32), "val": np.array([], np.int64)}
    partition = {
        "separation": {"train": [0, 1], "val": [0, 1], "test": [0, 1], "total": 2},
        "data_indices": [
            {**half, "test": np.array([2], np.int32)},
            {"train": np.array([0, 3]), "val": np.array([6]), "test": np.array([4])},
        ],
    }
    path = tmp_path / "partition.pkl"
    path.write_bytes(pickle.dumps(partition, protocol))
    assert [*map(lists, read_partition(path, 7))] == [[[5, 1], [2]], [[0, 3], [4]]]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("p.npy", np.zeros(4, int), "4 device numbers, expected one for each of 5 examples"),
        ("p.npy", np.zeros(5), "float64 of shape"),
        ("p.npy", np.full(5, -2), "device -2, expected -1 or more"),
        ("p.npy", np.array([0, 0, 0, 0, 9]), "device 9 for 5 examples"),
        ("p.json", {"indices": []}, "NoneType, expected a list with each device's part"),
        ("p.json", "01234", "str, expected a list"),
        ("p.json", [[0, 5]], "device 0: example 5, expected 0 to 4"),
        ("p.json", [[0], [-1]], "device 1: example -1, expected 0 to 4"),
        ("p.json", [[0, 1], [2, 1]], "device 1: example 1 is already on device 0"),
        ("p.json", [[0, 0]], "device 0: example 0 is already on device 0"),
        ("p.json", [{"train": [0, 1], "test": [1]}], "device 0: example 1 is already"),
        ("p.json", [{"train": [0, 1]}], "device 0: test: object"),
        ("p.json", [[0.5]], "device 0: float64"),
        ("p.json", [["a"]], "device 0: <U1"),
        ("p.pkl", {"data_indices": {1, 2}}, "p.pkl: set, expected a list with each device"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_partition(written(tmp_path, name, value), 5)


@pytest.mark.parametrize("name", ["p.npy", "p.json", "p.pkl"])
def test_a_damaged_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80 not what it is called")
    with pytest.raises(DataError, match=name):
        read_partition(tmp_path / name, 5)
    with pytest.raises(DataError, match="missing"):
        read_partition(tmp_path / f"missing{Path(name).suffix}", 5)
