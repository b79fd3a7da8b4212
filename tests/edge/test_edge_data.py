"""Examples from files, images and functions, and the check against a model."""

import os
import re
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from PIL import Image
from tests.fleet import manifest_of

from sedge_edge.config import DataConfig
from sedge_edge.data import LiveData, as_inputs, load_data, load_source, memory, read_source
from sedge_edge.training.examples import (
    Examples,
    check_tokens,
    fitting,
    holdout_size,
    split,
    split_rows,
)
from sedge_protocol.errors import DataError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.bundle import BundleManifest, TensorSpec
from sedge_protocol.wire.parts import ElementType, Shape

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])
PIXELS = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)


def manifest(
    dtype: ElementType = "float32", shape: Shape = (2,), classes: int = 3
) -> BundleManifest:
    layout = Layout.of([("w", (6,), Role.PARAMETER)])
    return manifest_of(layout, input=TensorSpec(dtype, shape), num_classes=classes)


def write_npz(folder: Path, **arrays: NDArray[Any]) -> str:
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]  # keyword arrays
    return "data.npz"


def test_a_group_is_no_matter_to_a_device(tmp_path: Path) -> None:
    """The same file serves an emulated fleet, which it splits by group."""
    x, y = np.zeros((3, 2)), np.arange(3)
    write_npz(tmp_path, x=x, y=y, group=np.array(["ann", "bob", "ann"]))
    assert load_source("data.npz", tmp_path).targets.tolist() == [0, 1, 2]
    source = read_source("data.npz", tmp_path)
    examples, group = source.examples(), source.groups()
    assert examples.targets.tolist() == [0, 1, 2]
    assert group is not None
    assert group.tolist() == ["ann", "bob", "ann"]
    for wrong in (np.zeros(3), np.zeros((3, 1), int), np.arange(2)):
        write_npz(tmp_path, x=x, y=y, group=wrong)
        assert len(load_source("data.npz", tmp_path).targets) == 3
        with pytest.raises(DataError, match=r"group is .*, expected integers or names \(3,\)"):
            read_source("data.npz", tmp_path).groups()


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (X, X),
        (X.astype(np.float64), X),
        (X.astype(np.float16), X),
        (X.astype(np.int32), X.astype(np.int64)),
        (X.astype(np.uint16), X.astype(np.int64)),
        (X > 3, (X > 3).astype(np.float32)),
        (X.astype(np.uint8), X),
        (PIXELS, PIXELS / np.float32(255)),
        (np.asfortranarray(X), X),
        (np.full((6, 2), 1e300), np.full((6, 2), np.inf, np.float32)),
    ],
)
def test_npz_becomes_float32_or_int64(
    tmp_path: Path, x: NDArray[Any], expected: NDArray[Any]
) -> None:
    examples = load_source(write_npz(tmp_path, x=x, y=Y.astype(np.uint8)), tmp_path)
    assert examples.inputs.dtype == expected.dtype
    np.testing.assert_array_equal(examples.inputs, expected)
    assert examples.inputs.flags.c_contiguous
    assert examples.targets.dtype == np.int64
    np.testing.assert_array_equal(examples.targets, Y)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": Y}, "no inputs, expected x or arrays by name"),
        ({"x": X, "y": Y.astype(complex)}, "y is complex128, expected numbers"),
        ({"x": X, "y": np.int64(1)}, r"y is a single value, expected an array \(N, ...\)"),
        ({"x": np.float32(1), "y": Y}, "x is a single value"),
        ({"x": np.array(["a"] * 6), "y": Y}, "x is <U1, expected numbers"),
        ({"x": X.astype(complex), "y": Y}, "x is complex128, expected numbers"),
        (
            {"x": np.array([{}] * 6, object), "y": Y},
            "array x holds Python objects, expected an .npz",
        ),
        (
            {"x_train": X, "y_train": Y},
            r"arrays are x_train \(6, 2\), y_train \(6,\), expected the names x and y",
        ),
        (
            {"image": X, "age": Y - 2**24 - 1, "y": Y},
            "age holds -16777217, expected at most 16777216",
        ),
        (
            {"image": X, "age": Y + 2**24 - 1, "y": Y},
            "age holds 16777217, expected at most 16777216",
        ),
        ({"X": X, "Y": Y}, r"arrays are X \(6, 2\), Y \(6,\), expected"),
        ({"data": X, "label": Y}, r"arrays are data \(6, 2\), label \(6,\), expected"),
        ({"x": X, "labels": Y}, r"arrays are x \(6, 2\), labels \(6,\), expected"),
    ],
)
def test_an_npz_without_examples(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_source(write_npz(tmp_path, **arrays), tmp_path)


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: No such file"):
        load_source("none.npz", tmp_path)
    np.save(tmp_path / "array.npy", X)
    whole = (tmp_path / write_npz(tmp_path, x=X, y=Y)).read_bytes()
    for name, data in {
        "text": b"x,y\n1,2",
        "empty": b"",
        "cut": whole[:300],
        "zip": whole[:-30],
    }.items():
        (tmp_path / name).write_bytes(data)
    for name, message in {
        "array.npy": ".npy cannot be read, expected .npz, .csv",
        "table.h5": ".h5 cannot be read, expected .npz, .csv, a folder of images, or a function",
        "text": "neither .npy nor .npz, expected an .npz with plain arrays x and y",
        "empty": "empty: empty, expected an .npz",
        "cut": "damaged",
        "zip": "damaged",
    }.items():
        with pytest.raises(DataError, match=name) as caught:
            load_source(name, tmp_path)
        assert message in str(caught.value)
        assert "pickle" not in str(caught.value)


def test_a_function_is_called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sedge_user_data.py").write_text(
        "import numpy as np\n"
        "def load(): return np.ones((3, 2)), [0, 1, 2]\n"
        "def broken(): raise RuntimeError('sensor is off')\n"
        "def lonely(): return np.ones((3, 2))\n"
        "def ragged(): return [[1], [1, 2]], [0, 1]\n"
        "class Tensor:\n"
        "    def __array__(self, *args, **kwargs): raise RuntimeError('call detach()')\n"
        "def tensor(): return Tensor(), [0, 1]\n"
        "def script(): raise SystemExit('done')\n"
    )
    before = list(sys.path)
    examples = load_source("sedge_user_data:load", tmp_path)
    assert examples.inputs.shape == (3, 2)
    assert examples.targets.tolist() == [0, 1, 2]
    for name, message in {
        "broken": "RuntimeError: sensor is off",
        "lonely": "returned ndarray, expected a tuple",
        "ragged": "a list that is not an array, expected numbers in rows of one length",
        "tensor": "a Tensor that is not an array",
        "missing": "sedge_user_data has no 'missing'",
        "script": "SystemExit: done",
    }.items():
        with pytest.raises(DataError, match=message):
            load_source(f"sedge_user_data:{name}", tmp_path)
    with pytest.raises(DataError, match=r"no sedge_no_such_module\.py in"):
        load_source("sedge_no_such_module:load", tmp_path)
    assert sys.path == before
    del sys.modules["sedge_user_data"]


