"""The programs of a bundle: their files, and how a loaded one is called."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]
# A loaded program: from named arrays to named arrays.
Program: TypeAlias = Callable[[Mapping[str, Array]], dict[str, NDArray[np.float32]]]


class File(NamedTuple):
    """A file of a bundle."""

    name: str
    data: bytes
