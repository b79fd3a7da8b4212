"""The data sets of the emulator: Fashion-MNIST, scikit-learn's digits, people's phones, Shakespeare.

A ``Dataset`` is one pair of arrays for the whole fleet; a device's share is an array of indices
(``split.py``), never a copy. Images are normalised once, in place: 70,000 Fashion-MNIST images are 220 MB
of float32, four times their raw bytes, and in return every device gathers its batches directly from them.

Nothing is downloaded here. The last two are searched for in archives.py's places, Fashion-MNIST (Xiao et
al. 2017, arXiv 1708.07747, MIT) in

    the given folder, otherwise $SEDGE_DATA; where one is named, nowhere else
    /usr/share/datasets/fashion-mnist            apt-get install dataset-fashion-mnist
    ~/.local/share/datasets/fashion-mnist

as the four gzipped IDX files of its authors. Train and test images are pooled, train first, as the
literature on personalised federated learning does: each device then splits its own share.
"""

import gzip
import math
import os
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from sedge_edge.data import read_source
from sedge_edge.training.examples import Examples, Inputs, check_labels, require_finite
from sedge_emulate.data.archives import DATA_VARIABLE
from sedge_emulate.data.pfllib import is_pfllib, joined, read_pfllib
from sedge_emulate.data.phones import phones
from sedge_emulate.data.shakespeare import shakespeare
from sedge_protocol.errors import DataError
from sedge_protocol.wire.objective import IGNORED, TargetKind
from sedge_protocol.wire.parts import InputPart

