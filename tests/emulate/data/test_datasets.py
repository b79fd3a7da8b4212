"""The data sets: a strict IDX reader, where Fashion-MNIST is looked for, and facts of the real one."""

import gzip
import os
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_emulate.data import datasets as data
from sedge_emulate.data.archives import DATA_VARIABLE
from sedge_emulate.data.datasets import FILES, Dataset, digits, fashion_mnist, load, read_idx
from sedge_protocol.errors import DataError

_FASHION = Path("/usr/share/datasets/fashion-mnist")


def idx(array: NDArray[np.uint8]) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content, 1))
    return path


def tiny(folder: Path, train: int = 5, test: int = 3) -> Path:
    """A Fashion-MNIST of a few images: pixel value = position in the pool, label likewise."""
    folder.mkdir(exist_ok=True)
    first = 0
    for (images, labels), count in zip(FILES, (train, test), strict=True):
        values = np.arange(first, first + count, dtype=np.uint8)
        write(folder / images, idx(np.broadcast_to(values[:, None, None], (count, 28, 28)).copy()))
        write(folder / labels, idx(values))
        first += count
    return folder


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any data set; the place is where a user's own would lie."""
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    places = (tmp_path / "system", tmp_path / "home")
    monkeypatch.setattr(data, "_standard_places", lambda: places)
    return places[1]


def test_idx_round_trip(tmp_path: Path) -> None:
    array = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    assert np.array_equal(read_idx(write(tmp_path / "a.gz", idx(array)), 3), array)


def test_every_prefix_of_an_idx_file_is_refused(tmp_path: Path) -> None:
    content = idx(np.arange(6, dtype=np.uint8).reshape(3, 2))
    for length in range(len(content)):
        with pytest.raises(DataError, match=r"a\.gz: .*expected"):
            read_idx(write(tmp_path / "a.gz", content[:length]), 2)


def test_every_prefix_of_the_gzip_stream_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(idx(np.arange(200, dtype=np.uint8)))
    for length in range(len(whole)):
        (tmp_path / "a.gz").write_bytes(whole[:length])
        with pytest.raises(DataError, match=r"a\.gz"):
            read_idx(tmp_path / "a.gz", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bytes((0, 0, 8, 3)) + struct.pack(">I", 1) + b"x", "magic 00000803, expected 00000801"),
        (bytes((0, 0, 13, 1)) + struct.pack(">I", 1) + b"x", "magic 00000d01"),
        (bytes((1, 0, 8, 1)) + struct.pack(">I", 1) + b"x", "magic 01000801"),
        (bytes((0, 0, 8, 1)) + struct.pack(">I", 3) + b"ab", "2 bytes of data, expected 3"),
        (bytes((0, 0, 8, 1)) + struct.pack(">I", 1) + b"ab", "more data than the 1 bytes"),
        (bytes((0, 0, 8, 1)) + struct.pack(">I", 0), "is 0 bytes, expected 1 to"),
        (bytes((0, 0, 8, 1)) + struct.pack(">I", 2**32 - 1), "4294967295 bytes, expected 1 to"),
    ],
)
def test_a_wrong_header_or_length_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_idx(write(tmp_path / "labels.gz", content), 1)


STREAM = gzip.compress(idx(np.arange(50, dtype=np.uint8)), 0, mtime=0)
FLIPPED = STREAM[:40] + bytes([STREAM[40] ^ 1]) + STREAM[41:]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"not gzip", r"a\.gz"), (gzip.decompress(STREAM), r"a\.gz"), (FLIPPED, "CRC")],
    ids=["a text", "unpacked", "a flipped bit"],
)
def test_what_is_no_sound_gzip_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.gz").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "a.gz", 1)


