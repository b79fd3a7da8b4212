"""The filter between a round's updates and its strategy: leaves out what is not finite, shortens outliers.

A receipt already means that an update is finite and belongs to its order. Here the updates of a round are
compared with each other (``robust.py``): a change longer than the others' is shortened, so is one that
points elsewhere, and left out if it points against them; Krum keeps only those that have neighbours, and
a claim to far more examples than the others' counts for fewer. That claim is no reason for distrust: it
moves nothing but the weight. Two lengths are compared, each with its own median: that of what the device
trained, and that of the patch which it began with, as this comes from its own past. It works on updates
as they are, so no strategy needs to know.

The median of the patches is that of trusted pasts (``ClientModel.trusted``), or else that of what was
trained: where few devices have a patch, newcomers being many, one that was shortened in its last round
would be measured by itself in the next. A patch of a trusted past that has no other beside it stays as it
is. What it is made of was vetted in its own rounds, and no bound from this round would do: honest patches
grow while changes shrink, and were seen to reach 13 times the median change after 60 rounds of FedOBP with
q = .9995, and 130 times with FedPURIN. Starts are not measured: they are the cloud's own, or made of
trusted pasts. d = updates, n = parameters.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sedge_cloud.algorithms.robust import (
    TRUSTED,
    Block,
    Robust,
    agreement_factors,
    clip_factors,
    counted_examples,
    krum,
)
from sedge_cloud.strategy import Update, place
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Theta

# What a block of coordinates of all updates may take: 100 updates of 582,026 parameters are four passes.
BLOCK_BYTES = 64 * 2**20
# Columns of a block that are multiplied at once, in float64.
COLUMNS = 4096
# The smallest square of a distance between directions that Weiszfeld's step divides by.
NEAREST = 1e-6


@dataclass(frozen=True)
class Vetted:
    """Those of the updates whose factor is not 0, shortened where it is below 1.

    ``examples`` are those that count of each. ``distrusted`` has the factors below ``TRUSTED``, by device.
    It can be gone through as often as ``updates`` can.
    """

    updates: Iterable[Update]
    factors: tuple[float, ...]
    examples: tuple[int, ...]
    distrusted: dict[str, float]

    def __iter__(self) -> Iterator[Update]:
        for update, factor, count in zip(self.updates, self.factors, self.examples, strict=True):
            if factor == 0:
                continue
            counted = update
            if count != update.num_examples:
                counted = replace(update, num_examples=count)
            yield counted if factor == 1 else counted.scaled(factor)


class _Measured(NamedTuple):
    """What is compared of an update; lengths as in ``lengths``."""

    device: str
    num_examples: int
    width: int
    size: int
    trusted: bool
    patch: float
    delta: float

    @property
    def has_direction(self) -> bool:
        """Whether the device trained at all, and to an end that is finite."""
        return 0 < self.delta < np.inf


def vet(updates: Iterable[Update], robust: Robust) -> Vetted:
    """What a strategy may fold; an iterator's updates are held in memory, others looked at again.

    Raises ``LocalError`` when Krum is to compare updates of different widths.
    """
    updates = repeatable(updates)
    measured = [
        _Measured(u.device, u.num_examples, u.width, u.base.size, u.trusted, *lengths(u))
        for u in updates
    ]
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
    distrusted = {
        each.device: factor
        for each, factor in zip(measured, factors, strict=True)
        if factor < TRUSTED
    }
    return Vetted(updates, tuple(factors), tuple(examples), distrusted)


def _factors(measured: Sequence[_Measured], clip: float) -> list[float]:
    """What each update is shortened to: the smaller of what its two lengths ask for."""
    deltas = [each.delta for each in measured]
    trusted = [each.patch for each in measured if each.trusted]
    is_any = any(0 < patch < np.inf for patch in trusted)
    patches = clip_factors([each.patch for each in measured], clip, trusted if is_any else deltas)
    return list(map(min, patches, clip_factors(deltas, clip)))


def _agreements(updates: Iterable[Update], measured: Sequence[_Measured]) -> list[float]:
    """How far each update was trained along the others of its width; NaN for one that was not.

    By the product of its direction with the geometric median of all: the mean, and one step of Weiszfeld's
    from there (Pillutla et al. 2022). Three passes, and two vectors (n,) for each width.
    """
    centres = _centres(updates, measured, {})
    centres = _centres(updates, measured, centres)
    return [
        _along(update, each.delta, centres[each.width]) if each.has_direction else np.nan
        for update, each in zip(updates, measured, strict=True)
    ]


def _centres(
    updates: Iterable[Update],
    measured: Sequence[_Measured],
    before: Mapping[int, NDArray[np.float64]],
) -> dict[int, NDArray[np.float64]]:
    """For each width the mean (n,) of the directions, the nearer to that ``before`` the heavier."""
    sums: dict[int, NDArray[np.float64]] = {}
    weights: defaultdict[int, float] = defaultdict(float)
    squares = {width: float(np.square(centre).sum()) for width, centre in before.items()}
    for update, each in zip(updates, measured, strict=True):
        if not each.has_direction:
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
    """The product of the direction of a delta of that length with the centre (n,)."""
    if update.delta is None:
        return 0.0
    # Not by BLAS: its bits depend on how many threads it has, and those wait for a busy host.
    product = np.einsum("i,i", update.delta.values.astype(np.float64), centre[place(update.delta)])
    return float(product) / length


def repeatable(updates: Iterable[Update]) -> Iterable[Update]:
    """The updates, to be gone through more than once."""
    return list(updates) if isinstance(updates, Iterator) else updates


def lengths(update: Update) -> tuple[float, float]:
    """The Euclidean lengths of the two parts of an update's way: ``base`` to patch, and the delta."""
    patch, delta = update.patch, update.delta
    moved = patch if patch is None else patch.values - update.base[place(patch)]
    return _length(moved), _length(delta if delta is None else delta.values)


def products(updates: Iterable[Update], sizes: Sequence[int]) -> NDArray[np.float64]:
    """The products (d, d) of every two changes, each from its own ``base``.

    Raises ``LocalError`` unless all have one size.
    """
    gram = np.zeros((len(sizes), len(sizes)))
    if len(set(sizes)) > 1:
        raise LocalError(f"krum: updates of {sorted(set(sizes))} elements, expected one width")
    for size in set(sizes):
        for block in blocks(updates, len(sizes), size):
            for start in range(0, block.shape[1], COLUMNS):
                wide = block[:, start : start + COLUMNS].astype(np.float64)
                with np.errstate(invalid="ignore"):  # an infinite change: nobody reads its products
                    gram += wide @ wide.T
    return gram


def blocks(
    updates: Iterable[Update], count: int, size: int, theta: Theta | None = None
) -> Iterator[Block]:
    """The changes of ``count`` updates block by block of coordinates (d, b), in order.

    They count from theta (n,) or, without it, each from its own ``base``. Each block goes through all
    updates once, and is the same array as the one before.
    """
    step = max(1, min(size, BLOCK_BYTES // (4 * max(1, count))))
    buffer = np.empty((count, step), np.float32)
    for start in range(0, size, step):
        part = slice(start, min(start + step, size))
        block = buffer[:, : part.stop - start]
        for row, update in zip(block, updates, strict=True):
            row[:] = update.change(update.base if theta is None else theta, part)
        yield block


def _length(vector: Theta | None) -> float:
    return 0.0 if vector is None else float(np.sqrt(np.square(vector, dtype=np.float64).sum()))
