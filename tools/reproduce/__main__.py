"""Reproduces tables of published papers with the whole engine, and prints their figures next to ours.

python -m tools.reproduce --list
python -m tools.reproduce fedobp-dir01     one entire table; finished runs are not repeated
python -m tools.reproduce --short          ten rounds of a few methods
"""

import argparse
import sys
from pathlib import Path

from tools.reproduce.cells import SHORT_ROUNDS

from sedge_emulate.__main__ import interruptible
from sedge_emulate.config import TrainerConfig


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns its exit status."""

    def call() -> int:
        arguments = parser().parse_args(argv)
        from tools.reproduce.command import reproduce  # command imports torch, which takes seconds

        return reproduce(arguments)

    return interruptible("reproduce", call)


def parser() -> argparse.ArgumentParser:
    """Return the command's argument parser."""
    found = argparse.ArgumentParser(
        "python -m tools.reproduce", description="Reproduce published experiments."
    )
    found.add_argument("tables", nargs="*", metavar="TABLE", help="tables; --list names them")
    found.add_argument("--list", action="store_true", help="name all tables and their methods")
    found.add_argument(
        "--short", action="store_true", help=f"{SHORT_ROUNDS} rounds of a few methods: ten minutes"
    )
    found.add_argument("--all", action="store_true", help="every table in its long form: hours")
    found.add_argument("--only", action="append", help="only this method of the tables")
    found.add_argument("--seed", type=int, action="append", help="instead of the table's seeds")
    found.add_argument("--rounds", type=int, help="instead of the table's")
    found.add_argument(
        "--backend",
        default=TrainerConfig().backend,
        help="the trainer; one other than the rule's choice shows the effect of float rounding",
    )
    found.add_argument("--workers", type=int, default=0, help="processes that train; 0: all cores")
    found.add_argument(
        "--results",
        type=Path,
        default=Path("runs/reproduce/results"),
        help="where outcomes are kept",
    )
    found.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="for the report")
    return found


if __name__ == "__main__":
    sys.exit(main())
