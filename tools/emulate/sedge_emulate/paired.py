"""Compares two strategies device by device: how much better the first one is, and with what certainty.

Devices differ far more from each other than strategies do. Therefore the difference is computed on each
device first, and the standard error is that of these differences.
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
# Differences are rounded to this many decimals. Equal means over seeds may differ in their last bit, and
# stored results were rounded to six decimals.
DECIMALS = 5
# Up to this many differences, all combinations of signs are tried: scipy's ``wilcoxon`` takes a hundred
# times as long for the same result.
MAX_EXACT = 13


class Tested(msgspec.Struct, frozen=True):
    """Paired tests of the first strategy's metric minus the other's, over several devices.

    The first strategy is better on ``better`` devices and worse on ``worse``. ``sign_p`` is the two-sided
    p-value of the sign test, ``wilcoxon_p`` that of Wilcoxon's signed-rank test; both ignore devices
    without a difference. A difference counts as zero if it rounds to 0 at ``DECIMALS``.
    """

    devices: int
    mean: float
    better: int
    worse: int
    sign_p: float
    wilcoxon_p: float


class Difference(msgspec.Struct, frozen=True):
    """The first strategy's metric minus the other's, on devices that both evaluated.

    ``pooled`` weights the devices by their numbers of test examples, and is None if these are unknown.
    ``tested`` counts each device once. ``error`` is the standard error of ``tested.mean``, or None for a
    single device.
    """

    pooled: float | None
    error: float | None
    tested: Tested


def pooled(devices: Sequence[DeviceResult], when: When) -> float | None:
    """Return the metric over all test examples together, or None if their number is unknown."""
    return weighted([(device, _value(device, when)) for device in devices])


def weighted(values: Sequence[tuple[DeviceResult, float]]) -> float | None:
    """Return the mean, weighted by the devices' numbers of test examples, or None if these are unknown."""
    total = sum(device.num_test for device, _ in values)
    if not total:
        return None
    return sum(device.num_test * value for device, value in values) / total


def tested(pairs: Sequence[tuple[float, float]], metric: Metric) -> Tested:
    """Test the differences in one or more pairs of values, each with the first strategy's value first."""
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
    """Return Wilcoxon's exact two-sided p-value for a few nonzero differences (m,).

    Equal differences share a mean rank.
    """
    from scipy import stats

    ranks = stats.rankdata(np.abs(moved))
    sums = np.zeros(1)  # the sum of the positive ranks for each combination of signs
    for rank in ranks:
        sums = np.concatenate([sums, sums + rank])
    observed = ranks[moved > 0].sum()
    return min(1.0, 2 * float(min((sums <= observed).mean(), (sums >= observed).mean())))


def difference(
    one: StrategyResult, other: StrategyResult, when: When, metric: Metric
) -> Difference | None:
    """Compare two strategies' metrics. Returns None if no device was evaluated under both."""
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
    """Yield each other strategy's name, and how the first differs from it before and after training."""
    for other in strategies[1:]:
        before = difference(strategies[0], other, "before", metric)
        after = difference(strategies[0], other, "after", metric)
        if before is not None and after is not None:
            yield other.name, before, after


def _value(device: DeviceResult, when: When) -> float:
    return device.before if when == "before" else device.after
