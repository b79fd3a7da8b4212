"""The command ``sedge-emulate compare``: prints tables, JSON or LaTeX, or writes an HTML page."""

import argparse

import msgspec
from rich.console import Console

from sedge_emulate.compare.comparison import Comparison, comparison, runs_in
from sedge_emulate.compare.grids import grids, latex, print_grids
from sedge_emulate.compare.page import page
from sedge_emulate.compare.targets import Reached, reached
from sedge_emulate.result import write_whole
from sedge_protocol.host.console import json_text


class WithTarget(Comparison, frozen=True):
    """A comparison, plus the cost of reaching ``target`` if one was given."""

    target: float | None = None
    reached: tuple[Reached, ...] = ()


def compare(arguments: argparse.Namespace) -> int:
    """Run the command. Returns its exit status."""
    runs = runs_in(arguments.folders)
    found, target = comparison(runs), arguments.target
    targets = () if target is None else tuple(reached(runs, target))
    made = grids(found, targets, target or 0.0)
    if arguments.json:
        whole = WithTarget(**msgspec.structs.asdict(found), target=target, reached=targets)
        print(json_text(whole, indent=1))
    elif arguments.latex:
        print(latex(found, made), end="")
    elif arguments.html:
        write_whole(page(runs, found, made).encode(), arguments.html)
        print(f"report: {arguments.html}")
    else:
        print_grids(found, made, Console())
    return 0
