"""Aggregation that a few devices cannot turn: the rules, over plain arrays.

    clip           a change is shortened to ``clip`` times the median length of the round's changes
    max_weight     nobody counts for more than so many times the median number of examples
    direction      a change that points elsewhere than the round's others is shortened, or left out
    krum           the one update nearest to its neighbours           (Blanchard et al. 2017)
    multi_krum     the d - f - 2 nearest ones                         (Blanchard et al. 2017)
    trimmed_mean   of each coordinate, without the f largest and f smallest values   (Yin et al. 2018)
    median         of each coordinate                                 (Yin et al. 2018)

d = updates of a round, f = those that may be wrong, b = coordinates of a block. Which updates these are
and how they come here is the business of ``outliers.py`` and ``averaging.py``.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

Rule: TypeAlias = Literal["direction", "mean", "trimmed_mean", "median", "krum", "multi_krum"]
# Rules that make one vector of many, coordinate by coordinate; the others leave whole updates out.
COORDINATE_RULES: tuple[Rule, ...] = ("trimmed_mean", "median")

Block: TypeAlias = NDArray[np.float32]  # (d, b)

# Below this share of its change a device is distrusted: with the default clip, when that is 7.5 times as
# long as the median.
TRUSTED = 0.4
# A change counts in full if its direction agrees with the others' this much, against the median.
AGREES = 0.5


class Robust(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the coordinator trusts a single device.

    With ``clip`` above 0 no change is longer than so many times the median of the round's. With
    ``max_weight`` above 0 nobody counts for more than so many times the median of the round's numbers of
    examples: what a device claims to hold cannot be checked. By the rule ``direction`` a change counts by
    how far it points where the others do, against the median of that (``agreement_factors``).

    Two hostile devices of ten that send a change scaled, turned around or both, or claim any number of
    examples, then cost at most as many points again as the model's error without them
    (tools/bench/attacks.py). It has a price where all are honest and have few classes in common: of
    twenty devices with digits by Dir(0.1) some were left out in a few rounds, which cost FedAvg .6 of a
    point after training and FedPURIN 1.5, FedOBP nothing that was seen. One round does not tell a
    reversed change from an honest one there. ``rule = "mean"`` is for such a fleet whose devices can be
    trusted. Whoever is shortened to less than ``TRUSTED`` or left out in a round, or comes too late to
    be compared, has a past that the others get no share of (``ClientModel.trusted``) until an update of it
    counts again.

    With the rule ``mean`` directions count for nothing. The other rules take its place where
    ``byzantine``, a share of the round's updates, may be wrong: f = floor(byzantine * d). The
    coordinate-wise rules ask for dense updates: where fewer than half of the devices send an element,
    its median is no change. With ``equal_weights`` the number of examples that a device claims to have
    counts for nothing; the coordinate-wise rules never ask for it.
    """

    clip: Annotated[float, Meta(ge=0, le=1e6)] = 3.0
    rule: Rule = "direction"
    byzantine: Annotated[float, Meta(ge=0, lt=0.5)] = 0.2
    equal_weights: bool = False
    max_weight: Annotated[float, Meta(ge=0, le=1e6)] = 4.0

    def wrong(self, count: int) -> int:
        """f of ``count`` updates. As the decimal that was written: in binary .29 * 100 is below 29."""
        return int(Fraction(str(self.byzantine)) * count)


def clip_factors(
    lengths: Sequence[float], clip: float, among: Sequence[float] | None = None
) -> list[float]:
    """What each change is multiplied with; 0 for one that is not finite.

    The median is of the lengths ``among`` which they are compared, else of all. It is of those that are
    any: where a codec lets most devices send nothing, the others are not to be clipped to nothing. With
    ``clip`` 0 nothing is shortened.
    """
    compared = lengths if among is None else among
    real = [length for length in compared if np.isfinite(length) and length > 0]
    bound = clip * float(np.median(real)) if clip > 0 and real else np.inf
    return [
        0.0 if not np.isfinite(length) else min(1.0, bound / length) if length > 0 else 1.0
        for length in lengths
    ]


def counted_examples(claimed: Sequence[int], max_weight: float) -> list[int]:
    """How many examples count of those that each device claims: at most so many times their median.

    With ``max_weight`` 0 all do.
    """
    if max_weight == 0 or not claimed:
        return list(claimed)
    most = max(1, int(max_weight * float(np.median(claimed))))
    return [min(count, most) for count in claimed]


def agreement_factors(agreements: Sequence[float]) -> list[float]:
    """What each change is multiplied with for how far its direction agrees with all others'; NaN: unknown.

    1 down to ``AGREES`` of the median, from there in proportion, and 0 for one that points against them.
    Of two changes neither can be told to be wrong, nor any where the median itself agrees with nothing.
    """
    known = [agreement for agreement in agreements if np.isfinite(agreement)]
    enough = AGREES * float(np.median(known)) if len(known) > 2 else 0.0
    if enough <= 0:
        return [1.0] * len(agreements)
    return [
        min(1.0, max(0.0, agreement / enough)) if np.isfinite(agreement) else 1.0
        for agreement in agreements
    ]


def krum_scores(gram: NDArray[np.float64], wrong: int) -> NDArray[np.float64]:
    """Krum's score (d,) of every update from the products (d, d) of their changes; small is good.

    It is the sum of the squared distances to the d - f - 2 nearest others.
    """
    squares = np.diag(gram)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0)
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)[:, : len(gram) - wrong - 2]
    scores: NDArray[np.float64] = nearest.sum(axis=1)
    return scores


def krum(gram: NDArray[np.float64], wrong: int, rule: Rule) -> list[int]:
    """The updates that the rule keeps, ascending, from the products (d, d) of their changes.

    d < 3 updates are all kept: none has two others to be compared with. f is at most (d - 3) / 2, up to
    which Krum is proven. Of equal scores the first wins.
    """
    count = len(gram)
    if count < 3:
        return list(range(count))
    wrong = min(wrong, (count - 3) // 2)
    order = np.argsort(krum_scores(gram, wrong), kind="stable")
    kept = 1 if rule == "krum" else count - wrong - 2
    return sorted(int(i) for i in order[:kept])


def coordinate_wise(values: Block, rule: Rule, wrong: int) -> NDArray[np.float64]:
    """One value (b,) for each column of ``values`` (d, b), which is used up.

    The f that the trimmed mean leaves out at each end are at most (d - 1) / 2, so that one is left.
    """
    count = len(values)
    if rule == "median":
        wrong = (count - 1) // 2
    wrong = min(wrong, (count - 1) // 2)
    values.sort(axis=0)
    mean: NDArray[np.float64] = values[wrong : count - wrong].mean(axis=0, dtype=np.float64)
    return mean
