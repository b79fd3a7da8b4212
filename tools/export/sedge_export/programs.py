"""The programs of a bundle: inputs and outputs by name, files, and how a loaded one is called."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.wire.bundle import FROZEN

Array: TypeAlias = NDArray[np.generic]
# A loaded program: from named arrays to named arrays.
Program: TypeAlias = Callable[[Mapping[str, Array]], dict[str, NDArray[np.float32]]]


class Signature(NamedTuple):
    """The names of a program's inputs and outputs, in order."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Signatures: TypeAlias = Mapping[str, Signature]


class File(NamedTuple):
    """A file of a bundle."""

    name: str
    data: bytes


def signatures(has_statistics: bool, has_noise: bool, has_frozen: bool) -> dict[str, Signature]:
    """The programs of a model by name; has its layout statistics, its training random numbers?

    With ``has_frozen`` each takes the tensors that are not in theta.
    """
    values = ("theta", *((FROZEN,) if has_frozen else ()))
    batch = (*values, "x", "y", "w")
    gradient = ("gradient", "loss", *(("statistics",) if has_statistics else ()))
    return {
        "gradient": Signature((*batch, "noise") if has_noise else batch, gradient),
        "evaluate": Signature(batch, ("loss_sum", "metric_sum", "weight_sum")),
        "predict": Signature((*values, "x"), ("logits",)),
    }
