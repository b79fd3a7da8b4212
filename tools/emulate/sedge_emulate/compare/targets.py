"""The cost of reaching a target, up to the first training round in which the devices' mean reaches it.

Rounds are counted from 1. Bytes count both directions up to that round's close, including headers and first
rounds, and are a mean over the fleet's devices. Seconds are those of the emulation's clock.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

import msgspec

from sedge_emulate.compare.comparison import Figure, OneRun, Runs, a_run
from sedge_emulate.paired import When
from sedge_emulate.result import RoundResult
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.objective import Metric

MEANS: Mapping[When, Callable[[RoundResult], float]] = {
    "before": lambda r: r.before_mean,
    "after": lambda r: r.after_mean,
}


class Reached(msgspec.Struct, frozen=True):
    """Which ``seeds`` of a strategy reached the target, at what cost, and the ``best`` value in any round.

    ``rounds``, ``bytes`` and ``seconds`` are None if no seed reached it.
    """

    name: str
    when: When
    seeds: list[int]
    runs: int
    best: float
    rounds: Figure | None
    bytes: Figure | None
    seconds: Figure | None


def reached(runs: Runs, target: float) -> Iterator[Reached]:
    """Yield when and at what cost each strategy reached ``target``, first before and then after training.

    Raises ``ConfigError`` for a target that the metric cannot have.
    """
    metric = a_run(runs).result.metric
    if metric.share and not 0 <= target <= 1:
        raise ConfigError(
            "--target", target, f"a fraction from 0 to 1, because the metric is {metric.words}"
        )
    for when, mean in MEANS.items():
        for name, found in runs.items():
            yield _reached(name, when, found, target, metric, mean)


def _reached(
    name: str,
    when: When,
    runs: Mapping[int, OneRun],
    target: float,
    metric: Metric,
    mean: Callable[[RoundResult], float],
) -> Reached:
    costs: dict[int, tuple[float, float, float]] = {}
    best: list[float] = []
    for seed, run in runs.items():
        rounds = run.strategy.rounds
        sums = list(accumulate(r.bytes_up + r.bytes_down for r in rounds))
        good = [metric.badness(mean(r)) <= metric.badness(target) for r in rounds]
        best += sorted((mean(r) for r in rounds), key=metric.badness)[:1]
        if any(good):
            at = good.index(True)
            costs[seed] = rounds[at].round, sums[at] / run.result.devices, rounds[at].closed_s
    figures = [_figure([cost[place] for cost in costs.values()]) for place in range(3)]
    top = min(best, key=metric.badness, default=0.0)
    return Reached(name, when, sorted(costs), len(runs), top, *figures)


def _figure(values: list[float]) -> Figure | None:
    if not values:
        return None
    return Figure(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
