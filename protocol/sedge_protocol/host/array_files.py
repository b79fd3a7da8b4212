"""Reads numpy files without unpickling, and replaces numpy's errors.

numpy's error for a file without an array suggests loading it with pickles, which would be unsafe.
"""

from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import DataError

_ZIP, _NPY = b"PK", b"\x93NUMPY"


def read_arrays(
    file: BinaryIO, where: str, expected: str
) -> NDArray[np.generic] | dict[str, NDArray[np.generic]]:
    """Read the array in a .npy file, or the arrays in an .npz file, by name.

    Raises ``DataError`` for any other file. In its message, ``where`` names the file and ``expected`` says
    what should be in it.
    """
    start = file.read(len(_NPY))
    if not start:
        raise DataError(f"{where}: empty, expected {expected}")
    file.seek(0)
    if not start.startswith((_ZIP, _NPY)):
        raise DataError(f"{where}: neither .npy nor .npz, expected {expected}")
    name = ""
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        arrays: dict[str, NDArray[np.generic]] = {}
        for name in loaded.files:
            member: object = loaded[name]
            if not isinstance(member, np.ndarray):  # raw bytes
                raise TypeError(name)
            arrays[name] = member
        return arrays
    except MemoryError as exc:
        raise DataError(f"{where}: larger than the free memory") from exc
    except Exception as exc:  # numpy, zipfile and zlib raise ten kinds of error for a damaged file
        objects = "Object arrays" in str(exc)
        wrong = "holds Python objects" if objects else f"is damaged ({type(exc).__name__})"
        array = f"array {name} " if name else ""
        raise DataError(f"{where}: {array}{wrong}, expected {expected}") from exc
