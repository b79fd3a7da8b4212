"""The outlier filter between a round's updates and its strategy: norm clipping, direction, Krum.

An update with a receipt is finite and belongs to its order. Here the updates of a round are compared with
each other (``robust.py``). A change that is longer than the others', or points elsewhere, is shortened; one
that points against them is left out. Krum keeps only updates with near neighbours. An update that
claims far more examples than the others has its weight capped, but is not distrusted for it. Two
lengths are compared, each with its own median: that of the trained delta, and that of the patch with which
the device started, which comes from its own past. The filter works on any update, so strategies need not
know of it.

The patches' median is taken over trusted client models (``ClientModel.trusted``); without any it is the
median of the deltas. Otherwise, where most devices are newcomers without a patch, a device that was
shortened in its last round would be its own measure in the next. If a round has only one patch of a trusted
model, it is left unchanged: its parts were filtered in their own rounds, and no bound from this round would
fit. Honest patches grow while changes shrink: they reached 13 times the median change after 60 rounds of
FedOBP with q = .9995, and 130 times with FedPURIN. Starts are not measured: they are the cloud's own, or
made of trusted models. d = updates, n = parameters.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import blocks, repeatable
from sedge_cloud.algorithms.robust import (
    Robust,
    agreement_factors,
    clip_factors,
    counted_examples,
    distrusted,
    krum,
)
from sedge_cloud.strategy import Update
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Theta

# Columns of a block that are multiplied at once in float64.
COLUMNS = 4096
# Weiszfeld's step divides by a distance between directions; its square counts as at least this.
NEAREST = 1e-6


@dataclass(frozen=True)
class Filtered:
    """The updates whose factor is not 0, shortened where it is below 1.

    ``examples`` has the number of examples with which each update counts, ``shortened`` the factors below 1
    by device. Can be iterated as often as ``updates`` can.
    """

    updates: Iterable[Update]
    factors: tuple[float, ...]
    examples: tuple[int, ...]
    shortened: dict[str, float]

    @property
    def distrusted(self) -> dict[str, float]:
        """The factors below ``TRUSTED``, by device."""
        return distrusted(self.shortened)

    def __iter__(self) -> Iterator[Update]:
        for update, factor, count in zip(self.updates, self.factors, self.examples, strict=True):
            if factor == 0:
                continue
            counted = update
            if count != update.num_examples:
                counted = replace(update, num_examples=count)
            yield counted if factor == 1 else counted.scaled(factor)


class Measured(NamedTuple):
    """The properties of an update that are compared; ``patch`` and ``delta`` are lengths."""

    device: str
    num_examples: int
    width: int
    size: int
    trusted: bool
    patch: float
    delta: float


def measure(update: Update) -> Measured:
    """The properties of an update that are compared."""
    return Measured(
        update.device,
        update.num_examples,
        update.width,
        update.base.size,
        update.trusted,
        *lengths(update),
    )


def filter_outliers(
    updates: Iterable[Update], robust: Robust, measured: Sequence[Measured] | None = None
) -> Filtered:
    """The updates that a strategy may aggregate. An iterator is read into memory, else they are reiterated.

    ``measured`` has their measures, if known, which saves a pass over the vectors: lengths alone decide
    unless the rule compares directions or changes. Raises ``StrategyError`` when Krum is to
    compare updates of different widths.
    """
    updates = repeatable(updates)
    measured = [measure(update) for update in updates] if measured is None else measured
    factors = _factors(measured, robust.clip)
    if robust.rule == "direction":
        agreements = _agreements(updates, measured)
        for width in {each.width for each in measured}:
            same = [i for i, each in enumerate(measured) if each.width == width]
            for i, share in zip(
                same, agreement_factors([agreements[i] for i in same]), strict=True
            ):
                factors[i] *= share
    if robust.rule in ("krum", "multi_krum"):
        finite = [i for i, factor in enumerate(factors) if factor > 0]
        gram = products(updates, [each.size for each in measured])[np.ix_(finite, finite)]
        kept = {finite[i] for i in krum(gram, robust.wrong(len(finite)), robust.rule)}
        factors = [factor if i in kept else 0.0 for i, factor in enumerate(factors)]
    claimed = [1 if robust.equal_weights else each.num_examples for each in measured]
    examples = counted_examples(claimed, robust.max_weight)
    shortened = {
        each.device: factor for each, factor in zip(measured, factors, strict=True) if factor < 1
    }
    return Filtered(updates, tuple(factors), tuple(examples), shortened)


def _factors(measured: Sequence[Measured], clip: float) -> list[float]:
    """The factor of each update: the smaller of those for its two lengths."""
    deltas = [each.delta for each in measured]
    trusted = [each.patch for each in measured if each.trusted]
    is_any = any(0 < patch < np.inf for patch in trusted)
    patches = clip_factors([each.patch for each in measured], clip, trusted if is_any else deltas)
    return list(map(min, patches, clip_factors(deltas, clip)))


def _agreements(updates: Iterable[Update], measured: Sequence[Measured]) -> list[float]:
    """How well each update's direction agrees with the others of its width; NaN if it has none.

    It is the product of the direction with the geometric median of all directions: their mean, improved by
    one step of Weiszfeld's algorithm (Pillutla et al. 2022). Takes three passes, and two vectors (n,) for
    each width.
    """
    moved = [0 < each.delta < np.inf for each in measured]  # by a finite amount that is not zero
    centres = _centres(updates, measured, moved, {})
    centres = _centres(updates, measured, moved, centres)
    return [
        _along(update, each.delta, centres[each.width]) if has_moved else np.nan
        for update, each, has_moved in zip(updates, measured, moved, strict=True)
    ]


def _centres(
    updates: Iterable[Update],
    measured: Sequence[Measured],
    moved: Sequence[bool],
    before: Mapping[int, NDArray[np.float64]],
) -> dict[int, NDArray[np.float64]]:
    """For each width the mean (n,) of the directions, weighted by their nearness to that ``before``."""
    sums: dict[int, NDArray[np.float64]] = {}
    weights: defaultdict[int, float] = defaultdict(float)
    squares = {width: float(np.square(centre).sum()) for width, centre in before.items()}
    for update, each, has_moved in zip(updates, measured, moved, strict=True):
        if not has_moved:
            continue
        weight = 1.0
        if each.width in before:
            along = _along(update, each.delta, before[each.width])
            square = 1 - 2 * along + squares[each.width]
            weight = 1 / np.sqrt(max(square, NEAREST))
        total = sums.setdefault(each.width, np.zeros(each.size))
        replace(update, patch=None).add_change(total, weight / each.delta, update.base)
        weights[each.width] += weight
    return {width: total / weights[width] for width, total in sums.items()}


def _along(update: Update, length: float, centre: NDArray[np.float64]) -> float:
    """The product of an update's direction with the centre (n,); ``length`` is its delta's."""
    if update.delta is None:
        return 0.0
    # Not by BLAS: its rounding depends on the number of threads, and threads wait on a busy host.
    product = np.einsum("i,i", update.delta.values.astype(np.float64), centre[update.delta.where])
    return float(product) / length


def lengths(update: Update) -> tuple[float, float]:
    """The Euclidean lengths of an update's two parts: from ``base`` to its patch, and of its delta."""
    patch, delta = update.patch, update.delta
    moved = patch if patch is None else patch.values - update.base[patch.where]
    return _length(moved), _length(delta if delta is None else delta.values)


