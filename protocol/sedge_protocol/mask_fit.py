"""The low-rank logistic model of a mask's matrix, found in a few sweeps over it.

Rows and columns start from their own shares, the further ranks from the singular vectors of what those
leave unexplained (randomised subspace iteration, Halko et al. 2011, section 4.5). Then the rows and after
them the columns take a damped Newton step of the logistic likelihood, with one curvature for each row or
column, the mean square of its residuals, in place of p (1 - p) of each element: so a step is two products
of matrices. On masks of real updates more such steps gain a hundredth for a tenth more time. A sweep takes
some rows at a time, so what it computes of them stays within the processor's cache.

The encoder's alone: a decoder is told the model, and any model is right.
R, C = rows and columns; r = rank. Index 0 of a side is its own odds, index 1 a one for the other's. Signs
(R, C) are 1 where the mask keeps, else -1; residuals are twice what is left of it: signs - (2p - 1).
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.mask_model import EARNED_FROM, MaskModel, Matrix, blocks, entropy_bits

Floats = NDArray[np.float32]

SUBSPACE_SWEEPS = 3
DAMPING = 0.75
# Singular vectors explain residuals in p; in log-odds the same way is longer, and half of it is safe.
SPREAD = 0.5
RIDGE = 1.0
MIN_CURVATURE = 0.01
# No odds change by more than this in one step.
MAX_STEP = 2.0
# A further rank costs some four bits for each row and column, which so many bits of entropy earn.
EARNED_BY = 40
USEFUL_RANK = 6
_QUARTERS = 4


def fit(mask: NDArray[np.bool_], matrix: Matrix) -> MaskModel:
    """The model of the mask (R·C,) of a matrix, of as many ranks as it earns."""
    told = told_by_each(mask, matrix)
    if told < EARNED_FROM:
        return _constant(mask, matrix)
    rank = min(int(told / EARNED_BY), USEFUL_RANK)
    signs = mask.reshape(matrix.rows, matrix.columns).astype(np.float32)
    left, right = _shares(signs, rank)  # (R, 2 + r), (C, 2 + r)
    left_free, right_free = _free(rank)
    signs *= 2
    signs -= 1
    if rank:
        left[:, 2:], right[:, 2:] = _subspace(matrix, signs, left, right)
    left[:, left_free] += _left_step(matrix, signs, left, right, left_free)
    right[:, right_free] += _right_step(matrix, signs, left, right, right_free)
    _balance(left[:, 2:], right[:, 2:])
    return MaskModel(matrix, _quarters(left[:, left_free]), _quarters(right[:, right_free]))


def told_by_each(mask: NDArray[np.bool_], matrix: Matrix) -> float:
    """How many bits of entropy a random mask of this density has for each row and column."""
    return entropy_bits(int(np.count_nonzero(mask)), mask.size) / (matrix.rows + matrix.columns)


def _constant(mask: NDArray[np.bool_], matrix: Matrix) -> MaskModel:
    """The model in which all elements are as likely: a compressor makes next to nothing of it."""
    odds = _odds(np.array([[np.count_nonzero(mask)]], np.float32), mask.size)
    rows = np.repeat(_quarters(odds.astype(np.float32)), matrix.rows, axis=1)
    return MaskModel(matrix, rows, np.zeros((1, matrix.columns), np.int8))


def _free(rank: int) -> tuple[list[int], list[int]]:
    """The indices of each side that a step may change."""
    further = list(range(2, 2 + rank))
    return [0, *further], [1, *further]


def _shares(kept: Floats, rank: int) -> tuple[Floats, Floats]:
    """Both sides where rows and columns keep their shares, independently of each other."""
    rows, columns = kept.shape
    left = np.zeros((rows, 2 + rank), np.float32)
    right = np.zeros((columns, 2 + rank), np.float32)
    of_rows = kept.sum(axis=1)
    half = _odds(of_rows.sum(dtype=np.float64, keepdims=True), rows * columns) / 2
    left[:, 0] = _odds(of_rows, columns) - half
    left[:, 1] = 1.0
    right[:, 0] = 1.0
    right[:, 1] = _odds(kept.sum(axis=0), rows) - half
    return left, right


def _odds(ones: NDArray[np.floating], of: int) -> NDArray[np.floating]:
    """The log-odds of so many ones, one more of either kind assumed."""
    return np.log((ones + 1) / (of - ones + 1))


def _sweep(
    matrix: Matrix, signs: Floats, left: Floats, right: Floats
) -> Iterator[tuple[slice, Floats]]:
    """Some rows at a time, and their residuals."""
    halved = left / 2
    for rows in blocks(matrix):
        residuals = halved[rows] @ right.T
        np.tanh(residuals, out=residuals)  # 2p - 1
        yield rows, np.subtract(signs[rows], residuals, out=residuals)


def _subspace(matrix: Matrix, signs: Floats, left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """The first singular vectors of the residuals, (R, r) and (C, r), as far as they shift log-odds."""
    rank = left.shape[1] - 2
    found = np.empty((len(signs), rank), np.float32)
    # Always the same start: the same mask gives the same bytes.
    back = np.random.default_rng(0).standard_normal((rank, len(right))).astype(np.float32)
    squares = 0.0
    for _ in range(SUBSPACE_SWEEPS):
        basis = np.linalg.qr(back.T)[0].astype(np.float32)
        back[:], squares = 0.0, 0.0
        for rows, residuals in _sweep(matrix, signs, left, right):
            found[rows] = residuals @ basis
            back += found[rows].T @ residuals
            squares += float(np.vdot(residuals, residuals))
    # Turned so that its columns are orthogonal, found is the left vectors by their singular values.
    eigen = np.linalg.eigh(found.T @ found)
    turn = eigen.eigenvectors.astype(np.float32)
    roots = np.sqrt(np.sqrt(np.maximum(eigen.eigenvalues, 1e-3))).astype(np.float32)
    scale = SPREAD / (math.sqrt(squares / (2 * signs.size)) + MIN_CURVATURE)
    found, back = found @ turn, turn.T @ back
    found *= scale / roots
    back *= (scale / roots**3)[:, None]
    return found, back.T


def _left_step(
    matrix: Matrix, signs: Floats, left: Floats, right: Floats, free: list[int]
) -> Floats:
    """How the rows' numbers move, (R, 1 + r), given those of the columns."""
    other = np.ascontiguousarray(right[:, free])
    gradient = np.empty((len(left), len(free)), np.float32)
    squares = np.empty(len(left), np.float32)
    for rows, residuals in _sweep(matrix, signs, left, right):
        np.matmul(residuals, other, out=gradient[rows])
        np.einsum("ij,ij->i", residuals, residuals, out=squares[rows])
    squares /= len(right)
    return _newton(gradient, squares, other)