@pytest.mark.parametrize("claimed", [1000, 2**31])
def test_a_gzip_bomb_takes_no_memory(tmp_path: Path, claimed: int) -> None:
    bomb = bytes((0, 0, 8, 1)) + struct.pack(">I", claimed) + bytes(100 * 2**20)
    path = write(tmp_path / "bomb.gz", bomb)
    del bomb
    tracemalloc.start()
    with pytest.raises(DataError):
        read_idx(path, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**21


def test_images_are_pooled_and_normalised(tmp_path: Path) -> None:
    dataset = fashion_mnist(tiny(tmp_path))
    assert dataset.inputs.shape == (8, 1, 28, 28)
    assert dataset.inputs.dtype == np.float32
    assert dataset.targets.dtype == np.int64
    assert dataset.targets.tolist() == list(range(8))
    expected = (np.arange(8, dtype=np.float32) / 255 - np.float32(0.286)) / np.float32(0.3205)
    assert np.array_equal(dataset.inputs[:, 0, 27, 27], expected)


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    folder = tiny(tmp_path)
    write(folder / FILES[1][1], idx(np.zeros(4, np.uint8)))
    with pytest.raises(DataError, match=r"t10k-labels.*: 4 labels for 3 images"):
        fashion_mnist(folder)
    write(folder / FILES[1][0], idx(np.zeros((4, 28, 27), np.uint8)))
    with pytest.raises(DataError, match=r"t10k-images.*\(28, 27\) pixels, expected \(28, 28\)"):
        fashion_mnist(folder)

    write(tiny(folder) / FILES[0][1], idx(np.full(5, 10, np.uint8)))
    with pytest.raises(DataError, match=r"y\[0\] is 10, but the model has classes 0 to 9"):
        fashion_mnist(folder)
    (folder / FILES[1][0]).unlink()
    with pytest.raises(DataError, match="t10k-images"):
        fashion_mnist(folder)


def test_the_first_place_that_has_it_is_taken(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load("auto").name == "digits"
    tiny(elsewhere, 2, 2)
    assert len(load("auto").targets) == 4
    tiny(tmp_path / "named", 3, 2)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "named"))
    assert len(load("fashion-mnist").targets) == 5
    tiny(tmp_path / "given", 4, 2)
    assert len(load("auto", tmp_path / "given").targets) == 6


def test_a_place_that_was_asked_for_is_never_replaced(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny(elsewhere)
    with pytest.raises(DataError, match="no Fashion-MNIST here"):
        load("auto", tmp_path)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere: no Fashion-MNIST here"):
        load("auto")


def test_where_it_is_missing_the_message_says_how_to_get_it(elsewhere: Path) -> None:
    with pytest.raises(DataError, match=f"{elsewhere}; install Debian's dataset-fashion-mnist"):
        load("fashion-mnist")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(DataError, match="cifar"):
        load("cifar")


def test_the_digits() -> None:
    dataset = digits()
    assert dataset.inputs.shape == (1797, 1, 8, 8)
    counts = np.bincount(dataset.targets).tolist()
    assert counts == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert abs(float(dataset.inputs.mean())) < 1e-3
    assert abs(float(dataset.inputs.std()) - 1) < 1e-3


@pytest.mark.parametrize(
    ("shape", "targets", "message"),
    [
        ((2,), [0, 1], r"expected \(N, \.\.\.\)"),
        ((2, 1, 3, 3), [0, 1, 2], r"expected \(N, \.\.\.\)"),
        ((0, 1, 3, 3), [], "no examples"),
        ((2, 1, 3, 3), [0, 3], r"y\[1\] is 3, but the model has classes 0 to 2"),
        ((2, 1, 3, 3), [-1, 0], r"y\[0\] is -1"),
    ],
)
def test_a_dataset_is_sound(shape: tuple[int, ...], targets: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dataset("mine", np.zeros(shape, np.float32), np.array(targets, np.int64), 3)


def test_a_label_that_is_no_class_number_is_named(tmp_path: Path) -> None:
    labels = np.array([0, 10**12], np.int64)
    np.savez(tmp_path / "own.npz", x=np.zeros((2, 1, 3, 3), np.float32), y=labels)
    with pytest.raises(DataError, match=r"own\.npz: y holds the label 1000000000000, expected"):
        load("own.npz", base=tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_example_that_no_device_could_train_on_is_named(value: float) -> None:
    inputs = np.zeros((5, 1, 3, 3), np.float32)
    inputs[3, 0, 1, 2] = value
    with pytest.raises(DataError, match=r"mine: x\[3\] holds NaN or inf"):
        Dataset("mine", inputs, np.zeros(5, np.int64), 3)


def test_the_real_fashion_mnist() -> None:
    if not _FASHION.is_dir() and os.environ.get("CI") != "true":
        pytest.skip("Fashion-MNIST is not installed: apt-get install dataset-fashion-mnist")
    dataset = fashion_mnist(_FASHION)
    assert dataset.inputs.shape == (70_000, 1, 28, 28)
    assert np.bincount(dataset.targets).tolist() == [7000] * 10
    # The constants are those of the 60,000 train images, which come first.
    assert np.bincount(dataset.targets[:60_000]).tolist() == [6000] * 10
    assert abs(float(dataset.inputs[:60_000].mean(dtype=np.float64))) < 1e-3
    # The first image of the train set is an ankle incarnation.
    assert dataset.targets[:5].tolist() == [9, 0, 0, 3, 0]