def write_images(folder: Path, names: list[str], size: tuple[int, int] = (3, 2)) -> None:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        mode = "L" if "grey" in name else "RGB"
        colour: Any = 51 * number if mode == "L" else (51 * number, 0, 255)
        Image.new(mode, size, colour).save(folder / name)


def test_a_folder_of_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ["7-dog/a.png", "7-dog/b.PNG", "2/c.png", "10_ox/d.png"])
    (tmp_path / "images" / "2" / "notes.txt").write_text("not an image")
    (tmp_path / "images" / "0-empty").mkdir()
    examples = load_source("images", tmp_path)
    assert examples.targets.tolist() == [10, 2, 7, 7]
    assert examples.inputs.shape == (4, 3, 2, 3)
    assert examples.inputs.dtype == np.float32
    np.testing.assert_allclose(examples.inputs[0, :, 1, 2], [0.6, 0.0, 1.0])
    fitting(examples, manifest(shape=(3, 2, 3), classes=11))
    last = Examples(examples.inputs.transpose(0, 2, 3, 1), examples.targets)
    with pytest.raises(DataError, match=r"expects \(3, 2, 3\); .* x.transpose\(0, 3, 1, 2\)$"):
        fitting(last, manifest(shape=(3, 2, 3), classes=11))


@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "1", "CMYK"])
def test_other_modes_are_converted(tmp_path: Path, mode: str) -> None:
    (tmp_path / "images" / "0").mkdir(parents=True)
    name = "a.jpg" if mode == "CMYK" else "a.png"
    Image.new(mode, (4, 4)).save(tmp_path / "images" / "0" / name)
    channels = 1 if mode in ("LA", "1") else 3
    assert load_source("images", tmp_path).inputs.shape == (1, channels, 4, 4)


