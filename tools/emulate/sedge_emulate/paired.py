"""Two strategies on the same devices: how much better the first is, device by device.

Devices differ far more from each other than strategies do. So the difference is taken on each device
first, and its standard error is that of these differences.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec

from sedge_emulate.result import DeviceResult, StrategyResult
from sedge_protocol.wire.objective import Metric

When: TypeAlias = Literal["before", "after"]


class Difference(msgspec.Struct, frozen=True):
    """The first strategy's metric minus the other's, on ``devices`` that both evaluated.

    ``pooled`` weighs the devices by their test examples (None where their number is unknown), ``mean``
    counts each once; ``error`` is the standard error of the mean, None for a single device. The first
    strategy is better on ``better`` devices and worse on ``worse``.
    """

    pooled: float | None
    mean: float
    error: float | None
    devices: int
    better: int
    worse: int


def pooled(devices: Sequence[DeviceResult], when: When) -> float | None:
    """The metric over all test examples together; None where their number is unknown."""
    total = sum(device.num_test for device in devices)
    if not total:
        return None
    return sum(device.num_test * _value(device, when) for device in devices) / total


def difference(
    one: StrategyResult, other: StrategyResult, when: When, metric: Metric
) -> Difference | None:
    """How ``one`` differs from ``other``; None where they evaluated no device in common."""
    others = {device.device: device for device in other.devices}
    pairs = [(found, others[found.device]) for found in one.devices if found.device in others]
    if not pairs:
        return None
    by_device = [_value(a, when) - _value(b, when) for a, b in pairs]
    gains = [metric.badness(_value(b, when)) - metric.badness(_value(a, when)) for a, b in pairs]
    ours, theirs = pooled([a for a, _ in pairs], when), pooled([b for _, b in pairs], when)
    count = len(pairs)
    return Difference(
        pooled=None if ours is None or theirs is None else ours - theirs,
        mean=statistics.fmean(by_device),
        error=statistics.stdev(by_device) / math.sqrt(count) if count > 1 else None,
        devices=count,
        better=sum(gain > 0 for gain in gains),
        worse=sum(gain < 0 for gain in gains),
    )


def against_first(
    strategies: Sequence[StrategyResult], metric: Metric
) -> Iterator[tuple[str, Difference, Difference]]:
    """The first strategy against each other one: that one's name, the differences before and after."""
    for other in strategies[1:]:
        before = difference(strategies[0], other, "before", metric)
        after = difference(strategies[0], other, "after", metric)
        if before is not None and after is not None:
            yield other.name, before, after


def _value(device: DeviceResult, when: When) -> float:
    return device.before if when == "before" else device.after