def _right_step(
    matrix: Matrix, signs: Floats, left: Floats, right: Floats, free: list[int]
) -> Floats:
    """How the columns' numbers move, (C, 1 + r), given those of the rows."""
    other = np.ascontiguousarray(left[:, free])
    gradient = np.zeros((len(free), len(right)), np.float32)
    squares = np.zeros(len(right), np.float32)
    for rows, residuals in _sweep(matrix, signs, left, right):
        gradient += other[rows].T @ residuals
        squares += np.einsum("ij,ij->j", residuals, residuals)
    squares /= len(left)
    return _newton(gradient.T, squares, other)


def _newton(gradient: Floats, squares: Floats, other: Floats) -> Floats:
    """The damped step along twice the gradient, given the mean squares of the residuals."""
    shared = np.linalg.inv(other.T @ other + RIDGE * np.eye(other.shape[1], dtype=np.float32))
    newton = (gradient / 2) @ shared / (squares / 4 + MIN_CURVATURE)[:, None]
    return np.clip(DAMPING * newton, -MAX_STEP, MAX_STEP).astype(np.float32)


def _balance(left: Floats, right: Floats) -> None:
    """Give both sides of a product numbers of the same size: they are rounded alike."""
    ratio = (np.linalg.norm(left, axis=0) / len(left) ** 0.5 + 1e-6) / (
        np.linalg.norm(right, axis=0) / len(right) ** 0.5 + 1e-6
    )
    left /= np.sqrt(ratio)
    right *= np.sqrt(ratio)


def _quarters(numbers: Floats) -> NDArray[np.int8]:
    """(rows, 1 + r) as whole quarters (1 + r, rows)."""
    whole = np.clip(np.rint(_QUARTERS * numbers.T), -127, 127)
    return np.ascontiguousarray(whole).astype(np.int8)
