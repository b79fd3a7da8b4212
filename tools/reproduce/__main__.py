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
    found.add_argument(
        "tables", nargs="*", metavar="TABLE", help="tables to reproduce (see --list)"
    )
    found.add_argument("--list", action="store_true", help="list all tables and their methods")
    found.add_argument(
        "--short",
        action="store_true",
        help=f"run {SHORT_ROUNDS} rounds of a few methods (ten minutes)",
    )
    found.add_argument(
        "--all", action="store_true", help="run every table in its long form (hours)"
    )
    found.add_argument("--only", action="append", help="run only this method of the tables")
    found.add_argument("--seed", type=int, action="append", help="override the table's seeds")
    found.add_argument("--rounds", type=int, help="override the table's rounds")
    found.add_argument(
        "--backend",
        default=TrainerConfig().backend,
        help="trainer; any other than the rule's choice shows the effect of float rounding",
    )
    found.add_argument(
        "--workers", type=int, default=0, help="training processes; 0 uses all cores"
    )
    found.add_argument(
        "--results",
        type=Path,
        default=Path("runs/reproduce/results"),
        help="folder that keeps the outcomes",
    )
    found.add_argument(
        "--out", type=Path, default=Path("runs/reproduce"), help="folder for the report"
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