def test_folders_that_hold_no_images(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    with pytest.raises(DataError, match="no images"):
        load_source("images", tmp_path)
    write_images(folder, ["1/a.png"])
    write_images(folder, ["1/b.png"], (2, 2))
    with pytest.raises(DataError, match=r"b\.png: \(3, 2, 2\), expected \(3, 2, 3\)"):
        load_source("images", tmp_path)
    (folder / "1" / "b.png").write_bytes((folder / "1" / "a.png").read_bytes()[:50])
    with pytest.raises(DataError, match=r"b\.png: not an image, or a damaged one$"):
        load_source("images", tmp_path)
    Image.new("I;16", (3, 2)).save(folder / "1" / "b.png")
    with pytest.raises(DataError, match="mode I;16, expected 8 bits"):
        load_source("images", tmp_path)
    (folder / "1" / "b.png").unlink()
    (folder / "cat").mkdir()
    with pytest.raises(DataError, match="cat: the folder's name has no label"):
        load_source("images", tmp_path)


@pytest.mark.parametrize("closed", ["images", "images/1", "images/1/a.png"])
def test_what_is_closed_to_us_is_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed: str
) -> None:
    """Tests may run as root, to whom nothing is closed."""
    write_images(tmp_path / "images", ["1/a.png"])
    real = os.stat if closed.endswith(".png") else os.listdir

    def refuse(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == tmp_path / closed:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, real.__name__, refuse)
    source = closed if closed.endswith(".png") else "images"
    with pytest.raises(
        DataError, match=f"{tmp_path / closed}: Permission denied, expected a readable"
    ):
        load_source(source, tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_name_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"too long|null byte"):
        load_source(name, tmp_path)


def test_an_image_that_would_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "images", ["1/a.png"], (30, 30))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(DataError, match=r"a\.png: too large, expected at most 200 pixels$"):
        load_source("images", tmp_path)


def test_every_image_that_pillow_reads_and_what_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [
        "0-cat/a.png",
        "1-dog/b.webp",
        "1-dog/c.bmp",
        "1-dog/d.JPG",
        "1-dog/e.tif",
        "1-dog/f.gif",
    ]
    write_images(tmp_path / "images", names)
    assert load_source("images", tmp_path).targets.tolist() == [0, 1, 1, 1, 1, 1]
    assert not caplog.records
    folder = tmp_path / "images" / "1-dog"
    for name in ("g.heic", "h.heic", "notes.txt", ".DS_Store", "LICENSE"):
        (folder / name).write_bytes(b"")
    (folder / "more").mkdir()
    (tmp_path / "images" / "loose.png").write_bytes(b"")
    assert len(load_source("images", tmp_path).targets) == 6
    (record,) = caplog.records
    said = "ignored, not images: 2 .heic, 1 .png, 1 .txt, 1 folders, 1 without ending"
    assert record.message == f"{tmp_path / 'images'}: {said}"
    frames = [Image.new("L", (3, 2), shade) for shade in (0, 255)]
    frames[0].save(folder / "f.gif", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match=r"f\.gif: 2 images in one file, expected one"):
        load_source("images", tmp_path)


