"""Finds the argument parser of each command."""

import argparse
import tomllib
from importlib import import_module
from pathlib import Path
from typing import NoReturn
from unittest.mock import patch

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
COMMANDS: tuple[str, ...] = tuple(PROJECT["scripts"])


class _Asked(Exception):
    """Carries the parser whose help was requested."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def _carry(parser: argparse.ArgumentParser, _file: object = None) -> NoReturn:
    raise _Asked(parser)


def parser_of(command: str) -> argparse.ArgumentParser:
    """Return a command's argument parser, captured when the command is about to print its help.

    Raises ``KeyError`` for a command that does not exist.
    """
    if command not in COMMANDS:
        raise KeyError(command)
    main = import_module(f"{command.replace('-', '_')}.__main__").main
    with patch.object(argparse.ArgumentParser, "print_help", _carry):
        try:
            main(["--help"])
        except _Asked as asked:
            return asked.parser
    raise ValueError(f"{command} --help printed no help")
