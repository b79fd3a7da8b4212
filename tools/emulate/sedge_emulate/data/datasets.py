"""The emulator's data sets: Fashion-MNIST, scikit-learn's digits, people's phones, Shakespeare.

A ``Dataset`` is one pair of arrays for the whole fleet; a device's share is an array of indices
(``split.py``), never a copy. Images are normalised once. 70,000 Fashion-MNIST images take 220 MB as
float32, four times their raw size, but every device can then gather its batches directly from them.

Nothing is downloaded here. ``phones`` and ``shakespeare`` are looked up as archives.py describes.
Fashion-MNIST (Xiao et al. 2017, arXiv 1708.07747, MIT) is looked up, as its authors' four gzipped IDX
files, in

    the given folder, otherwise $SEDGE_DATA; if either is given, only there
    /usr/share/datasets/fashion-mnist            apt-get install dataset-fashion-mnist
    ~/.local/share/datasets/fashion-mnist

The train and test images are pooled, train first, as is usual in the literature on personalised federated
learning: each device then splits its own share.
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

# The data sets that name the owner of each example.
PEOPLE = {"phones": phones, "shakespeare": shakespeare}
FILES = (
    ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
# The mean and standard deviation that published runs use for the train images' pixels, in [0, 1].
FASHION_MEAN, FASHION_STD = 0.286, 0.3205
# For the 1,797 digits, whose pixels are 0 to 16: the mean (exactly 0.30526) and the standard deviation
# (0.37600) of x / 16.
DIGITS_MEAN, DIGITS_STD = 0.3053, 0.376
# A user's data may have at most this many classes, because a model has an output for every label up to the
# largest one.
MAX_CLASSES = 2**20
TENTHS = 10
_UNSIGNED_BYTE = 0x08
# The largest file, the train images, is 47,040,016 bytes. A file whose header claims more than this limit
# is not read.
_MAX_IDX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Dataset:
    """The examples of a data set: ``inputs`` (N, ...) and ``targets``, which are labels or numbers.

    Images are (N, C, H, W) and normalised. Labels count from 0 and are (N,) or (N, ...); numbers are (N,
    ...). If ``num_classes`` is 0, integer targets have no meaning. ``groups`` (N,) numbers the owners of
    the examples from 0, and ``tests`` (N,) is True for test examples; both are None if the source does not
    specify them. If the source has several input arrays, ``parts`` are those that each row of ``inputs``
    (N, K) concatenates. ``sha256`` identifies everything that a split is made from (see shares.py).
    ``notes`` are sentences that say what the reader of a user's files decided or left out.
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
        """The kind of the targets: "class", "float", or "none" if there are no targets."""
        if self.num_classes:
            return "class"
        return "float" if self.targets.dtype == np.float32 else "none"

    @property
    def outputs(self) -> int:
        """The number of outputs that a model needs for these targets."""
        return self.num_classes or math.prod(self.targets.shape[1:])

    @property
    def labels(self) -> NDArray[np.int64]:
        """The classes (N,) that a split balances.

        Numeric targets are divided into ten equal groups by their first number. An example with several
        labels belongs to the class of whichever label is rarest in the whole data set, because the most
        common one may be a background that every example has.
        """
        if self.targets.dtype != np.float32:
            return _rarest(self.targets.reshape(len(self.targets), -1).astype(np.int64, copy=False))
        order = np.argsort(self.targets.reshape(len(self.targets), -1)[:, 0], kind="stable")
        labels = np.empty(len(order), np.int64)
        labels[order] = np.arange(len(order)) * TENTHS // len(order)
        return labels