def test_photographs_are_counted_before_memory_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first image's size decides: of the others, which are none, nothing is read."""
    write_images(tmp_path / "big", ["0/a.png"], (400, 300))
    for number in range(9):
        (tmp_path / "big" / "0" / f"b{number}.png").write_bytes(b"")
    monkeypatch.setattr(memory, "memory_mb", lambda: 17)  # they need 18
    said = r"big: 10 images of 400 x 300 pixels need 18 MB of memory, but this device has 17 MB: resize"
    with pytest.raises(DataError, match=said):
        load_source("big", tmp_path)
    with pytest.raises(
        DataError, match=r"a\.png: an image \(3, 300, 400\), but the model expects \(3, 8, 8\)"
    ):
        read_source("big", tmp_path, (3, 8, 8))
    monkeypatch.setattr(memory, "memory_mb", lambda: 19)
    with pytest.raises(DataError, match=r"b0\.png: not an image"):
        load_source("big", tmp_path)


def test_arrays_that_do_not_fit_are_a_data_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "data.npz", x=np.zeros((1000, 1000)), y=np.zeros(1000, int))
    monkeypatch.setattr(memory, "memory_mb", lambda: 7)
    with pytest.raises(
        DataError, match=r"data\.npz: its arrays need 8 MB of memory, but this device has 7"
    ):
        load_source("data.npz", tmp_path)
    monkeypatch.setattr(memory, "memory_mb", lambda: 8000)

    def full(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "ascontiguousarray", full)
    with pytest.raises(DataError, match=r"data\.npz: the examples need more memory than is free"):
        load_data(DataConfig(train="data.npz"), tmp_path)


def test_without_pillow_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "images", ["1/a.png"])
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match="pip install pillow"):
        load_source("images", tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X[:5], Y, "x has 5 rows and y 6"),
        (X[:0], Y[:0], "x has no rows"),
        (
            np.where(X == 5, 2**24 + 1, X.astype(np.int64)),
            Y,
            r"x is int64 and x\[2\] holds 16777217, but the model expects float32: only whole numbers",
        ),
        (X, np.full((6, 1), 0.5, np.float32), r"y\[0\] is 0.5, but the model has classes 0 to 2"),
        (X.reshape(6, 2, 1), Y, r"shape \(2, 1\), but the model expects \(2,\)"),
        (X[:, 0], Y, r"shape \(\), but the model expects \(2,\)"),
        (np.where(X == 5, np.nan, X).astype(np.float32), Y, r"x\[2\] holds NaN"),
        (np.where(X == 6, np.inf, X).astype(np.float32), Y, r"x\[3\] holds NaN or inf"),
        (np.where(X == 7, -np.inf, X).astype(np.float32), Y, r"x\[3\] holds NaN or inf"),
        (X, np.array([0, 1, 2, 3, 4, 0]), r"y\[3\] is 3, but the model has classes 0 to 2"),
        (X, np.array([0, 1, 2, 0, 0, -1]), r"y\[5\] is -1"),
    ],
)
def test_check_names_what_is_wrong(
    x: NDArray[Any], y: NDArray[np.int64 | np.float32], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        fitting(Examples(x, y), manifest())


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((4, 1, 0), 3, "y[4, 1, 0] is 3, but the model has classes 0 to 2; -100 marks an element that "
         "does not count"),
        ((5, 0, 1), 255, "y[5, 0, 1] is 255"),
        ((0, 1, 1), -1, "y[0, 1, 1] is -1"),
        ((3,), -100, "y[3] holds only -100, so none of it counts: leave the row out"),
    ],
)  # fmt: skip
def test_a_label_for_each_pixel(place: tuple[int, ...], value: int, message: str) -> None:
    model = structs.replace(manifest(), target=TensorSpec("int64", (2, 2)))
    y = np.arange(24).reshape(6, 2, 2) % 3
    y[1:, 1] = -100
    assert fitting(Examples(X, y.astype(np.float32)), model).targets.tolist() == y.tolist()
    y[place] = value
    with pytest.raises(DataError, match=re.escape(message)):
        fitting(Examples(X, y), model)


