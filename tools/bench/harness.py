"""Runs a benchmark: a function that measures, and one that turns the result into figures.

``python -m tools.bench NAME`` runs the module of tools.bench whose function is decorated by ``bench``. The
function's parameters become the options. The function's result is printed as JSON on the last line and can
be kept in ``results``. The figures are printed and become rows in RESULTS.md; their targets determine the
exit status.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import median
from types import UnionType
from typing import Any, ParamSpec, TypeAlias, get_args, get_origin, get_type_hints

RESULTS = Path(__file__).parent / "results"
# The benchmarks in RESULTS.md, in order.
PAGE = (
    "demo", "compression", "adapters", "pretrained", "attacks", "privacy", "codec", "train_step",
    "agent_memory", "disk", "coordinator", "status_page", "seen", "outage", "flood", "three_hosts",
    "processes", "training", "gpu", "emulator", "frameworks",
)  # fmt: skip
# A benchmark's result, which can be encoded as JSON.
Result: TypeAlias = dict[str, Any]
# A target in words, and whether it is met.
Target: TypeAlias = tuple[str, bool]
P = ParamSpec("P")


@dataclass(frozen=True)
class Figure:
    """One line of a table, and its targets."""

    what: str
    measured: str
    met: tuple[Target, ...] = ()

    @property
    def judged(self) -> str:
        """The targets, each marked as met or missed."""
        return "; ".join(f"{target}: {'met' if met else '**missed**'}" for target, met in self.met)


class BadOption(Exception):
    """An option of a benchmark has an invalid value."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark, named after its module."""

    name: str
    title: str
    measure: Callable[..., Result]
    figures: Callable[[Result], Iterable[Figure]]

    def run(self, words: Sequence[str]) -> int:
        """Measure, then print the figures and a line of JSON.

        Returns 1 if a target is missed, else 0.
        """
        parser = options(self.name, self.measure)
        given = vars(parser.parse_args(words))
        try:
            found = self.measure(*given.pop(ARGUMENTS, ()), **given)
        except BadOption as exc:
            parser.error(str(exc))
        figures = list(self.figures(found))
        for figure in figures:
            print(f"{figure.what}: {figure.measured}", *filter(None, [figure.judged]), sep="; ")
        print(json.dumps(found), flush=True)
        return int(not all(met for figure in figures for _, met in figure.met))


BENCHMARKS: dict[str, Benchmark] = {}
ARGUMENTS = "NAME"


def bench(
    title: str, figures: Callable[[Result], Iterable[Figure]]
) -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Return a decorator that registers a function as its module's benchmark."""

    def register(measure: Callable[P, Result]) -> Callable[P, Result]:
        name = measure.__module__.removeprefix(f"{__package__}.")
        BENCHMARKS[name] = Benchmark(name, title, measure, figures)
        return measure

    return register


def benchmark(name: str) -> Benchmark | None:
    """Return the benchmark of this module, or None if the module has its own command line."""
    import_module(f"{__package__}.{name}")
    return BENCHMARKS.get(name)


def options(name: str, measure: Callable[..., Result]) -> argparse.ArgumentParser:
    """Return a parser for the function's parameters: ``*names`` become arguments, all others options."""
    parser = argparse.ArgumentParser(
        f"python -m tools.bench {name}",
        description=sys.modules[measure.__module__].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    hints = get_type_hints(measure)
    for parameter in inspect.signature(measure).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            parser.add_argument(ARGUMENTS, nargs="*", help="default: all")
            continue
        kind, several = hints[parameter.name], False
        if isinstance(kind, UnionType):  # T | None
            (kind,) = (each for each in get_args(kind) if each is not type(None))
        if get_origin(kind) is not None:  # for Sequence[T]
            (kind,), several = get_args(kind), True
        parser.add_argument(
            f"--{parameter.name.replace('_', '-')}", default=parameter.default, type=kind,
            nargs="+" if several else None, help="default: %(default)s",
        )  # fmt: skip
    return parser


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return the names, or all known names if none are given. Raises ``BadOption`` for an unknown name."""
    everything = list(known)
    for name in names:
        if name not in everything:
            raise BadOption(f"found {name!r}, expected one of {', '.join(everything)}")
    return list(names) or everything


def at_most(limit: float, value: float, unit: str = "") -> Target:
    """Return the target that ``value`` is at most ``limit``, and whether it is met."""
    return f"at most {limit:g}{unit and f' {unit}'}", value <= limit


def at_least(limit: float, value: float, unit: str = "") -> Target:
    """Return the target that ``value`` is at least ``limit``, and whether it is met."""
    return f"at least {limit:g}{unit and f' {unit}'}", value >= limit


def mid(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """Return the median of ``key`` over the rows. Raises ``ValueError`` if there are none."""
    return float(median(row[key] for row in rows))
