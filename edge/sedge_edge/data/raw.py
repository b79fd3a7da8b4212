"""The arrays of a data source, before and after conversion to the types that programs take."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sedge_edge.data.memory import no_room
from sedge_edge.training.examples import ExamplePlaces, Examples, Inputs, check_inputs, for_model
from sedge_protocol.errors import DataError
from sedge_protocol.wire.bundle import BundleManifest
from sedge_protocol.wire.parts import InputPart, arranged, pack

_IMAGES_NDIM = 4  # (N, C, H, W)


@dataclass(frozen=True)
class Raw:
    """The unconverted arrays of a data source: x (N, ...) and, if there are any, targets y (N, ...).

    ``where`` names the source. ``group`` is the source's array of groups, not yet checked. ``parts``
    describes the arrays packed into x, if the source provides several. ``notes`` are sentences about what
    the source's reader decided or left out. ``places`` says where the examples come from, if the source is
    a file.
    """

    x: NDArray[np.generic]
    y: Inputs | None
    where: str
    group: object = None
    parts: tuple[InputPart, ...] = ()
    notes: tuple[str, ...] = ()
    places: ExamplePlaces | None = None

    def examples(self, rows: NDArray[np.intp] | None = None) -> Examples:
        """Convert these rows (by default all) to the types that programs take.

        Raises ``DataError`` if x does not fit them.
        """
        try:
            x = _converted(self.x if rows is None else self.x[rows], self.where)
            places = self.places
            if rows is not None and places is not None:
                places = places.of(rows)
            if self.y is None:
                return Examples(x, x, self.parts, places)
            return Examples(x, self.y if rows is None else self.y[rows], self.parts, places)
        except MemoryError as exc:
            raise no_room(self.where) from exc

    def groups(self) -> NDArray[np.generic] | None:
        """Return the group of each example, (N,), if the source has groups.

        Raises ``DataError`` if the groups are malformed.
        """
        if self.group is None:
            return None
        groups, expected = _array(self.group, self.where), (len(self.x),)
        if groups.shape != expected or groups.dtype.kind not in "iuUS":
            is_now = f"{groups.dtype} of shape {groups.shape}"
            raise DataError(
                f"{self.where}: group is {is_now}, expected integers or names {expected}"
            )
        return groups


def raw(x: object, y: object, group: object, where: str, notes: tuple[str, ...] = ()) -> Raw:
    """Check x and y, which must have one row per example. They may have any numeric type."""
    parts: tuple[InputPart, ...] = ()
    if isinstance(x, Mapping):
        parts, x = _packed(cast(Mapping[str, object], x), where)
    inputs = _rows(x, where)
    if is_bytes(inputs) and not is_pixels(inputs):
        notes += (
            f"x holds unsigned bytes in rows of shape {inputs.shape[1:]}, read as numbers from 0 to 255; "
            "only images (C, H, W) are read as pixels and scaled to 0 to 1",
        )
    if y is None:
        return Raw(inputs, None, where, group, parts, notes)
    targets = _array(y, where)
    if targets.ndim == 0:
        raise DataError(f"{where}: y is a single value, expected an array (N, ...)")
    if targets.dtype.kind not in "iuf":
        raise DataError(f"{where}: y is {targets.dtype}, expected numbers: integers are labels")
    if len(inputs) != len(targets):
        raise DataError(
            f"{where}: x has {len(inputs)} rows and y {len(targets)}, expected the same number"
        )
    floats = targets.dtype.kind == "f"
    if floats and targets.ndim == 1:
        targets = targets[:, None]
    if not floats and targets.shape[1:] == (1,):
        targets = targets[:, 0]
    with np.errstate(over="ignore"):  # values beyond float32 become inf, as in x
        numbers: Inputs = np.ascontiguousarray(targets, np.float32 if floats else np.int64)
    return Raw(inputs, numbers, where, group, parts, notes)


def converted(x: object, y: object, where: str) -> Examples:
    """Convert x (N, ...) and y to examples of the types that programs take.

    Raises ``DataError`` if they cannot be converted.
    """
    return raw(x, y, None, where).examples()


def as_inputs(x: object, manifest: BundleManifest, where: str) -> Inputs:
    """Convert x to inputs (N, ...) of the model. Raises ``DataError`` if they do not fit it."""
    if isinstance(x, Mapping):
        parts, packed = _packed(cast(Mapping[str, object], x), where)
        inputs: Inputs = arranged(packed, parts, manifest.parts, where)
    else:
        inputs = _converted(_rows(x, where), where)
    name = f"{where}: x"
    inputs = for_model(inputs, manifest.input, name)
    check_inputs(inputs, manifest, name)
    return inputs


def is_bytes(x: NDArray[np.generic]) -> bool:
    """Return True if x holds unsigned bytes."""
    return x.dtype == np.uint8


def is_pixels(x: NDArray[np.generic]) -> bool:
    """Return True if x (N, ...) holds images of unsigned bytes."""
    return is_bytes(x) and x.ndim == _IMAGES_NDIM


def _packed(arrays: Mapping[str, object], where: str) -> tuple[tuple[InputPart, ...], Inputs]:
    """Convert the named inputs and pack them into one row (K,) for each example: (N, K)."""
    if not arrays:
        raise DataError(f"{where}: no inputs, expected x or arrays by name")
    by_name = {name: _converted(_rows(x, where), f"{where}, {name}") for name, x in arrays.items()}
    return pack(by_name, where)


def _array(value: object, where: str) -> NDArray[np.generic]:
    try:
        return np.asarray(value)
    except MemoryError:
        raise
    except (
        Exception
        # Raised by numpy, or by a value such as a tensor with a gradient or on another device.
    ) as exc:
        kind = type(value).__name__
        expected = "numbers in rows of one length, as numpy accepts them"
        raise DataError(f"{where}: a {kind} that is not an array, expected {expected}") from exc


def _rows(x: object, where: str) -> NDArray[np.generic]:
    inputs = _array(x, where)
    if inputs.ndim == 0:
        raise DataError(f"{where}: x is a single value, expected an array (N, ...)")
    return inputs


def _converted(inputs: NDArray[np.generic], where: str) -> Inputs:
    """Convert numbers to float32, or to int64 if they are integers of more than a byte. Scale pixels."""
    if is_pixels(inputs):
        scaled: NDArray[np.float32] = np.divide(inputs, np.float32(255), dtype=np.float32)
        return scaled
    # As int64, bytes would take eight times the memory.
    if inputs.dtype.kind in "fb" or is_bytes(inputs):
        with np.errstate(
            over="ignore"
        ):  # a float64 beyond float32 becomes inf, which is refused later
            return np.ascontiguousarray(inputs, np.float32)
    if inputs.dtype.kind in "iu":
        return np.ascontiguousarray(inputs, np.int64)
    raise DataError(f"{where}: x is {inputs.dtype}, expected numbers")
