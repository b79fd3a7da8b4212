"""Compares two strategies on the same devices: how much better the first is, device by device.

Devices differ far more from each other than strategies do. So the difference is taken on each device first,
and its standard error is that of these differences.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_emulate.result import DeviceResult, StrategyResult
from sedge_protocol.wire.objective import Metric

When: TypeAlias = Literal["before", "after"]
# Equal means over seeds may differ in their last bit, and values of stored results were rounded to six
# decimals.
DECIMALS = 5
# Up to this many differences, all signs are tried; scipy's ``wilcoxon`` does this a hundred times more
# slowly.
MAX_EXACT = 13


class Tested(msgspec.Struct, frozen=True):
    """The first strategy's metric minus the other's on each of several devices, and how surely it is not 0.

    It is better on ``better`` devices and worse on ``worse``. ``sign_p`` and ``wilcoxon_p`` are two-sided:
    of the sign test, and of Wilcoxon's signed ranks without the devices that do not differ. A difference
    counts as zero if it rounds to 0 at ``DECIMALS``.
    """

    devices: int
    mean: float
    better: int
    worse: int
    sign_p: float
    wilcoxon_p: float


class Difference(msgspec.Struct, frozen=True):
    """The first strategy's metric minus the other's, on devices that both evaluated.

    ``pooled`` weighs the devices by their test examples (None where their number is unknown), ``tested``
    counts each once; ``error`` is the standard error of its mean, None for a single device.
    """

    pooled: float | None
    error: float | None
    tested: Tested


def pooled(devices: Sequence[DeviceResult], when: When) -> float | None:
    """The metric over all test examples together; None if their number is unknown."""
    return weighted([(device, _value(device, when)) for device in devices])


def weighted(values: Sequence[tuple[DeviceResult, float]]) -> float | None:
    """The mean of values weighted by their devices' test examples; None if their number is unknown."""
    total = sum(device.num_test for device, _ in values)
    if not total:
        return None
    return sum(device.num_test * value for device, value in values) / total


def tested(pairs: Sequence[tuple[float, float]], metric: Metric) -> Tested:
    """The tests of one or more pairs of values, the first strategy's first."""
    from scipy import stats  # type: ignore[import-untyped]  # a quarter of a second

    gains = [round(metric.badness(other) - metric.badness(one), DECIMALS) for one, other in pairs]
    better, worse = sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains)
    moved = np.array([gain for gain in gains if gain])
    if len(moved) <= MAX_EXACT:
        wilcoxon_p = _exact_p(moved)
    else:
        ranks: Any = stats.wilcoxon(moved)
        wilcoxon_p = float(ranks.pvalue)
    return Tested(
        devices=len(pairs),
        mean=statistics.fmean(one - other for one, other in pairs),
        better=better,
        worse=worse,
        sign_p=float(stats.binomtest(better, len(moved)).pvalue) if len(moved) else 1.0,
        wilcoxon_p=wilcoxon_p,
    )


def _exact_p(moved: NDArray[np.float64]) -> float:
    """Wilcoxon's two-sided p of a few differences (m,), none of them 0; equal ones share a mean rank."""
    from scipy import stats

    ranks = stats.rankdata(np.abs(moved))
    sums = np.zeros(1)  # of the positive ranks, under each choice of signs
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    observed = ranks[moved > 0].sum()
    return min(1.0, 2 * float(min((sums <= observed).mean(), (sums >= observed).mean())))


def difference(
    one: StrategyResult, other: StrategyResult, when: When, metric: Metric
) -> Difference | None:
    """How ``one`` differs from ``other``; None if they evaluated no device in common."""
    others = {device.device: device for device in other.devices}
    pairs = [(found, others[found.device]) for found in one.devices if found.device in others]
    if not pairs:
        return None
    values = [(_value(a, when), _value(b, when)) for a, b in pairs]
    by_device = [a - b for a, b in values]
    ours, theirs = pooled([a for a, _ in pairs], when), pooled([b for _, b in pairs], when)
    count = len(pairs)
    return Difference(
        pooled=None if ours is None or theirs is None else ours - theirs,
        error=statistics.stdev(by_device) / math.sqrt(count) if count > 1 else None,
        tested=tested(values, metric),
    )


def against_first(
    strategies: Sequence[StrategyResult], metric: Metric
) -> Iterator[tuple[str, Difference, Difference]]:
    """The first strategy against each other strategy: its name, and the differences before and after."""
    for other in strategies[1:]:
        before = difference(strategies[0], other, "before", metric)
        after = difference(strategies[0], other, "after", metric)
        if before is not None and after is not None:
            yield other.name, before, after


def _value(device: DeviceResult, when: When) -> float:
    return device.before if when == "before" else device.after
