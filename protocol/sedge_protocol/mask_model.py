"""How likely each element of a matrix is to be kept, told by a few numbers for each row and column.

The largest elements of a layer's change follow its rows and columns: an update is a sum of outer products.
So the log-odds that element (i, j) is kept are near

    a[i] + b[j] + sum over r of u[i, r] v[j, r]

with a handful of r, a logistic model of low rank. All numbers are multiples of a quarter, held as small
integers: their products and sums are exact in float32 in any order, so every machine finds the same
classes. A class holds the elements of about equal odds; class c those between (c - 16) / 2 and a half more.

R, C = rows and columns of a matrix; r = its rank.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Role

Quarters = NDArray[np.int8]
Classes = NDArray[np.uint8]

# Classes of the log-odds, from -8 to 8; what is in no matrix is a class of its own.
LEVELS = 32
CLASSES = LEVELS + 1
MAX_MODEL_RANK = 8
# The limit of one byte that counts them.
MAX_MATRICES = 255
# Below this many bits of entropy for each row and column the numbers cost more than they tell. With what
# further ranks must earn (mask_fit) it also keeps the models of a vector within their limit of n/8 bytes.
EARNED_FROM = 10
# Elements at a time: their odds stay within the processor's cache.
_BLOCK = 1 << 16


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
    rows: Quarters
    columns: Quarters

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
        for rows in blocks(self.matrix):
            odds = left[rows] @ right.T
            odds *= 0.125
            odds += LEVELS / 2
            found[rows] = np.clip(odds, 0, LEVELS - 1, out=odds)
        return found.reshape(-1)

    def to_bytes(self) -> bytes:
        """a, u, b and v."""
        return self.rows.tobytes() + self.columns.tobytes()


def entropy_bits(count: int, size: int) -> float:
    """n·H(k/n), what a random mask takes that keeps k = ``count`` of n = ``size`` elements."""
    share = count / size
    if not 0 < share < 1:
        return 0.0
    return -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) * size


def blocks(matrix: Matrix) -> Iterator[slice]:
    """All rows of a matrix, as many at a time as a processor's cache holds the odds of."""
    step = max(1, _BLOCK // matrix.columns)
    return (slice(start, start + step) for start in range(0, matrix.rows, step))


def model_bytes(matrix: Matrix, rank: int) -> int:
    """The length of a model's ``to_bytes``."""
    return (1 + rank) * (matrix.rows + matrix.columns)


def from_bytes(matrix: Matrix, rank: int, data: memoryview) -> MaskModel:
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
    """The parameters that may be worth a model: an output channel or neuron is a row."""
    found = [
        Matrix(tensor.offset, tensor.shape[0], tensor.size // tensor.shape[0])
        for tensor in layout.tensors
        if len(tensor.shape) > 1 and tensor.role is Role.PARAMETER
    ]
    large = [m for m in found if m.rows * m.columns >= EARNED_FROM * (m.rows + m.columns)]
    return tuple(large[:MAX_MATRICES])


def check_matrices(shapes: Sequence[tuple[Matrix, int]], size: int) -> None:
    """Raise ``CodecError`` unless matrices, each with its rank, lie apart and ascending below n = ``size``.

    Their models together may have a byte for every 8 elements: no model that tells more than it costs
    is longer, and none takes more memory or time than a few bytes an element.
    """
    begin, total = 0, 0
    for matrix, rank in shapes:
        elements = matrix.rows * matrix.columns
        if not elements or not begin <= matrix.offset <= size - elements or rank > MAX_MODEL_RANK:
            raise CodecError(
                f"mask.matrix: {matrix.rows} x {matrix.columns} at {matrix.offset} of rank {rank}, "
                f"expected within {begin} to n={size} and a rank up to {MAX_MODEL_RANK}"
            )
        begin = matrix.slice.stop
        total += model_bytes(matrix, rank)
    if total > -(-size // 8):
        raise CodecError(f"mask: models of {total} bytes, the limit is {-(-size // 8)}")
