"""How likely each element of a matrix is to be kept, told by a few numbers for each row and column.

The largest elements of a layer's change follow its rows and columns: an update is a sum of outer products.
So the log-odds that element (i, j) is kept are near

    a[i] + b[j] + sum over r of u[i, r] v[j, r]

with a handful of r, a logistic model of low rank. All numbers are multiples of a quarter, held as small
integers: their products and sums are exact in float32 in any order, so every machine finds the same
classes. A class holds the elements of about equal odds; class c those between (c - 16) / 2 and a half more.

R, C = rows and columns of a matrix; r = its rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Role

Bytes = NDArray[np.int8]
Classes = NDArray[np.uint8]

# Classes of the log-odds, from -8 to 8; what is in no matrix is a class of its own.
LEVELS = 32
CLASSES = LEVELS + 1
MAX_RANK = 8
# The limit of one byte that counts them.
MAX_MATRICES = 255
# Below this many elements the numbers cost more than they tell.
MIN_ELEMENTS = 4096
# Rows at a time: their odds stay within the processor's cache.
BLOCK = 64


class Matrix(NamedTuple):
    """A matrix (R, C) that lies row by row from ``offset`` in a vector."""

    offset: int
    rows: int
    columns: int

    @property
    def slice(self) -> slice:
        """Its place in the vector."""
        return slice(self.offset, self.offset + self.rows * self.columns)


@dataclass(frozen=True, eq=False)
class MaskModel:
    """The model of one matrix: ``rows`` (1 + r, R) holds a and u, ``columns`` (1 + r, C) b and v."""

    matrix: Matrix
    rows: Bytes
    columns: Bytes

    @property
    def rank(self) -> int:
        """r."""
        return len(self.rows) - 1

    def classes(self) -> Classes:
        """The class of each element (R·C,)."""
        left = np.empty((self.matrix.rows, 2 + self.rank), np.float32)
        right = np.empty((self.matrix.columns, 2 + self.rank), np.float32)
        # In sixteenths: quarters count four of them, products of quarters one.
        left[:, 0], left[:, 1], left[:, 2:] = 4.0 * self.rows[0], 4.0, self.rows[1:].T
        right[:, 0], right[:, 1], right[:, 2:] = 1.0, self.columns[0], self.columns[1:].T
        found = np.empty((self.matrix.rows, self.matrix.columns), np.uint8)
        for start in range(0, len(found), BLOCK):
            odds = left[start : start + BLOCK] @ right.T
            odds *= 0.125
            odds += LEVELS / 2
            found[start : start + BLOCK] = np.clip(odds, 0, LEVELS - 1, out=odds)
        return found.reshape(-1)

    def to_bytes(self) -> bytes:
        """a, u, b and v."""
        return self.rows.tobytes() + self.columns.tobytes()


def model_bytes(matrix: Matrix, rank: int) -> int:
    """The length of a model's ``to_bytes``."""
    return (1 + rank) * (matrix.rows + matrix.columns)


def from_bytes(matrix: Matrix, rank: int, data: bytes) -> MaskModel:
    """The model in exactly ``model_bytes`` bytes."""
    numbers = np.frombuffer(data, np.int8)
    rows, columns = np.split(numbers, [(1 + rank) * matrix.rows])
    return MaskModel(matrix, rows.reshape(1 + rank, -1), columns.reshape(1 + rank, -1))


def classes_of(models: Sequence[MaskModel], size: int) -> Classes:
    """The class of every element (n,)."""
    found = np.full(size, LEVELS, np.uint8)
    for model in models:
        found[model.matrix.slice] = model.classes()
    return found


def matrices(layout: Layout) -> tuple[Matrix, ...]:
    """The tensors that are worth a model: an output channel or neuron is a row, all else the columns."""
    found: list[Matrix] = []
    for tensor in layout.tensors:
        if len(tensor.shape) > 1 and tensor.role is Role.PARAMETER and tensor.size >= MIN_ELEMENTS:
            rows = tensor.shape[0]
            found.append(Matrix(tensor.offset, rows, tensor.size // rows))
    return tuple(found[:MAX_MATRICES])


def check_matrix(matrix: Matrix, rank: int, begin: int, size: int) -> None:
    """Raise ``CodecError`` unless a matrix lies within ``begin`` to n = ``size``, with a rank up to 8."""
    elements = matrix.rows * matrix.columns
    if not elements or not begin <= matrix.offset <= size - elements or rank > MAX_RANK:
        raise CodecError(
            f"mask.matrix: {matrix.rows} x {matrix.columns} at {matrix.offset} of rank {rank}, "
            f"expected within {begin} to n={size} and a rank up to {MAX_RANK}"
        )
