"""A benchmark is a function that measures, with one that turns the result into figures.

A module of tools.bench with a function marked by ``bench`` is run by ``python -m tools.bench NAME``. The
function's parameters are the options. Its result is the last line of JSON, and is kept in ``results``; the
figures are printed and are the rows of RESULTS.md, and their targets determine the exit status.
"""

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Any, ParamSpec, TypeAlias, get_args, get_origin, get_type_hints

RESULTS = Path(__file__).parent / "results"
# The benchmarks of RESULTS.md, in order.
PAGE = (
    "demo", "compression", "adapters", "pretrained", "attacks", "privacy", "train_step", "agent_memory",
    "disk", "coordinator", "seen", "outage", "flood", "three_hosts", "processes", "training", "gpu",
    "emulator", "frameworks",
)  # fmt: skip
# A benchmark's result: names and numbers, as JSON has them.
Result: TypeAlias = dict[str, Any]
# A target in words, and whether it is met.
Target: TypeAlias = tuple[str, bool]
P = ParamSpec("P")


@dataclass(frozen=True)
class Figure:
    """One line of a table, and the targets."""

    what: str
    measured: str
    met: tuple[Target, ...] = ()

    @property
    def judged(self) -> str:
        """The targets, each with whether it is met."""
        return "; ".join(f"{target}: {'met' if met else '**missed**'}" for target, met in self.met)


class BadOption(Exception):
    """A value of an option that a benchmark refuses."""


@dataclass(frozen=True)
class Benchmark:
    """A benchmark; its name is that of its module."""

    name: str
    title: str
    measure: Callable[..., Result]
    figures: Callable[[Result], Iterable[Figure]]

    def run(self, words: Sequence[str]) -> int:
        """Measure, print the figures and a line of JSON. Returns 1 when a target is missed."""
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
    """Make a function the benchmark of its module."""

    def register(measure: Callable[P, Result]) -> Callable[P, Result]:
        name = measure.__module__.removeprefix(f"{__package__}.")
        BENCHMARKS[name] = Benchmark(name, title, measure, figures)
        return measure

    return register


def benchmark(name: str) -> Benchmark | None:
    """The benchmark of this module; None if it has its own command line."""
    import_module(f"{__package__}.{name}")
    return BENCHMARKS.get(name)


def options(name: str, measure: Callable[..., Result]) -> argparse.ArgumentParser:
    """A command line with the function's parameters: ``*names`` are arguments, the rest options."""
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
        if get_origin(kind) is not None:  # Sequence[T]
            (kind,), several = get_args(kind), True
        parser.add_argument(
            f"--{parameter.name.replace('_', '-')}", default=parameter.default, type=kind,
            nargs="+" if several else None, help="default: %(default)s",
        )  # fmt: skip
    return parser


def chosen(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names, or all known ones. Raises ``BadOption`` for an unknown one."""
    everything = list(known)
    for name in names:
        if name not in everything:
            raise BadOption(f"found {name!r}, expected one of {', '.join(everything)}")
    return list(names) or everything


def at_most(limit: float, value: float, unit: str = "") -> Target:
    """The target of a value that should stay small."""
    return f"at most {limit:g}{unit and f' {unit}'}", value <= limit


def at_least(limit: float, value: float, unit: str = "") -> Target:
    """The target of a value that should be large."""
    return f"at least {limit:g}{unit and f' {unit}'}", value >= limit