def _rarest(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each row of ``labels`` (N, T), the label (N,) that is rarest in the whole array."""
    if labels.shape[1] == 1:
        return labels[:, 0]
    counts = np.bincount(labels[labels >= 0])
    often = np.where(labels == IGNORED, labels.size, counts[np.maximum(labels, 0)])
    rarest: NDArray[np.int64] = labels[np.arange(len(labels)), often.argmin(axis=1)]
    return rarest


def load(name: str, folder: Path | None = None, base: Path | None = None) -> Dataset:
    """Load a data set; ``auto`` is Fashion-MNIST if it is found, otherwise the digits.

    Any other name is the user's own data source, as in edge.toml ("module:function", .npz, .csv, a folder
    of class folders), or a folder written by PFLlib; paths are relative to ``base``. Raises ``DataError``
    for missing or broken data.
    """
    if name in PEOPLE:
        return Dataset(name, **vars(PEOPLE[name](folder)))
    if name not in ("auto", "fashion-mnist", "digits"):
        return _own(name, base or Path.cwd())
    if name == "digits" or (name == "auto" and find_fashion_mnist(folder) is None):
        return digits()
    return fashion_mnist(folder)


def _own(name: str, base: Path) -> Dataset:
    """Load the user's own data set."""
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
    """Return the examples as a data set whose number of classes is derived from the largest label."""
    if own.targets is own.inputs:
        return Dataset(name, own.inputs, np.zeros(len(own.inputs), np.int64), 0)
    if own.targets.dtype == np.float32:
        return Dataset(name, own.inputs, own.targets, 0)
    classes = int(own.targets.max(initial=0)) + 1
    if classes > MAX_CLASSES:
        raise DataError(
            f"{name}: y holds the label {classes - 1}, expected labels from 0 to {MAX_CLASSES - 1}"
        )
    return Dataset(name, own.inputs, own.targets, classes)


def find_fashion_mnist(folder: Path | None = None) -> Path | None:
    """Return the folder that holds Fashion-MNIST, or None if no standard place does.

    If the user named a place (``folder``, otherwise $SEDGE_DATA), only that is searched, and ``DataError``
    is raised if the data is not there, because training on data other than requested would be worse.
    """
    named = folder or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if named is not None:
        if not _is_there(named):
            raise DataError(
                f"{named}: no Fashion-MNIST here, expected {FILES[0][0]} and three other files"
            )
        return named
    return next((place for place in _standard_places() if _is_there(place)), None)


def fashion_mnist(folder: Path | None = None) -> Dataset:
    """Load all 70,000 images as (70000, 1, 28, 28): first the train set, then the test set.

    Raises ``DataError`` if the files are missing, malformed or of different shapes.
    """
    place = find_fashion_mnist(folder)
    if place is None:
        places = ", ".join(map(str, _standard_places()))
        raise DataError(
            f"Fashion-MNIST: not in {places}; install Debian's dataset-fashion-mnist, or put its four "
            f"files ({FILES[0][0]}, ...) into a folder and set ${DATA_VARIABLE} to its path"
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
    """Load scikit-learn's 1,797 handwritten digits as images (1797, 1, 8, 8)."""
    # Imported here, because scikit-learn takes a second to import and most runs never need it.
    from sklearn.datasets import load_digits

    pixels, targets = cast(
        "tuple[NDArray[np.float64], NDArray[np.int64]]", load_digits(return_X_y=True)
    )
    inputs = np.empty((len(pixels), 1, 8, 8), np.float32)
    _normalise(pixels.astype(np.uint8), 16, DIGITS_MEAN, DIGITS_STD, inputs.reshape(-1, 64))
    return Dataset("digits", inputs, targets.astype(np.int64), 10)


def read_idx(path: Path, num_dims: int) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of unsigned bytes with ``num_dims`` dimensions.

    Layout: two zero bytes, the type 0x08, the number of dimensions, each extent as big-endian u32, then the
    data. Never reads beyond the size that the header declares. Raises ``DataError``, which names the file,
    if it is malformed.
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
    # This read reaches the end of the stream, which makes gzip verify its checksum.
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
    """Write (raw / full - mean) / std to ``out``, which has the shape of ``raw``, computing in float32."""
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
