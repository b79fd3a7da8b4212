"""Folders as PFLlib's generators write them: every client is a device, with its own test examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sedge_emulate.config import DataConfig
from sedge_emulate.data.datasets import load
from sedge_emulate.data.pfllib import is_pfllib
from sedge_emulate.data.shares import share_out
from sedge_protocol.errors import DataError

SIZES = ((12, 4), (9, 3), (20, 6))  # train and test of each client


def client(number: int, count: int) -> dict[str, Any]:
    x = np.full((count, 1, 2, 2), number, np.float32)
    x[:, 0, 0, 0] = np.arange(count)
    return {"x": x, "y": np.arange(count) % 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("train", "test"):
        (tmp_path / "MNIST" / part).mkdir(parents=True)
    for number, sizes in enumerate(SIZES):
        for part, count in zip(("train", "test"), sizes, strict=True):
            data: Any = client(number, count)
            np.savez_compressed(tmp_path / "MNIST" / part / f"{number}.npz", data=data)
    (tmp_path / "MNIST" / "config.json").write_text("{}")
    return tmp_path / "MNIST"


def test_each_client_is_a_device(folder: Path) -> None:
    config = DataConfig(dataset="MNIST", split="natural", min_examples=2)
    dataset, shares = share_out(config, 3, 0, folder.parent)
    assert (len(dataset.targets), dataset.num_classes) == (54, 3)
    for number, sizes in enumerate(SIZES):
        for part, count in zip(shares.examples(number), sizes, strict=True):
            np.testing.assert_array_equal(part.inputs, client(number, count)["x"])
            np.testing.assert_array_equal(part.targets, client(number, count)["y"])


def test_its_examples_can_be_split_anew(folder: Path) -> None:
    shares = share_out(DataConfig(dataset="MNIST", split="iid"), 2, 0, folder.parent)[1]
    assert [shares.num_train(i) + shares.num_test(i) for i in range(2)] == [27, 27]


def test_another_folder_is_none_of_pfllibs(tmp_path: Path) -> None:
    (tmp_path / "3-cat").mkdir()
    assert not is_pfllib(tmp_path)


def test_what_is_wrong_is_named(folder: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(DataError, match=message):
            load("MNIST", base=folder.parent)

    whole = (folder / "train" / "1.npz").read_bytes()
    np.savez(folder / "train" / "1.npz", x=np.zeros(3))
    refused(r"train/1.npz: no array data")
    np.savez(folder / "train" / "1.npz", data=np.zeros(3))
    refused("train/1.npz: NoneType, expected a dict with x and y")
    lengths: Any = {"x": np.zeros((3, 2)), "y": np.zeros(4, int)}
    np.savez(folder / "train" / "1.npz", data=lengths)
    refused("x has 3 rows and y 4")
    hostile: Any = {"x": np.zeros((3, 2)), "y": Path()}
    np.savez(folder / "train" / "1.npz", data=hostile)
    refused("1.npz: it names pathlib")
    shape: Any = client(1, 3) | {"x": np.zeros((3, 5), np.float32)}
    np.savez(folder / "train" / "1.npz", data=shape)
    refused("clients differ")
    (folder / "train" / "1.npz").write_bytes(whole[:100])
    refused("1.npz")
    (folder / "train" / "1.npz").unlink()
    refused("client 1, expected a train and a test file for each client")
