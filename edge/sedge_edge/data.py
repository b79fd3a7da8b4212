"""The user's examples, from a file, a folder of images or a function.

A source is one of

    a path to an .npz with arrays x (N, ...) and y; without x, every other array is an input by its name
    a folder of folders named by label, ``3`` or ``3-cat``, with images in them
    "module:function", a function without arguments that returns (x, y) or (x, y, group), where x may be
    a dict of arrays by name

y has labels (N,) or floating-point numbers (N, ...), of which (N,) is a column (N, 1). It may be missing
(or None) for a model whose input is its target. An array ``group`` (N,), or a third value, says whose each
example is; a device ignores it, and an emulated fleet can be split by it.

A class folder must name its label: devices rarely hold every class, and numbering the folders that are
there would give one class different labels on different devices. x becomes float32, or int64 when it holds
integers (token ids); unsigned 8-bit values are taken as pixels and scaled to [0, 1]. y becomes int64
or float32. Nothing is resized or normalised further. Whatever is wrong with the data raises ``DataError``.
"""

import importlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from sedge_edge.config import FUNCTION_SOURCE, DataConfig
from sedge_edge.training.examples import Examples, Inputs, check_inputs, split_rows
from sedge_protocol.errors import DataError
from sedge_protocol.host.user_code import importable
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.parts import InputPart, arranged, pack

if TYPE_CHECKING:
    from PIL.Image import Image

_LOG = logging.getLogger("sedge.edge")
_CLASS_FOLDER = re.compile(r"(\d{1,9})([-_ ].*)?")
_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg"}
_GREY_MODES = {"1", "L", "LA"}
_DEEP_MODES = {"I", "F", "I;16", "I;16B", "I;16L"}


def load_data(data: DataConfig, base: Path) -> tuple[Examples, Examples]:
    """The training and test examples of a configuration. Raises ``DataError``.

    Raw values are split before they are converted, because pixels take four times the memory as float32.
    """
    if data.test is not None:
        return load_source(data.train, base), load_source(data.test, base)
    raw = _source(data.train, base)
    train, test = split_rows(len(raw.x), data.test_fraction, data.split_seed)
    return raw.examples(train), raw.examples(test)


