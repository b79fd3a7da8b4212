"""Packs and checks the settings and small named arrays of an order, and checks its guided loss.

A name is an identifier of at most 64 characters. An array is one-dimensional float32, little endian.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.objective import CONSTANTS, Guide
from sedge_protocol.wire.work import MAX_ARRAY_BYTES, Work

Arrays: TypeAlias = Mapping[str, NDArray[np.float32]]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def pack_array(array: NDArray[np.float32]) -> bytes:
    """Return an array's values in wire form, in C order."""
    return np.ascontiguousarray(array, "<f4").tobytes()


def unpack_array(where: str, data: bytes | memoryview) -> NDArray[np.float32]:
    """Return the values (m,) of an array.

    Raises ``CodecError`` for a wrong length, NaN and infinity.
    """
    if len(data) % 4:
        raise CodecError(f"{where}: {len(data)} bytes, expected a multiple of 4")
    array = np.frombuffer(data, "<f4").astype(np.float32)
    if not np.isfinite(array).all():
        first = int(np.argmin(np.isfinite(array)))
        raise CodecError(f"{where}[{first}]: {array[first]}, expected a finite number")
    return array


def unpack_arrays(work: Work) -> dict[str, NDArray[np.float32]]:
    """Return the arrays (m,) of an order, keyed by name. Raises the same errors as ``unpack_array``."""
    return {name: unpack_array(f"work.arrays.{name}", data) for name, data in work.arrays.items()}


def check_exchange(work: Work) -> None:
    """Raise ``CodecError`` if settings or arrays cannot be used, or are too large in total."""
    for key in ("settings", "arrays", "returns"):
        _require_names(f"work.{key}", getattr(work, key))
    for name, value in work.settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise CodecError(f"work.settings.{name}: {value}, expected a finite number")
    unpack_arrays(work)
    sizes = {"arrays": map(len, work.arrays.values()), "returns": _bytes(work.returns)}
    for key, parts in sizes.items():
        if (size := sum(parts)) > MAX_ARRAY_BYTES:
            raise CodecError(f"work.{key}: {size} bytes, expected at most {MAX_ARRAY_BYTES}")


def check_guided(work: Work, guide: Guide | None) -> None:
    """Raise ``CodecError`` unless a guided loss in ``work`` is the bundle's, with as many constants.

    A guided loss cannot be combined with a mixture.
    """
    if not work.loss:
        return
    if guide is None or guide.name != work.loss:
        has = "no guided loss" if guide is None else f"{guide.name!r}"
        raise CodecError(
            f"work.loss: {work.loss!r}, but the bundle has {has}: export it with this loss"
        )
    if work.own_model is not None and work.own_model.mixes:
        raise CodecError("work.loss: cannot be combined with a mixture")
    found = len(work.arrays.get(CONSTANTS, b"")) // 4
    if found != guide.constants:
        raise CodecError(
            f"work.arrays.{CONSTANTS}: {found} numbers, expected {guide.constants} for {guide.name!r}"
        )


def _bytes(lengths: Mapping[str, int]) -> Iterable[int]:
    return (4 * length for length in lengths.values())


def _require_names(where: str, names: Iterable[str]) -> None:
    for name in names:
        if not _NAME.fullmatch(name):
            raise CodecError(f"{where}: {name!r}, expected an identifier of at most 64 characters")