def products(updates: Iterable[Update], sizes: Sequence[int]) -> NDArray[np.float64]:
    """The inner products (d, d) of all pairs of changes, each from its own ``base``.

    Raises ``StrategyError`` unless all have one size.
    """
    gram = np.zeros((len(sizes), len(sizes)))
    if len(set(sizes)) > 1:
        raise StrategyError(f"krum: updates of {sorted(set(sizes))} elements, expected one width")
    for size in set(sizes):
        for block in blocks(updates, len(sizes), size):
            for start in range(0, block.shape[1], COLUMNS):
                wide = block[:, start : start + COLUMNS].astype(np.float64)
                with np.errstate(invalid="ignore"):  # products of an infinite change are not used
                    gram += wide @ wide.T
    return gram


def _length(vector: Theta | None) -> float:
    return 0.0 if vector is None else float(np.sqrt(_sum_of_squares(vector)))


def _sum_of_squares(vector: Theta) -> float:
    """``np.square(vector, dtype=np.float64).sum()`` to the bit, in less memory (halved as in numpy)."""
    if vector.size <= COLUMNS:
        return float(np.square(vector, dtype=np.float64).sum())
    half = vector.size // 2
    half -= half % 8
    return _sum_of_squares(vector[:half]) + _sum_of_squares(vector[half:])