class LiveData:
    """A configuration's training and test examples; a call reads them again when they have changed.

    Files and folders are looked at; what a function returns is read once. What has changed and cannot be
    read is logged, and the examples from before stay. Raises ``DataError`` when it is made.
    """

    def __init__(self, data: DataConfig, base: Path) -> None:
        self._data, self._base = data, base
        self._seen = self._refused = self._stamps()
        self._examples = load_data(data, base)

    def __call__(self) -> tuple[Examples, Examples]:
        """The training and the test examples."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._examples = load_data(self._data, self._base)
                self._seen = stamps  # else again: the end of an image's writing changes no folder
            except DataError as exc:
                if stamps != self._refused:  # said once
                    _LOG.error("new data: %s; going on with the examples from before", exc)
                self._refused = stamps
        return self._examples

    def _stamps(self) -> tuple[object, ...]:
        sources = (self._data.train, self._data.test or "")
        return tuple(_stamp(self._base / s) for s in sources if not FUNCTION_SOURCE.fullmatch(s))


def _stamp(path: Path) -> tuple[object, ...]:
    """Another one when a file is replaced or written, or an image comes or goes."""
    try:
        folders = sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else ()
        found = [path.stat(), *(folder.stat() for folder in folders)]
    except OSError:
        return ()
    return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)


def load_source(source: str, base: Path) -> Examples:
    """The examples of one source; relative paths and modules are resolved in ``base``.

    Raises ``DataError`` for a source that is missing, unreadable, or does not hold x and y.
    """
    return _source(source, base).examples()


def load_grouped(source: str, base: Path) -> tuple[Examples, NDArray[np.generic] | None]:
    """The examples of one source, and the group of each, (N,), where the source says it."""
    raw = _source(source, base)
    group = None if raw.group is None else _groups(raw.group, len(raw.x), raw.where)
    return raw.examples(), group


def converted(x: object, y: object, where: str) -> Examples:
    """x (N, ...) and y as examples of the types that programs take. Raises ``DataError``."""
    return _raw(x, y, None, where).examples()


@dataclass(frozen=True)
class _Raw:
    """A source's unconverted x (N, ...) and its targets y (N, ...), if any.

    ``where`` names the source, and ``group`` is what it says of groups, unchecked. ``parts`` are the arrays
    that x holds, where the source gives several.
    """

    x: NDArray[np.generic]
    y: Inputs | None
    where: str
    group: object = None
    parts: tuple[InputPart, ...] = ()

    def examples(self, rows: NDArray[np.intp] | None = None) -> Examples:
        """These rows (default: all), converted to the types that programs take."""
        x = _converted(self.x if rows is None else self.x[rows], self.where)
        if self.y is None:
            return Examples(x, x, self.parts)
        return Examples(x, self.y if rows is None else self.y[rows], self.parts)


def _source(source: str, base: Path) -> _Raw:
    if FUNCTION_SOURCE.fullmatch(source):
        return _raw(*_call(source, base), source)
    path = base / source
    try:
        if path.is_dir():
            return _read_images(path)
    except OSError as exc:  # a folder without access, or an invalid file name
        where = path if exc.filename is None else exc.filename
        raise DataError(
            f"{where}: {exc.strerror or exc}, expected a file or folder we may read"
        ) from exc
    return _raw(*_read_npz(path), source)


def as_inputs(x: object, manifest: BundleManifest, where: str) -> Inputs:
    """x as inputs (N, ...) of the model. Raises ``DataError`` when the model cannot take them."""
    if isinstance(x, Mapping):
        parts, packed = _packed(cast(Mapping[str, object], x), where)
        inputs: Inputs = arranged(packed, parts, manifest.parts, where)
    else:
        inputs = _converted(_rows(x, where), where)
    check_inputs(inputs, manifest, f"{where}: x")
    return inputs


def _raw(x: object, y: object, group: object, where: str) -> _Raw:
    """Check x and y, which are still of any numeric type, with one example per row."""
    parts: tuple[InputPart, ...] = ()
    if isinstance(x, Mapping):
        parts, x = _packed(cast(Mapping[str, object], x), where)
    inputs = _rows(x, where)
    if y is None:
        return _Raw(inputs, None, where, group, parts)
    targets = _array(y, where)
    if targets.ndim == 0:
        raise DataError(f"{where}: y is a single value, expected an array (N, ...)")
    if targets.dtype.kind not in "iuf":
        raise DataError(f"{where}: y is {targets.dtype}, expected numbers: integers are labels")
    if len(inputs) != len(targets):
        raise DataError(
            f"{where}: x has {len(inputs)} rows and y {len(targets)}, expected the same number"
        )
    if targets.dtype.kind == "f" and targets.ndim == 1:
        targets = targets[:, None]
    floats = targets.dtype.kind == "f"
    with np.errstate(over="ignore"):  # as for x
        numbers: Inputs = np.ascontiguousarray(targets, np.float32 if floats else np.int64)
    return _Raw(inputs, numbers, where, group, parts)


def _packed(arrays: Mapping[str, object], where: str) -> tuple[tuple[InputPart, ...], Inputs]:
    """The named inputs, converted, as one row of each example (N, K)."""
    if not arrays:
        raise DataError(f"{where}: no inputs, expected x or arrays by name")
    converted = {
        name: _converted(_rows(x, where), f"{where}, {name}") for name, x in arrays.items()
    }
    return pack(converted, where)


def _groups(value: object, rows: int, where: str) -> NDArray[np.generic]:
    groups = _array(value, where)
    if groups.shape != (rows,) or groups.dtype.kind not in "iuUS":
        found = f"{groups.dtype} of shape {groups.shape}"
        raise DataError(f"{where}: group is {found}, expected integers or names ({rows},)")
    return groups


def _array(value: object, where: str) -> NDArray[np.generic]:
    try:
        return np.asarray(value)
    except ValueError as exc:
        raise DataError(f"{where}: not an array: {exc}") from exc


def _rows(x: object, where: str) -> NDArray[np.generic]:
    inputs = _array(x, where)
    if inputs.ndim == 0:
        raise DataError(f"{where}: x is a single value, expected an array (N, ...)")
    return inputs


def _converted(inputs: NDArray[np.generic], where: str) -> Inputs:
    """Numbers as float32, or as int64 when their type is an integer; unsigned 8-bit values are pixels."""
    if inputs.dtype == np.uint8:
        scaled: NDArray[np.float32] = np.divide(inputs, np.float32(255), dtype=np.float32)
        return scaled
    if inputs.dtype.kind == "f":
        with np.errstate(
            over="ignore"
        ):  # a float64 beyond float32 becomes inf, which is refused later
            return np.ascontiguousarray(inputs, np.float32)
    if inputs.dtype.kind in "iub":
        return np.ascontiguousarray(inputs, np.int64)
    raise DataError(f"{where}: x is {inputs.dtype}, expected numbers")


def _read_npz(path: Path) -> tuple[object, object, object]:
    try:
        # np.load(path) would leave the file of a broken archive open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = cast(Mapping[str, object], archive)
            x = named_inputs(arrays) if "x" not in arrays else arrays["x"]
            return x, arrays.get("y"), arrays.get("group")
    except DataError:
        raise
    except OSError as exc:
        raise DataError(f"{path}: {exc.strerror or exc}") from exc
    except Exception as exc:  # numpy, zipfile and zlib raise ten kinds of error for a damaged file
        raise DataError(f"{path}: not an .npz with plain arrays x and y: {exc}") from exc


def named_inputs(arrays: Mapping[str, object]) -> dict[str, object]:
    """The arrays of an .npz without x that are inputs, by name."""
    return {name: arrays[name] for name in arrays if name not in ("y", "group")}


def _call(source: str, base: Path) -> tuple[object, object, object]:
    """The result of the user's function. Any exception in it becomes a ``DataError`` with its text.

    So does ``sys.exit``, which must not end the agent.
    """
    module, _, name = source.partition(":")
    try:
        with importable(base):
            function = cast(Callable[[], object], getattr(importlib.import_module(module), name))
            result = function()
    except (Exception, SystemExit) as exc:
        raise DataError(f"{source}: {type(exc).__name__}: {exc}") from exc
    if isinstance(result, tuple):
        match cast(tuple[object, ...], result):
            case (x, y):
                return x, y, None
            case (x, y, group):
                return x, y, group
            case _:
                pass
    raise DataError(f"{source}: returned {type(result).__name__}, expected a tuple (x, y)")


def _read_images(folder: Path) -> _Raw:
    paths: list[Path] = []
    labels: list[int] = []
    for class_folder in sorted(p for p in folder.iterdir() if p.is_dir()):
        match = _CLASS_FOLDER.fullmatch(class_folder.name)
        if match is None:
            raise DataError(
                f"{class_folder}: the folder's name has no label; call it '<label>' or "
                "'<label>-<name>', with the same label on every device"
            )
        images = sorted(p for p in class_folder.iterdir() if p.suffix.lower() in _IMAGE_SUFFIXES)
        paths += images
        labels += [int(match[1])] * len(images)
    if not paths:
        raise DataError(f"{folder}: no images, expected <label>-<name>/*.png or *.jpg")
    first = _read_image(paths[0])
    inputs = np.empty((len(paths), *first.shape), np.uint8)  # (N, C, H, W)
    for row, path in enumerate(paths):
        pixels = _read_image(path)
        if pixels.shape != first.shape:
            raise DataError(f"{path}: {pixels.shape}, expected {first.shape} as in {paths[0]}")
        inputs[row] = pixels
    return _Raw(inputs, np.array(labels, np.int64), str(folder))


def _read_image(path: Path) -> NDArray[np.uint8]:
    """The pixels (C, H, W) of an image, C = 1 when it is grey and 3 otherwise."""
    try:
        from PIL import Image
    except ImportError as exc:
        raise DataError(f"{path}: reading images needs pillow: pip install pillow") from exc
    try:
        with Image.open(path) as image:
            return _pixels(image, path)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as exc:
        raise DataError(f"{path}: not an image: {exc}") from exc


def _pixels(image: "Image", path: Path) -> NDArray[np.uint8]:
    if image.mode in _DEEP_MODES:
        raise DataError(f"{path}: mode {image.mode}, expected 8 bits a channel")
    pixels = np.asarray(image.convert("L" if image.mode in _GREY_MODES else "RGB"), np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
