"""FedOBP: the few parameters that tell a device's model from the fleet's stay the device's own.

For a device with last trained model th_i and the global model th_g, the server computes

    I   = (th_i - th_g)^2                  importance of every scored element       (n,)
    K   = {k : I_k > quantile_q(I)}        the personal set, quantile by linear interpolation
    th~ = th_i on K, th_g elsewhere        where the device starts

and the next th_g is the mean of all trained models by ``num_examples``, personal elements included,
as in the authors' code. The scoring on the server follows arXiv 2604.16574; it needs each device's
own update, so it excludes secure aggregation. Training and coding are not here. BatchNorm statistics
are neither scored nor averaged: counters such as num_batches_tracked would outweigh every weight.
n = parameters of the model, s = scored elements.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.aggregate import average
from sedge_cloud.strategy import Assignment, Memory, State, Update
from sedge_protocol.errors import ConfigError, LocalError
from sedge_protocol.layout import Layout, Role, Tensor, Theta
from sedge_protocol.sparse import SparseVector

Score = Literal["squared", "product"]
Norm = Literal["none", "global", "layer"]
ColdStart = Literal["global", "init"]

# A device's smoothed importance (s,) in ``Memory.arrays``.
IMPORTANCE = "importance"


@dataclass(frozen=True)
class FedOBP:
    """The options of FedOBP; the defaults are the paper's method and its Fashion-MNIST quantile.

    Raises ``ConfigError`` for a value out of range.
    """

    quantile: float = 0.99993
    """q, 0 to 1: the share of the scored elements that stays global; .99993 of 582,026 leaves 41."""
    score: Score = "squared"
    """``product`` is |(th_i - th_g) th_i|, the score behind the authors' released logs."""
    norm: Norm = "none"
    """``layer``: min-max per tensor. ``global`` is the same as ``none``: min-max keeps the order."""
    classifier_only: bool | tuple[str, ...] = False
    """True scores only the last module, names only those tensors; q is then a quantile of these."""
    ema: float = 0.0
    """a in E <- (1 - a) I + a E per device, E scored in place of I; 0 is off and stores nothing."""
    cold_start: ColdStart = "global"
    """A device never heard of starts from th_g; ``init``: as if it had ended with the first model."""

    def __post_init__(self) -> None:
        for key, options in (("score", Score), ("norm", Norm), ("cold_start", ColdStart)):
            if getattr(self, key) not in get_args(options):
                raise ConfigError(key, getattr(self, key), f"one of {get_args(options)}")
        if not 0 <= self.quantile <= 1:
            raise ConfigError("quantile", self.quantile, "a number from 0 to 1")
        if not 0 <= self.ema < 1:
            raise ConfigError("ema", self.ema, "a number from 0 to below 1")
        if self.classifier_only == ():
            raise ConfigError("classifier_only", (), "true, false or names of tensors")

    @property
    def name(self) -> str:
        """``fedobp``."""
        return "fedobp"

    def init(self, layout: Layout, theta: Theta) -> State:
        """The state with theta (n,) as the first global model. Raises ``ConfigError`` for a name."""
        self.scored(layout)
        return State(layout, theta, initial=theta)

    def plan(self, state: State, memory: Memory) -> Assignment:
        """The patch of the device's personal parameters, and its own statistics."""
        keep = state.layout.statistics
        first = state.initial if self.cold_start == "init" else None
        history = first if memory.trained is None else memory.trained
        if history is None:
            return Assignment(keep=keep)
        tensors = self.scored(state.layout)
        scores = importance(history, state.theta, tensors, self.score)
        arrays: dict[str, NDArray[np.float32]] = {}
        if self.ema > 0:
            scores = smooth(scores, memory.arrays.get(IMPORTANCE), self.ema)
            arrays[IMPORTANCE] = scores
        if self.norm == "layer":
            scores = min_max(scores, tensors)
        indices = positions(select(scores, self.quantile), tensors)
        if indices.size == 0:
            return Assignment(keep=keep, arrays=arrays)
        patch = SparseVector(state.layout.size, indices, history[indices])
        return Assignment(patch, keep, arrays=arrays)

    def apply(self, state: State, updates: Iterable[Update]) -> State:
        """The weighted mean of the trained models, personal elements included."""
        return average(state, updates)

    def scored(self, layout: Layout) -> tuple[Tensor, ...]:
        """The tensors that are scored. Raises ``ConfigError`` for a name that is no parameter."""
        parameters = {t.name: t for t in layout.tensors if t.role is Role.PARAMETER}
        if self.classifier_only is False:
            return tuple(parameters.values())
        names = layout.head if self.classifier_only is True else self.classifier_only
        unknown = [name for name in names if name not in parameters]
        if unknown:
            raise ConfigError("classifier_only", unknown, f"names among {sorted(parameters)}")
        return tuple(t for t in parameters.values() if t.name in names)


