"""Packs several named inputs of a model into one float32 row, because a program takes a single input.

The parts follow one another, each in C order. Integers are sent as float32, which is exact up to 2^24 in
magnitude; larger ones are rejected.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_protocol.errors import DataError

# Rows of a single input (N, ...), or packed rows (N, K).
Rows: TypeAlias = NDArray[np.float32 | np.int64]
# float32 holds every integer up to this magnitude.
MAX_INTEGER = 2**24


# The element type (numpy's name) and shape of one row.
ElementType: TypeAlias = Literal["float32", "int64"]
Shape: TypeAlias = Annotated[tuple[Annotated[int, Meta(ge=1, le=2**28)], ...], Meta(max_length=32)]


class InputPart(msgspec.Struct, frozen=True):
    """One input of a model: its name, and the element type and shape of one row."""

    name: str
    dtype: ElementType
    shape: Shape

    @property
    def size(self) -> int:
        """How many numbers one row has."""
        return math.prod(self.shape)


def columns(parts: Sequence[InputPart]) -> Iterator[tuple[InputPart, slice]]:
    """Yield each part with its slice of a packed row."""
    start = 0
    for part in parts:
        yield part, slice(start, start + part.size)
        start += part.size


def pack(
    arrays: Mapping[str, Rows], where: str
) -> tuple[tuple[InputPart, ...], NDArray[np.float32]]:
    """Pack arrays (N, ...) into rows (N, K). Returns the parts, in the order of ``arrays``, and the rows.

    Raises ``DataError``, which names the faulty array.
    """
    count, parts = len(next(iter(arrays.values()))), list[InputPart]()
    for name, array in arrays.items():
        if len(array) != count:
            raise DataError(
                f"{where}: {name} has {len(array)} rows, expected {count}, as in the first"
            )
        integers = array.dtype.kind == "i"
        if integers:
            for extreme in (int(array.min(initial=0)), int(array.max(initial=0))):
                if abs(extreme) > MAX_INTEGER:
                    expected = f"at most {MAX_INTEGER} in magnitude"
                    raise DataError(f"{where}: {name} holds {extreme}, expected {expected}")
        parts.append(InputPart(name, "int64" if integers else "float32", array.shape[1:]))
    flat = [
        array.reshape(count, part.size) for array, part in zip(arrays.values(), parts, strict=True)
    ]
    return tuple(parts), np.concatenate(flat, axis=1, dtype=np.float32, casting="same_kind")


def unpack(rows: Rows, parts: Sequence[InputPart]) -> dict[str, Rows]:
    """Unpack rows (N, K) to the parts (N, ...) by name."""
    return {
        part.name: rows[:, places].reshape(-1, *part.shape).astype(part.dtype)
        for part, places in columns(parts)
    }


def arranged(
    rows: Rows, found: Sequence[InputPart], wanted: Sequence[InputPart], where: str
) -> Rows:
    """Rearrange packed rows (N, K) into the order that a model expects.

    Raises ``DataError`` if a part is missing or has the wrong shape. A part of a different element type is
    accepted if converting it changes no value.
    """
    if tuple(found) == tuple(wanted):
        return rows
    given, held = unpack(rows, found), {part.name: part for part in found}

    def has(part: InputPart) -> bool:
        one = held.get(part.name)
        return one is not None and one.shape == part.shape and _serves(given[part.name], part)

    if not wanted or not all(map(has, wanted)):
        raise DataError(f"{where}: {_words(found)}, but the model takes {_words(wanted)}")
    return pack({part.name: given[part.name] for part in wanted}, where)[1]


def _serves(rows: Rows, part: InputPart) -> bool:
    """Return True if the part's type represents all values exactly."""
    return part.dtype == "float32" or bool((rows == np.rint(rows)).all())


def _words(parts: Sequence[InputPart]) -> str:
    named = (f"{part.name} {part.dtype} {part.shape}" for part in parts)
    return ", ".join(named) or "one input without a name"
