"""The arguments of ``sedge-emulate reproduce``, known without the code that plays it."""

import argparse
from pathlib import Path

from sedge_emulate.config import TrainerConfig
from sedge_emulate.reproduce.cells import SHORT_ROUNDS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own arguments."""
    parser.add_argument("tables", nargs="*", metavar="TABLE", help="tables; --list names them")
    parser.add_argument("--list", action="store_true", help="name all tables and their methods")
    parser.add_argument(
        "--short", action="store_true", help=f"{SHORT_ROUNDS} rounds of a few methods: ten minutes"
    )
    parser.add_argument("--all", action="store_true", help="every table in its long form: hours")
    parser.add_argument("--only", action="append", help="only this method of the tables")
    parser.add_argument("--seed", type=int, action="append", help="instead of the table's seeds")
    parser.add_argument("--rounds", type=int, help="instead of the table's")
    parser.add_argument(
        "--backend",
        default=TrainerConfig().backend,
        help="what trains, instead of the fastest: another one shows what float rounding is worth",
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that train; 0: all cores")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("runs/reproduce/results"),
        help="where outcomes are kept",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), help="for the report")