# The data sets that say who owns each example.
PEOPLE = {"phones": phones, "shakespeare": shakespeare}
FILES = (
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
# Mean and standard deviation of the train images' pixels in [0, 1], as every published run uses them.
FASHION_MEAN, FASHION_STD = 0.286, 0.3205
# The same for the 1,797 digits (0.30526, 0.37600 over x / 16).
DIGITS_MEAN, DIGITS_STD = 0.3053, 0.376
# For a user's own data: the model gets an output for each label up to the largest.
MAX_CLASSES = 2**20
TENTHS = 10
_UNSIGNED_BYTE = 0x08
# The largest file, the train images, is 47,040,016 bytes; a header that claims more than this is not read.
_MAX_IDX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Dataset:
    """``inputs`` (N, ...), images (N, C, H, W) normalised, and ``targets``.

    These are labels from 0, (N,) or (N, ...), or numbers (N, ...); with 0 classes, labels say nothing.
    ``groups`` (N,), numbers from 0, name the owner of each example, and ``tests`` (N,) says which ones are
    for testing, if the source says so. ``parts`` are the arrays that a row of ``inputs`` (N, K) holds, if
    the source gives several. ``sha256`` identifies everything that a split is made from (see shares.py).
    ``notes`` say what a reader of the user's files decided or left out.
    """

    name: str
    inputs: Inputs
    targets: Inputs
    num_classes: int
    groups: NDArray[np.int64] | None = None
    tests: NDArray[np.bool_] | None = None
    sha256: str = ""
    parts: tuple[InputPart, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.inputs.ndim < 2 or self.targets.shape[:1] != self.inputs.shape[:1]:
            raise DataError(
                f"{self.name}: inputs {self.inputs.shape} and targets {self.targets.shape}, "
                "expected (N, ...) and labels (N,), or (N, ...)"
            )
        if self.targets.size == 0:
            raise DataError(f"{self.name}: no examples")
        if self.num_classes:
            check_labels(self.targets, self.num_classes, f"{self.name}: y")
        require_finite(self.inputs, f"{self.name}: x")
        require_finite(self.targets, f"{self.name}: y")

    @property
    def target(self) -> TargetKind:
        """The kind of a row of ``targets``; "none" if it was not specified."""
        if self.num_classes:
            return "class"
        return "float" if self.targets.dtype == np.float32 else "none"

    @property
    def outputs(self) -> int:
        """The number of outputs of a model for these targets."""
        return self.num_classes or math.prod(self.targets.shape[1:])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The keys that a split uses, (N,): the labels, or tenths of the examples by their first number.

        For several labels in a row it is the label that is rarest in the whole data, not the background
        that all rows have.
        """
        if self.targets.dtype != np.float32:
            return _rarest(self.targets.reshape(len(self.targets), -1).astype(np.int64, copy=False))
        order = np.argsort(self.targets.reshape(len(self.targets), -1)[:, 0], kind="stable")
        labels = np.empty(len(order), np.int64)
        labels[order] = np.arange(len(order)) * TENTHS // len(order)
        return labels


def _rarest(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """The label of each row of (N, T) that is rarest in all of them, (N,)."""
    if labels.shape[1] == 1:
        return labels[:, 0]
    counts = np.bincount(labels[labels >= 0])
    often = np.where(labels == IGNORED, labels.size, counts[np.maximum(labels, 0)])
    rarest: NDArray[np.int64] = labels[np.arange(len(labels)), often.argmin(axis=1)]
    return rarest


def load(name: str, folder: Path | None = None, base: Path | None = None) -> Dataset:
    """The named data set; ``auto`` is Fashion-MNIST if it is found and the digits otherwise.

    Any other name is a data source of the user's, as in edge.toml ("module:function", .npz, .csv, a folder
    of class folders), or a folder of PFLlib's, looked up in ``base``. Raises ``DataError`` for missing or
    broken data.
    """
    if name in PEOPLE:
        return Dataset(name, **vars(PEOPLE[name](folder)))
    if name not in ("auto", "fashion-mnist", "digits"):
        return _own(name, base or Path.cwd())
    if name == "digits" or (name == "auto" and find_fashion_mnist(folder) is None):
        return digits()
    return fashion_mnist(folder)


def _own(name: str, base: Path) -> Dataset:
    """The user's own data set."""
    if is_pfllib(base / name):
        train, test = read_pfllib(base / name)
        sizes = [len(client.targets) for client in (*train, *test)]
        clients = np.repeat(np.tile(np.arange(len(train)), 2), sizes)
        tests = np.repeat(np.repeat([False, True], len(train)), sizes)
        found = _labelled(name, joined([*train, *test]))
        return replace(found, groups=clients, tests=tests)
    source = read_source(name, base)
    own, group = source.examples(), source.groups()
    found = replace(_labelled(name, own), parts=own.parts, notes=source.notes)
    if group is None:
        return found
    return replace(found, groups=np.unique(group, return_inverse=True)[1].astype(np.int64))


def _labelled(name: str, own: Examples) -> Dataset:
    """The examples with the number of their classes."""
    if own.targets is own.inputs:
        return Dataset(name, own.inputs, np.zeros(len(own.inputs), np.int64), 0)
    if own.targets.dtype == np.float32:
        return Dataset(name, own.inputs, own.targets, 0)
    classes = int(own.targets.max(initial=0)) + 1
    if classes > MAX_CLASSES:
        raise DataError(
            f"{name}: y holds the label {classes - 1}, expected labels that count from 0, "
            f"at most {MAX_CLASSES - 1}"
        )
    return Dataset(name, own.inputs, own.targets, classes)


def find_fashion_mnist(folder: Path | None = None) -> Path | None:
    """The folder that holds Fashion-MNIST, or None if no standard place does.

    A place that the user named (``folder``, otherwise $SEDGE_DATA) is the only one searched, and an empty
    one raises ``DataError``: training on other data than requested would be worse than stopping.
    """
    named = folder or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if named is not None:
        if not _is_there(named):
            raise DataError(
                f"{named}: no Fashion-MNIST here, expected {FILES[0][0]} and three more"
            )
        return named
    return next((place for place in _standard_places() if _is_there(place)), None)


def fashion_mnist(folder: Path | None = None) -> Dataset:
    """The 70,000 real images, (70000, 1, 28, 28), train then test.

    Raises ``DataError`` if the files are missing, malformed or of different shapes.
    """
    place = find_fashion_mnist(folder)
    if place is None:
        places = ", ".join(map(str, _standard_places()))
        raise DataError(
            f"Fashion-MNIST: not in {places}; install Debian's dataset-fashion-mnist, or put its four "
            f"{FILES[0][0]}, ... into a folder and name it in ${DATA_VARIABLE}"
        )
    parts = [_read_pair(place / images, place / labels) for images, labels in FILES]
    count = sum(len(labels) for _, labels in parts)
    inputs = np.empty((count, 1, 28, 28), np.float32)
    start = 0
    for images, _ in parts:
        _normalise(images, 255, FASHION_MEAN, FASHION_STD, inputs[start : start + len(images), 0])
        start += len(images)
    targets = np.concatenate([labels for _, labels in parts]).astype(np.int64)
    return Dataset("fashion-mnist", inputs, targets, 10)


def digits() -> Dataset:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn, (1797, 1, 8, 8)."""
    # Imported here, because scikit-learn takes a second to import and most runs never need it.
    from sklearn.datasets import load_digits

    pixels, targets = cast(
        "tuple[NDArray[np.float64], NDArray[np.int64]]", load_digits(return_X_y=True)
    )
    inputs = np.empty((len(pixels), 1, 8, 8), np.float32)
    _normalise(pixels.astype(np.uint8), 16, DIGITS_MEAN, DIGITS_STD, inputs.reshape(-1, 64))
    return Dataset("digits", inputs, targets.astype(np.int64), 10)


def read_idx(path: Path, num_dims: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in a gzipped IDX file.

    Layout: two zero bytes, the type 0x08, the number of dimensions, each extent as big-endian u32, data.
    Never reads further than the header allows. Raises ``DataError`` naming the file otherwise.
    """
    try:
        with gzip.open(path, "rb") as file:
            return _parse_idx(cast("BinaryIO", file), path, num_dims)
    except EOFError as exc:
        raise DataError(f"{path}: the gzip stream is cut short") from exc
    except (OSError, zlib.error) as exc:
        raise DataError(f"{path}: {exc}") from exc


def _parse_idx(file: BinaryIO, path: Path, num_dims: int) -> NDArray[np.uint8]:
    magic = bytes((0, 0, _UNSIGNED_BYTE, num_dims))
    start = file.read(4)
    if start != magic:
        raise DataError(f"{path}: magic {start.hex() or 'absent'}, expected {magic.hex()}")
    extents = file.read(4 * num_dims)
    if len(extents) != 4 * num_dims:
        raise DataError(f"{path}: header of {4 + len(extents)} bytes, expected {4 + 4 * num_dims}")
    shape: tuple[int, ...] = struct.unpack(f">{num_dims}I", extents)
    size = math.prod(shape)
    if not 0 < size <= _MAX_IDX_BYTES:
        raise DataError(f"{path}: shape {shape} is {size} bytes, expected 1 to {_MAX_IDX_BYTES}")
    data = file.read(size)
    if len(data) != size:
        raise DataError(f"{path}: {len(data)} bytes of data, expected {size} for shape {shape}")
    # Reading to the end also makes gzip compare its checksum.
    if file.read(1):
        raise DataError(f"{path}: more data than the {size} bytes of shape {shape}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _read_pair(images_path: Path, labels_path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{images_path}: images of {images.shape[1:]} pixels, expected (28, 28)")
    if len(labels) != len(images):
        raise DataError(f"{labels_path}: {len(labels)} labels for {len(images)} images")
    return images, labels


def _normalise(
    raw: NDArray[np.uint8], full: int, mean: float, std: float, out: NDArray[np.float32]
) -> None:
    """Write (raw / full - mean) / std into ``out``, of the same shape, every step in float32."""
    np.divide(raw, np.float32(full), out=out, dtype=np.float32)
    out -= np.float32(mean)
    out /= np.float32(std)


def _standard_places() -> tuple[Path, ...]:
    return (
        Path("/usr/share/datasets/fashion-mnist"),
        Path.home() / ".local/share/datasets/fashion-mnist",
    )


def _is_there(folder: Path) -> bool:
    return (folder / FILES[0][0]).is_file()