def test_a_model_of_numbers_takes_floats_as_columns(tmp_path: Path) -> None:
    regression = structs.replace(manifest(classes=0), target=TensorSpec("float32", (1,)))
    found = load_source(write_npz(tmp_path, x=X, y=Y / 2), tmp_path)
    assert found.targets.dtype == np.float32
    assert found.targets.shape == (6, 1)
    assert fitting(found, regression) is found
    two = structs.replace(regression, target=TensorSpec("float32", (2,)))
    with pytest.raises(
        DataError, match=r"y has rows of shape \(1,\), but the model expects \(2,\)"
    ):
        fitting(found, two)
    broken = Examples(X, np.where(Y[:, None] == 1, np.nan, 0).astype(np.float32))
    with pytest.raises(DataError, match=r"y\[1\] holds NaN or inf"):
        fitting(broken, regression)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int32, np.uint8, np.bool_])
def test_the_same_numbers_are_the_same_examples_in_every_type(tmp_path: Path, kind: Any) -> None:
    """What a model takes decides, so that two devices that write them otherwise train on the same."""
    x = (X % 2).astype(kind) if kind is np.bool_ else (X * 20).astype(kind)
    expected = np.asarray(x, np.float32)
    found = fitting(load_source(write_npz(tmp_path, x=x, y=Y), tmp_path), manifest())
    assert found.inputs.dtype == np.float32
    np.testing.assert_array_equal(found.inputs, expected)
    tokens = fitting(load_source("data.npz", tmp_path), manifest("int64"))
    assert tokens.inputs.dtype == np.int64
    np.testing.assert_array_equal(tokens.inputs, expected)
    np.testing.assert_array_equal(as_inputs(x, manifest(), "inputs"), expected)


@pytest.mark.parametrize("y", [Y, Y[:, None], Y / 1, Y[:, None] / 1, Y.astype(np.uint8)])
def test_labels_and_numbers_are_told_apart_by_the_model(tmp_path: Path, y: NDArray[Any]) -> None:
    """A table makes labels floating-point, and targets that are whole look like labels."""
    found = load_source(write_npz(tmp_path, x=X, y=y), tmp_path)
    labels = fitting(found, manifest()).targets
    assert labels.dtype == np.int64
    assert labels.tolist() == Y.tolist()
    regression = structs.replace(manifest(classes=0), target=TensorSpec("float32", (1,)))
    numbers = fitting(found, regression).targets
    assert numbers.dtype == np.float32
    np.testing.assert_array_equal(numbers, Y[:, None])


def test_bytes_that_are_no_image_are_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_npz(tmp_path, x=X.astype(np.uint8), y=Y)
    data = LiveData(DataConfig(train=source), tmp_path)
    data()
    (tmp_path / "state").mkdir()  # the agent's own files lie next to the data
    data()
    (said,) = caplog.messages
    assert "data.npz: x holds unsigned bytes in rows of shape (2,), read as numbers" in said
    caplog.clear()
    load_source(write_npz(tmp_path, x=PIXELS, y=Y), tmp_path)
    assert not caplog.records


def test_without_y_the_input_is_the_target_of_a_model_that_takes_it_so(tmp_path: Path) -> None:
    source = write_npz(tmp_path, x=X)
    unlabelled = load_source(source, tmp_path)
    train, test = load_data(DataConfig(train=source), tmp_path)
    for found in (unlabelled, train, test):
        assert found.targets is found.inputs
    with pytest.raises(DataError, match="there is no y, but the model expects int64 targets"):
        fitting(unlabelled, manifest())
    named = load_source(write_npz(tmp_path, image=X, age=X), tmp_path)
    with pytest.raises(DataError, match=r"there is no y, .*; the arrays are image, age$"):
        fitting(named, manifest())
    autoencoder = structs.replace(manifest(classes=0), target=None)
    for found in (unlabelled, Examples(X, Y)):
        assert fitting(found, autoencoder).targets is found.inputs


def test_check_lets_good_examples_pass() -> None:
    fitting(Examples(X, Y), manifest())
    fitting(Examples(X, Y + 100), manifest(classes=0))
    fitting(Examples(X.astype(np.int64), Y), manifest(dtype="int64"))
    fitting(Examples(X[:, 0], Y), manifest(shape=()))


