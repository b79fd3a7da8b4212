"""Examples that no device has: a share of the data, or another source."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sedge_emulate.config import DataConfig
from sedge_emulate.data.shares import Shares, share_out
from sedge_protocol.errors import DataError

DIGITS = DataConfig(dataset="digits", alpha=1.0, central_test=0.2)


def of_devices(shares: Shares) -> set[int]:
    return set(shares.train.tolist()) | set(shares.test.tolist())


@pytest.mark.parametrize("split", ["dirichlet", "pathological", "iid"])
def test_a_share_of_the_examples_is_nobodys(split: str) -> None:
    config = msgspec.structs.replace(DIGITS, split=split)
    dataset, shares = share_out(config, 6, 0, Path())
    assert len(shares.central) == round(0.2 * 1797)
    assert not of_devices(shares) & set(shares.central.tolist())
    assert len(of_devices(shares)) + len(shares.central) == len(dataset.targets) == 1797
    # Every class in its proportion.
    counts = np.bincount(dataset.targets[shares.central])
    np.testing.assert_allclose(counts, 0.2 * np.bincount(dataset.targets), atol=1)
    again = share_out(config, 6, 0, Path())[1]
    np.testing.assert_array_equal(shares.central, again.central)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    x = np.arange(60, dtype=np.float32)[:, None]
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(60) % 3, group=np.arange(60) // 20)
    np.savez(tmp_path / "other.npz", x=x[:9] + 100, y=np.arange(9) % 3)
    parts = [{"train": list(range(20)), "test": list(range(20, 30))}, list(range(30, 60))]
    (tmp_path / "p.json").write_bytes(msgspec.json.encode(parts))
    return tmp_path


def own_split(split: str, central: float | str) -> DataConfig:
    partition = "p.json" if split == "given" else ""
    words = {"dataset": "own.npz", "split": split, "partition": partition}
    return msgspec.convert({**words, "central_test": central}, DataConfig)


@pytest.mark.parametrize("split", ["natural", "given"])
def test_whoever_had_them_by_the_files_word(own: Path, split: str) -> None:
    shares = share_out(own_split(split, 0.1), 2, 0, own)[1]
    assert len(shares.central) == 6
    assert not of_devices(shares) & set(shares.central.tolist())
    if split == "given":
        assert len(of_devices(shares)) == 54
        assert max(shares.examples(0)[0].inputs) < 20 <= min(shares.examples(0)[1].inputs)


@pytest.mark.parametrize("split", ["iid", "given"])
def test_another_source(own: Path, split: str) -> None:
    shares = share_out(own_split(split, "other.npz"), 2, 0, own)[1]
    assert of_devices(shares) == set(range(60))
    examples = shares.central_examples()
    assert examples is not None
    assert examples.inputs[:, 0].tolist() == [100.0 + i for i in range(9)]
    shares.save(own / "data")
    np.testing.assert_array_equal(Shares.open(own / "data").central, shares.central)


def test_a_file_names_no_example_of_the_other_source(own: Path) -> None:
    (own / "p.json").write_bytes(msgspec.json.encode([[0, 1], [2, 60]]))
    with pytest.raises(DataError, match="example 60, expected 0 to 59"):
        share_out(own_split("given", "other.npz"), 2, 0, own)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((3, 2)), np.arange(3), r"x has float32 rows of shape \(2,\), expected float32"),
        (np.zeros((3, 1)), np.zeros(3), r"y has float32 rows of shape \(1,\), expected int64"),
        (np.zeros((3, 1)), np.arange(3) + 1, "labels up to 3, expected 0 to 2 as in own.npz"),
    ],
)
def test_a_source_of_other_examples(own: Path, x: np.ndarray, y: np.ndarray, message: str) -> None:
    np.savez(own / "other.npz", x=x, y=y)
    with pytest.raises(DataError, match=message):
        share_out(own_split("iid", "other.npz"), 2, 0, own)
