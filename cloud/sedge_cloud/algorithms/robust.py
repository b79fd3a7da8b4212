"""The rules of robust aggregation, which a few hostile devices cannot subvert, on plain arrays.

    clip           a change is shortened to ``clip`` times the median length of the round's changes
    max_weight     no device counts for more than this multiple of the median number of examples
    direction      a change that points in another direction than the round's others is shortened or dropped
    krum           only the update that is nearest to its neighbours      (Blanchard et al. 2017)
    multi_krum     the d - f - 2 updates nearest to their neighbours      (Blanchard et al. 2017)
    trimmed_mean   each coordinate's mean without the f largest and f smallest values (Yin et al. 2018)
    median         each coordinate's median                               (Yin et al. 2018)

d is the number of updates in a round, f the number of them that may be hostile, and b the number of
coordinates in a block. ``outliers.py`` and ``averaging.py`` apply the rules to updates.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_protocol.decimal_shares import floor_of

Rule: TypeAlias = Literal["direction", "mean", "trimmed_mean", "median", "krum", "multi_krum"]
# Rules that combine updates coordinate by coordinate; the other rules drop whole updates.
COORDINATE_RULES: tuple[Rule, ...] = ("trimmed_mean", "median")

Block: TypeAlias = NDArray[np.float32]  # (d, b)

# A device is distrusted when its change is shortened to less than this factor: with the default clip, when
# it is more than five times as long as the median. At this factor or above, the influence of its model on
# other devices is multiplied by the factor.
TRUSTED = 0.2
# A change is not shortened if its direction's agreement is at least this fraction of the median agreement.
AGREES = 0.5


class Robust(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far the coordinator trusts a single device, whose claims cannot be checked.

    A device's influence is its update's length times its weight: by default at most that of the median
    device, so that two hostile devices out of ten cannot outweigh the others, whatever they send. With the
    defaults used before November 2026, a ``clip`` of 3 and a ``max_weight`` of 4, two devices that knew the
    rule ruined the model. `tools.bench attacks` measures the effect of two hostile devices out of ten under
    each attack. The limits hurt if honest devices have few classes in common: one round then cannot tell a
    reversed change from an honest one. Use ``rule = "mean"`` for such a fleet if its devices can be
    trusted. A device becomes untrusted if its update is dropped, shortened to less than ``TRUSTED``, or too
    late to be compared. Until one of its updates counts again, its model does not influence other devices
    (``ClientModel.trusted``). If the update is shortened less than that, the model's influence is reduced
    by the same factor.

    Agreement is relative to the round's median (``agreement_factors``). ``byzantine`` is the share of
    updates that may be hostile: f = floor(byzantine * d). ``median`` and ``trimmed_mean`` work on each
    coordinate separately, ignore the claimed numbers of examples, and need dense updates: an element sent
    by fewer than half of the devices has a median of 0 and does not change.
    """

    clip: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    """Maximum length of an update, as a multiple of the round's median; longer updates are shortened, and
    0 sets no limit."""
    rule: Rule = "direction"
    """How updates are combined: ``direction`` weights each by its agreement with the others, ``mean``
    trusts every device, the rest tolerate faulty or hostile ones."""
    byzantine: Annotated[float, Meta(ge=0, lt=0.5)] = 0.2
    """Share of a round's updates that may be faulty or hostile, for ``trimmed_mean``, ``krum`` and
    ``multi_krum``."""
    equal_weights: bool = False
    """Weight all devices equally, regardless of how many examples they claim."""
    max_weight: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    """Maximum weight of a device, as a multiple of the round's median number of examples; 0 sets no
    limit."""

    def wrong(self, count: int) -> int:
        """Return f, the number of updates out of ``count`` that may be hostile."""
        return floor_of(self.byzantine, count)


def distrusted(factors: Mapping[str, float]) -> dict[str, float]:
    """Return the factors below ``TRUSTED`` as a dict with devices as keys."""
    return {device: factor for device, factor in factors.items() if factor < TRUSTED}


