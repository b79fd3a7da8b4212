"""Compares the runs in several folders: each strategy's figures over its seeds, and paired differences.

    a run's figure    comes from its final evaluation, over the devices measured at a moment; bytes are per
                      device and round
    spread            the sample standard deviation over the runs (n - 1); None for a single run
    difference        the first strategy's figure minus another's for the same seed, so that a seed's effect
                      on both cancels out
    paired tests      compare devices under all common seeds; a device counts once, with its mean over the
                      seeds, if every device has the same numbers of examples and classes under all of them

Only runs that differ in nothing but the seed are compared. Strategies are matched by their label, so runs
of one strategy each can be compared with each other.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from sedge_emulate.compare.moments import MOMENTS, Moment, measured_at
from sedge_emulate.headline import rates_of
from sedge_emulate.paired import Tested, tested, weighted
from sedge_emulate.result import DeviceResult, Result, StrategyResult, read_json, spread
from sedge_emulate.settings import conditions, conditions_of
from sedge_protocol.errors import DataError
from sedge_protocol.wire.objective import Metric

# A run's figures, keyed by name.
_Figures: TypeAlias = dict[str, float]
# Figures that do not belong to a moment (``moments.py``), keyed by name.
_OTHERS: Mapping[str, Callable[[StrategyResult], float | None]] = {
    "central_before": lambda s: s.central.before.mean if s.central else None,
    "central_after": lambda s: s.central.after.mean if s.central else None,
    "global_model": lambda s: s.central.global_model if s.central else None,
    "bytes_up": lambda s: rates_of(s.rounds).device.up or None,
    "bytes_down": lambda s: rates_of(s.rounds).device.down or None,
    "first_bytes_up": lambda s: rates_of(s.rounds).newcomer.up or None,
    "first_bytes_down": lambda s: rates_of(s.rounds).newcomer.down or None,
    "epochs": lambda s: s.epochs or None,
}


class Figure(msgspec.Struct, frozen=True):
    """The mean over runs and the sample standard deviation, which is None for a single run."""

    mean: float
    std: float | None


class Row(msgspec.Struct, frozen=True):
    """The figures of one strategy. A figure that is missing in any of its runs is left out.

    A row of differences also has ``tests``, the paired tests for each moment.
    """

    name: str
    seeds: list[int]
    figures: dict[str, Figure]
    tests: dict[Moment, Tested] = {}


class Comparison(msgspec.Struct, frozen=True):
    """All strategies in runs that differ only in their seeds.

    ``differences`` are the first strategy's figures minus those of each other strategy, over common seeds.
    """

    dataset: str
    split: str
    devices: int
    metric: Metric
    strategies: list[Row]
    differences: list[Row] = []


class OneRun(NamedTuple):
    """One strategy's run under one seed, and the path of its result file."""

    path: Path
    result: Result
    strategy: StrategyResult


# Runs, keyed by strategy name, then by seed.
Runs: TypeAlias = dict[str, dict[int, OneRun]]


def compared(folders: Sequence[Path]) -> Comparison:
    """Compare the runs in these folders. Raises the same errors as ``runs_in``."""
    return comparison(runs_in(folders))


def runs_in(folders: Sequence[Path]) -> Runs:
    """Collect the runs in these folders or in their subfolders ``seed-*``.

    Raises ``DataError`` if runs differ in more than their seeds, if a seed occurs twice, or if a folder has
    no runs, and ``StorageError`` if a file is not a result.
    """
    paths = [path for folder in folders for path in _results(folder)]
    results = [read_json(path) for path in paths]
    runs: Runs = {}
    for path, result in zip(paths, results, strict=True):
        if not result.settings:
            raise DataError(
                f"{path}: no settings, expected a result from this version: run it again"
            )
        _require_same(conditions(results[0]), conditions(result), paths[0], path)
        for strategy in result.strategies:
            seeds = runs.setdefault(strategy.name, {})
            if result.seed in seeds:
                raise DataError(
                    f"{strategy.name}: seed {result.seed} in {seeds[result.seed].path} and in {path}, "
                    "expected each seed once"
                )
            for other in seeds.values():
                old = conditions_of(other.result, strategy.name)
                _require_same(old, conditions_of(result, strategy.name), other.path, path)
            seeds[result.seed] = OneRun(path, result, strategy)
    return runs


def comparison(runs: Runs) -> Comparison:
    """Compare the runs of each strategy, and the first strategy with the others."""
    figures = {
        name: {seed: _figures(run) for seed, run in found.items()} for name, found in runs.items()
    }
    first = a_run(runs).result
    rows = [_row(name, found) for name, found in figures.items()]
    about = first.dataset, first.split, first.devices, first.metric
    return Comparison(*about, rows, list(_differences(runs, figures)))