@pytest.mark.parametrize(
    ("count", "fraction", "num_test"), [(10, 0.2, 2), (2, 0.9, 1), (3, 0.01, 1)]
)
def test_split_parts_the_examples(count: int, fraction: float, num_test: int) -> None:
    examples = Examples(np.arange(count, dtype=np.float32)[:, None], np.arange(count))
    train, test = split(examples, fraction, 7)
    assert (len(train.targets), len(test.targets)) == (count - num_test, num_test)
    assert holdout_size(count, fraction) == num_test
    assert sorted([*train.targets.tolist(), *test.targets.tolist()]) == list(range(count))
    np.testing.assert_array_equal(train.inputs[:, 0], train.targets)
    np.testing.assert_array_equal(test.inputs[:, 0], test.targets)


def test_split_depends_on_the_seed_alone() -> None:
    examples = Examples(np.zeros((50, 1), np.float32), np.arange(50))
    tests = [split(examples, 0.2, seed)[1].targets.tolist() for seed in (1, 1, 2)]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2]
    # The specification's example, drawn from numbers that no epoch's shuffle uses.
    train, test = split_rows(10, 0.2, 1)
    assert (train.tolist(), test.tolist()) == ([0, 1, 2, 3, 6, 7, 8, 9], [4, 5])
    with pytest.raises(DataError, match="1 examples cannot be split"):
        split(Examples(X[:1], Y[:1]), 0.2, 0)


def test_pixels_are_split_before_they_grow(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (20_000, 1, 10, 10), np.uint8)
    source = write_npz(tmp_path, x=x, y=np.zeros(len(x), np.int64))
    tracemalloc.start()
    try:
        train, test = load_data(DataConfig(train=source), tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert train.inputs.dtype == test.inputs.dtype == np.float32
    # float32 alone is four times as much; both, split and whole, were nine.
    assert peak < 7 * x.nbytes


def test_any_flipped_bit_of_a_compressed_archive_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "train.npz"
    np.savez_compressed(path, x=np.arange(40.0).reshape(10, 4), y=np.arange(10))
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x40]) + whole[place + 1 :])
        try:
            load_source(str(path), tmp_path)
        except DataError:
            refused += 1
    assert refused > 50


def test_tokens_are_below_the_vocabulary_if_that_is_known() -> None:
    check_tokens(np.array([[0, 4]]), 5, "x")
    check_tokens(np.array([[-1, 10**6]]), 0, "x")
    for token in (-1, 5):
        with pytest.raises(DataError, match=rf"x\[1, 0\] is {token}\b"):
            check_tokens(np.array([[0, 4], [token, 9]]), 5, "x")


def test_new_data_are_read_without_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A file is replaced, an image comes; what is damaged leaves the examples from before."""
    path = tmp_path / "train.npz"
    x = np.arange(20.0).reshape(10, 2)
    np.savez(path, x=x, y=np.zeros(10, int))
    data = LiveData(DataConfig(train="train.npz"), tmp_path)
    first = data()
    both = LiveData(DataConfig(train="train.npz", test="train.npz"), tmp_path)()
    for part in (*first, *both):  # each example knows its row in the file
        assert part.places is not None
        np.testing.assert_array_equal(part.inputs, x[part.places.numbers])
    assert data() is first and len(first[0].targets) == 8
    path.write_bytes(b"half of a fi")
    assert data() is data() is data() is first
    (said,) = caplog.messages
    assert "new data" in said and "continuing with the previous examples" in said
    np.savez(path, x=np.zeros((20, 2)), y=np.zeros(20, int))
    assert data() is data() and len(data()[0].targets) == 16
    path.unlink()
    assert len(data()[0].targets) == 16
    write_images(tmp_path / "images", ["0/a.png", "1-cat/b.png"])
    data = LiveData(DataConfig(train="images", test="images"), tmp_path)
    assert len(data()[1].targets) == 2
    write_images(tmp_path / "images", ["1-cat/c.png"])
    assert len(data()[1].targets) == 3
    late = tmp_path / "images" / "1-cat" / "d.png"
    whole = late.with_name("c.png").read_bytes()
    late.write_bytes(whole[:20])  # its camera is still at it
    assert len(data()[1].targets) == 3
    late.write_bytes(whole)
    assert len(data()[1].targets) == 4