def importance(
    history: Theta, theta: Theta, tensors: tuple[Tensor, ...], score: Score
) -> NDArray[np.float32]:
    """I (s,) of a device's history (n,) against the global theta (n,), tensor after tensor.

    A score above the largest float32 becomes that number, so that one enormous element neither hides
    behind infinity nor turns a norm or an average into NaN.
    """
    scores = np.empty(sum(t.size for t in tensors), np.float32)
    with np.errstate(over="ignore"):
        for tensor, part in zip(tensors, _parts(scores, tensors), strict=True):
            own = history[tensor.slice]
            np.subtract(own, theta[tensor.slice], out=part)
            if score == "squared":
                np.square(part, out=part)
            else:
                np.abs(np.multiply(part, own, out=part), out=part)
    if not np.isfinite(scores).all():
        np.minimum(scores, np.finfo(np.float32).max, out=scores)
    return scores


def smooth(
    scores: NDArray[np.float32], past: NDArray[np.float32] | None, ema: float
) -> NDArray[np.float32]:
    """E (s,) = (1 - ema) * scores + ema * past; the scores themselves while there is no past.

    ``past`` is the E of the device's last plan. Raises ``LocalError`` when it has another shape.
    """
    if past is None:
        return scores
    if past.shape != scores.shape:
        raise LocalError(f"{IMPORTANCE}: shape {past.shape} in memory, expected {scores.shape}")
    return np.multiply(scores, np.float32(1 - ema)) + np.multiply(past, np.float32(ema))


def min_max(scores: NDArray[np.float32], tensors: tuple[Tensor, ...]) -> NDArray[np.float32]:
    """The scores (s,) brought to 0..1 within each tensor; a tensor of equal scores becomes 0."""
    normed = scores.copy()
    for part in _parts(normed, tensors):
        part -= part.min()
        highest = part.max()
        if highest > 0:
            part /= highest
    return normed


def kept(size: int, quantile: float) -> int:
    """k = n - 1 - floor(q (n - 1)): how many of n different scores lie above their q-quantile.

    q is the decimal that was written: .29 of 101 elements is rank 29, where binary floating point
    makes .29 * 100 = 28.999999999999996 and keeps one more.
    """
    return size - 1 - int(Fraction(str(float(quantile))) * (size - 1))


def select(scores: NDArray[np.float32], quantile: float) -> NDArray[np.uint32]:
    """Sorted indices of the k largest of the scores (s,), without those equal to the (k+1)-th.

    That is ``scores > quantile`` of linear interpolation, ties included: whichever of equal scores
    a sort puts first, all that tie with the (k+1)-th go, so the set depends on the values only.
    Equal scores throughout select nothing. Raises ``LocalError`` for a score that is not finite.
    """
    if not np.isfinite(scores).all():
        raise LocalError(f"scores: index {int(np.argmin(np.isfinite(scores)))} is not finite")
    if scores.size == 0:
        return np.empty(0, np.uint32)
    threshold = _largest(scores, kept(scores.size, quantile))
    return np.flatnonzero(scores > threshold).astype(np.uint32)


def positions(indices: NDArray[np.uint32], tensors: tuple[Tensor, ...]) -> NDArray[np.uint32]:
    """Where the scored elements with these indices lie inside theta."""
    sizes = np.array([t.size for t in tensors], np.int64)
    ends = np.cumsum(sizes)
    shift = np.array([t.offset for t in tensors], np.int64) - (ends - sizes)
    return (indices + shift[np.searchsorted(ends, indices, side="right")]).astype(np.uint32)


def _largest(scores: NDArray[np.float32], k: int) -> np.float32:
    """The (k+1)-th largest score (k = 0: the largest), exactly.

    A partition of all 582,026 scores costs 4 ms. The (k+1)-th largest of the maxima of disjoint
    groups is reached by at least k+1 scores, so it bounds the answer from below and the partition
    needs only the few scores that reach it: 0.3 ms at k = 41. Eight groups for each wanted score
    let hardly more than k+1 through; below 4 scores to a group the detour does not pay.
    """
    groups = max(1024, 8 * (k + 1))
    depth = scores.size // groups
    if depth >= 4:
        maxima = scores[: depth * groups].reshape(depth, groups).max(axis=0)
        bound = np.partition(maxima, groups - 1 - k)[groups - 1 - k]
        scores = scores[scores >= bound]
    rank = scores.size - 1 - k
    largest: np.float32 = np.partition(scores, rank)[rank]
    return largest


def _parts(
    scores: NDArray[np.float32], tensors: tuple[Tensor, ...]
) -> Iterator[NDArray[np.float32]]:
    """The scores (s,) of each tensor, as views."""
    start = 0
    for tensor in tensors:
        yield scores[start : start + tensor.size]
        start += tensor.size