def a_run(runs: Runs) -> OneRun:
    """Return the first run of the first strategy."""
    return next(iter(next(iter(runs.values())).values()))


def _results(folder: Path) -> list[Path]:
    one, several = folder / "result.json", sorted(folder.glob("seed-*/result.json"))
    if one.exists() == bool(several):
        found = "both a result.json and some in seed-*" if several else "no result.json"
        raise DataError(f"{folder}: {found}, expected either one here or some in seed-*")
    return several or [one]


def _require_same(
    old: Mapping[str, Any], new: Mapping[str, Any], old_path: Path, new_path: Path
) -> None:
    """Raise ``DataError`` with the first differing condition if the conditions of two results differ."""
    differing = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if differing:
        key = differing[0]
        more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
        raise DataError(
            f"{key}{more}: {old.get(key)!r} in {old_path}, {new.get(key)!r} in {new_path}, "
            "expected runs that differ only in the seed"
        )


def _figures(run: OneRun) -> _Figures:
    """Return the run's figures by name. Figures that the run lacks are left out."""
    found = {key: of(run.strategy) for key, of in _OTHERS.items()}
    for moment, devices in measured_at(run.result, run.strategy).items():
        values = [value for _, value in devices]
        over = spread(values, run.result.metric)
        found[f"{moment}_pooled"] = weighted(devices)
        found[moment] = over.mean
        found[f"{moment}_worst_tenth"] = over.worst_tenth
        found[f"{moment}_spread"] = statistics.stdev(values) if len(values) > 1 else None
    return {key: value for key, value in found.items() if value is not None}


def _differences(runs: Runs, figures: Mapping[str, Mapping[int, _Figures]]) -> Iterator[Row]:
    """Yield the differences between the first strategy and each other strategy with common seeds."""
    first, *others = runs
    for other in others:
        seeds = sorted(runs[first].keys() & runs[other].keys())
        if seeds:
            by_seed = {seed: _minus(figures[first][seed], figures[other][seed]) for seed in seeds}
            tests = _tests([(runs[first][seed], runs[other][seed]) for seed in seeds])
            yield _row(f"{first} - {other}", by_seed, tests)


def _minus(one: _Figures, other: _Figures) -> _Figures:
    keys = [key for moment in MOMENTS for key in (f"{moment}_pooled", moment)]
    return {key: one[key] - other[key] for key in keys if key in one and key in other}


def _tests(pairs: Sequence[tuple[OneRun, OneRun]]) -> dict[Moment, Tested]:
    """Return the paired tests for each moment, over the devices that both runs of a seed evaluated."""
    found: dict[Moment, dict[object, list[tuple[float, float]]]] = {}
    lasting = _are_the_same([one.strategy.devices for one, _ in pairs])
    for one, other in pairs:
        theirs = measured_at(other.result, other.strategy)
        for moment, devices in measured_at(one.result, one.strategy).items():
            known = {device.device: value for device, value in theirs.get(moment, ())}
            for device, value in devices:
                if device.device in known:
                    key = device.device if lasting else (one.result.seed, device.device)
                    values = found.setdefault(moment, {}).setdefault(key, [])
                    values.append((value, known[device.device]))
    metric = pairs[0][0].result.metric
    return {
        moment: tested([_mean_pair(values) for values in by_device.values()], metric)
        for moment, by_device in found.items()
    }


def _mean_pair(values: Sequence[tuple[float, float]]) -> tuple[float, float]:
    return statistics.fmean(one for one, _ in values), statistics.fmean(
        other for _, other in values
    )


def _are_the_same(fleets: Sequence[Sequence[DeviceResult]]) -> bool:
    """Return True if the devices have the same numbers of examples and classes in all these fleets."""
    known = [
        {(d.device, d.num_train, d.num_test, d.num_classes) for d in fleet} for fleet in fleets
    ]
    return all(fleet == known[0] for fleet in known)


def _row(
    name: str, runs: Mapping[int, _Figures], tests: Mapping[Moment, Tested] | None = None
) -> Row:
    figures: dict[str, Figure] = {}
    for key in dict.fromkeys(key for found in runs.values() for key in found):
        values = [found[key] for found in runs.values() if key in found]
        if len(values) == len(runs):
            std = statistics.stdev(values) if len(values) > 1 else None
            figures[key] = Figure(statistics.fmean(values), std)
    return Row(name, sorted(runs), figures, dict(tests or {}))
