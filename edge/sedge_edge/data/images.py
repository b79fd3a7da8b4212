"""Reads examples from a folder with one subfolder of images for each label.

Each subfolder's name must contain its label. Devices rarely have every class, so numbering the existing
folders would give one class different labels on different devices.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from sedge_edge.data.memory import require_room
from sedge_edge.data.raw import Raw
from sedge_protocol.errors import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

_Found = TypeVar("_Found")

_CLASS_FOLDER = re.compile(r"(\d{1,9})([-_ ].*)?")
# Pillow's own decoders. Its other decoders start programs, or read files that are not images.
_FORMATS = {"BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP", "AVIF"}
IMAGE_ENDINGS = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp", ".avif"}
_MOVING = {"GIF", "TIFF", "WEBP", "AVIF"}
_GREY_MODES = {"1", "L", "LA"}
_DEEP_MODES = {"I", "F", "I;16", "I;16B", "I;16L"}
# Each number is an unsigned byte, and later also a float32.
_BYTES_A_NUMBER = 1 + 4


def read_images(folder: Path, shape: tuple[int, ...] | None) -> Raw:
    """Read all images (N, C, H, W) and their labels. ``shape`` is a model's input shape, if known.

    Raises ``DataError`` for images that do not fit into memory or the model, before allocating memory.
    """
    endings = _endings(folder)
    paths: list[Path] = []
    labels: list[int] = []
    left_out: Counter[str] = Counter()
    for place in sorted(folder.iterdir()):
        if place.name.startswith("."):
            continue
        if not place.is_dir():
            left_out[_ending(place)] += 1
            continue
        images, others = _listed(place, endings)
        labels += [_label(place)] * len(images)
        paths += images
        left_out += others
    if not paths:
        kinds = ", ".join(f"{count} {ending}" for ending, count in sorted(left_out.items()))
        found = f"no images{f' among {kinds}' if kinds else ''}"
        raise DataError(f"{folder}: {found}, expected <label>-<name>/*.png or *.jpg")
    first = _shape(paths[0])
    _require_fit(len(paths), first, shape, paths[0])
    inputs = np.empty((len(paths), *first), np.uint8)  # (N, C, H, W)
    for row, path in enumerate(paths):
        pixels = _read(path, _pixels)
        if pixels.shape != first:
            raise DataError(f"{path}: {pixels.shape}, expected {first} as in {paths[0]}")
        inputs[row] = pixels
    return Raw(inputs, np.array(labels, np.int64), str(folder), notes=_note(left_out))


def read_image(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an image as one row (1, C, H, W) of unsigned bytes.

    Raises ``DataError`` if the image has a different shape.
    """
    _endings(path)
    _require_fit(1, _shape(path), shape, path)
    return _read(path, _pixels)[None]


def _label(folder: Path) -> int:
    match = _CLASS_FOLDER.fullmatch(folder.name)
    if match is None:
        raise DataError(
            f"{folder}: the folder's name has no label; call it '<label>' or "
            "'<label>-<name>', with the same label on every device"
        )
    return int(match[1])


def _listed(folder: Path, endings: set[str]) -> tuple[list[Path], Counter[str]]:
    """Return the images of a class, and the number of other files for each file extension."""
    inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    images = [path for path in inside if path.suffix.lower() in endings]
    others = Counter(_ending(path) for path in inside if path.suffix.lower() not in endings)
    return images, others


def _ending(path: Path) -> str:
    return path.suffix.lower() or ("folders" if path.is_dir() else "without ending")


def _note(left_out: Counter[str]) -> tuple[str, ...]:
    if not left_out:
        return ()
    kinds = ", ".join(f"{count} {ending}" for ending, count in sorted(left_out.items()))
    return (f"ignored, not images: {kinds}",)


def _require_fit(
    count: int, first: tuple[int, ...], shape: tuple[int, ...] | None, path: Path
) -> None:
    if shape is not None and first != shape:
        raise DataError(f"{path}: an image {first}, but the model expects {shape}")
    channels, height, width = first
    size = count * channels * height * width * _BYTES_A_NUMBER
    what = f"{path.parent.parent}: {count} images of {width} x {height} pixels"
    require_room(size, what, "resize them to the model's input")


def _endings(folder: Path) -> set[str]:
    """Return the file extensions of the images that Pillow can read here."""
    try:
        from PIL import Image
    except ImportError as exc:
        raise DataError(f"{folder}: reading images needs pillow: pip install pillow") from exc
    known = Image.registered_extensions()
    return {ending for ending, kind in known.items() if kind in _FORMATS & Image.OPEN.keys()}


def _shape(path: Path) -> tuple[int, int, int]:
    """Return the shape (C, H, W) of an image, from its header."""
    return _read(path, lambda image: (1 if _is_grey(image) else 3, image.height, image.width))


def _pixels(image: "Image") -> NDArray[np.uint8]:
    """Return the pixels (C, H, W) of an image. C is 1 if it is grey, otherwise 3."""
    pixels = np.asarray(image.convert("L" if _is_grey(image) else "RGB"), np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _is_grey(image: "Image") -> bool:
    return image.mode in _GREY_MODES


def _read(path: Path, work: Callable[["Image"], _Found]) -> _Found:
    """Open an image and return the result of ``work`` on it. Raises ``DataError`` if it is not an image."""
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Pillow, about palettes and very large images
            with Image.open(path) as image:
                _require_plain(image, path)
                return work(image)
    except (DataError, MemoryError):
        raise
    except Image.DecompressionBombError as exc:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f"{path}: too large, expected at most {most:,} pixels") from exc
    except Exception as exc:  # Pillow raises ten kinds of error for a damaged file
        why = exc.strerror if isinstance(exc, OSError) else None
        raise DataError(f"{path}: {why or 'not an image, or a damaged one'}") from exc


def _require_plain(image: "Image", path: Path) -> None:
    if image.mode in _DEEP_MODES:
        raise DataError(f"{path}: mode {image.mode}, expected 8 bits per channel")
    frames: int = getattr(image, "n_frames", 1) if image.format in _MOVING else 1
    if frames > 1:
        raise DataError(f"{path}: {frames} images in one file, expected one")
