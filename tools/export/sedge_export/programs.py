"""The types of a bundle's programs: their files, and a loaded program."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.generic]
# A loaded program is a function from named arrays to named arrays.
Program: TypeAlias = Callable[[Mapping[str, Array]], dict[str, NDArray[np.float32]]]


class File(NamedTuple):
    """A file in a bundle: its name and content."""

    name: str
    data: bytes