def clip_factors(
    lengths: Sequence[float], clip: float, among: Sequence[float] | None = None
) -> list[float]:
    """Return the factor that shortens each change to at most ``clip`` times the median length.

    A change that is not finite gets 0; with a ``clip`` of 0, all others get 1. The median is taken over
    ``among``, by default all ``lengths``. It ignores lengths of zero: if a codec lets most devices send
    nothing, the others must not be clipped to nothing.
    """
    compared = lengths if among is None else among
    real = [length for length in compared if np.isfinite(length) and length > 0]
    bound = clip * float(np.median(real)) if clip > 0 and real else np.inf
    return [
        0.0 if not np.isfinite(length) else min(1.0, bound / length) if length > 0 else 1.0
        for length in lengths
    ]


def counted_examples(claimed: Sequence[int], max_weight: float) -> list[int]:
    """Cap the claimed numbers of examples at ``max_weight`` times their median; 0 means no cap."""
    if max_weight == 0 or not claimed:
        return list(claimed)
    most = max(1, int(max_weight * float(np.median(claimed))))
    return [min(count, most) for count in claimed]


def agreement_factors(agreements: Sequence[float]) -> list[float]:
    """Return a factor for each change, based on how well its direction agrees with the others.

    The factor is 1 for an agreement of at least ``AGREES`` times the median, proportional below that, and 0
    for a change that points against the others. An agreement of NaN is unknown and gives 1. Nothing is
    shortened if there are only two changes, as neither can be called wrong, or if the median is 0 or less.
    """
    finite = [agreement for agreement in agreements if np.isfinite(agreement)]
    enough = AGREES * float(np.median(finite)) if len(finite) > 2 else 0.0
    if enough <= 0:
        return [1.0] * len(agreements)
    return [
        min(1.0, max(0.0, agreement / enough)) if np.isfinite(agreement) else 1.0
        for agreement in agreements
    ]


def krum_scores(gram: NDArray[np.float64], wrong: int) -> NDArray[np.float64]:
    """Compute the Krum score (d,) of every update from the inner products (d, d) of the changes.

    A score is the sum of the squared distances to the d - f - 2 nearest others; lower is better.
    """
    squares = np.diag(gram)
    distances = np.maximum(squares[:, None] + squares[None, :] - 2 * gram, 0)
    np.fill_diagonal(distances, np.inf)
    nearest = np.sort(distances, axis=1)[:, : len(gram) - wrong - 2]
    scores: NDArray[np.float64] = nearest.sum(axis=1)
    return scores


def krum(gram: NDArray[np.float64], wrong: int, rule: Rule) -> list[int]:
    """Return the updates that the rule keeps, ascending, from the inner products (d, d) of the changes.

    With fewer than 3 updates all are kept, as no update has two others to be compared with. f is at most (d
    - 3) / 2, the limit of Krum's proof. If scores are equal, the first update wins.
    """
    count = len(gram)
    if count < 3:
        return list(range(count))
    wrong = min(wrong, (count - 3) // 2)
    order = np.argsort(krum_scores(gram, wrong), kind="stable")
    kept = 1 if rule == "krum" else count - wrong - 2
    return sorted(int(i) for i in order[:kept])


def coordinate_wise(values: Block, rule: Rule, wrong: int) -> NDArray[np.float64]:
    """Compute the median or trimmed mean (b,) of each column of ``values`` (d, b), which it sorts in place.

    f is capped at (d - 1) / 2, so that at least one value remains.
    """
    count = len(values)
    if rule == "median":
        wrong = (count - 1) // 2
    wrong = min(wrong, (count - 1) // 2)
    values.sort(axis=0)
    mean: NDArray[np.float64] = values[wrong : count - wrong].mean(axis=0, dtype=np.float64)
    return mean
