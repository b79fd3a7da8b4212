"""Command-line code that all commands share: argument parsing, finding the configuration, exit statuses."""

import argparse
import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, cast

from sedge_protocol import VERSION
from sedge_protocol.errors import SedgeError
from sedge_protocol.host import completion
from sedge_protocol.host.console import printing
from sedge_protocol.host.posix import require_posix
from sedge_protocol.host.toml import default_path

CONFIG_VARIABLE = "SEDGE_CONFIG"
INTERRUPTED = 130
# Matches argparse's message, whose choices have had no quotation marks since Python 3.12.
_CHOICE = re.compile(r"invalid choice: '(?P<word>.*?)' \(choose from (?P<known>.*)\)$", re.DOTALL)
_VALUE = re.compile(r"invalid (?P<kind>int|float) value: (?P<value>.*)$", re.DOTALL)
_OPTION = re.compile(r"--[a-z][\w-]*")


class Parser(argparse.ArgumentParser):
    """The parser of a command or subcommand.

    ``config`` is the name of the configuration file that ``-c`` overrides, empty for a command that reads
    none. Subcommands inherit it unless they set their own. ``examples`` appear at the end of the help.
    """

    def __init__(self, *, config: str = "", examples: Sequence[str] = (), **others: Any) -> None:
        super().__init__(**others)
        self.config, self.examples = config, examples
        self.alternative: Parser | None = None  # another parser whose words to complete as well
        # The innermost parser's default wins, so a command can do without a configuration.
        self.set_defaults(config_name=config)
        if config:
            help_text = (
                f"the configuration file or its folder (default: ${CONFIG_VARIABLE}, or else {config} in "
                f"this folder or /etc/sedge)"
            )
            self.add_argument(
                "-c", "--config", type=Path, default=argparse.SUPPRESS, help=help_text
            )

    def add_commands(self) -> "Commands":
        """Return the object to which subcommands are added. The user must give one of them."""
        inherits = cast(type[Parser], partial(Parser, config=self.config))
        return self.add_subparsers(required=True, metavar="COMMAND", parser_class=inherits)

    def format_help(self) -> str:
        """Return the help text, with the examples printed exactly as they were given."""
        examples = "".join(f"  {example}\n" for example in self.examples)
        return super().format_help() + (examples and f"\nexamples:\n{examples}")

    def parse_known_args(self, *args: Any, **named: Any) -> Any:
        """Parse like argparse, except that a subcommand rejects an unknown option with its own usage."""
        found, unknown = super().parse_known_args(*args, **named)
        if unknown:
            options = _OPTION.findall(self.format_help())
            self.error(
                f"unrecognized arguments: {' '.join(unknown)}{_nearest(unknown[0], options)}"
            )
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with a message that suggests the nearest known word instead of listing all of them."""
        if match := _CHOICE.search(message):
            near = _nearest(match["word"], [word.strip("'") for word in match["known"].split(", ")])
            message = message[: match.start()] + (
                f"invalid choice: {match['word']!r}{near}" if near else match[0]
            )
        if match := _VALUE.search(message):
            kind = "a whole number" if match["kind"] == "int" else "a number"
            message = f"{message[: match.start()]}found {match['value']}, expected {kind}"
        super().error(message)

    def words(self) -> Mapping[tuple[str, ...], Sequence[str]]:
        """Return the words that may follow each chain of commands: commands, choices and options."""
        table: dict[tuple[str, ...], Sequence[str]] = {}
        own: list[str] = []
        for action in self._actions:
            own += action.option_strings
            if not action.option_strings and action.choices is not None:
                own += map(str, action.choices)
            if isinstance(action, argparse._SubParsersAction):
                for name, below in action.choices.items():
                    table |= {(name, *path): words for path, words in below.words().items()}
        others = {} if self.alternative is None else self.alternative.words()
        return {**others, **table, (): [*own, *others.get((), ())]}


# The type of the object to which subcommands are added; argparse has no public name for it.
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"


def command(name: str, description: str, config: str = "", examples: Sequence[str] = ()) -> Parser:
    """Create the parser of a top-level command, with the options that every command has."""
    parser = Parser(prog=name, description=description, config=config, examples=examples)
    parser.add_argument("--version", action="version", version=f"{name} {VERSION}")
    help_text = "print the completion script for this shell (docs/commands.md)"
    parser.add_argument(
        "--completion", choices=completion.SHELLS, action=_Completion, help=help_text
    )
    return parser


class _Completion(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        print(completion.script(values, parser.prog, parser.words()), end="")
        parser.exit()


def parsed(
    parser: Parser, argv: Sequence[str] | None, *, needs_posix: bool = False
) -> argparse.Namespace:
    """Parse the command line. For a command that reads a configuration, ``config`` becomes its path.

    Raises ``ConfigError`` if no configuration is given and none exists in the usual places. If the program
    ``needs_posix``, raises ``SedgeError`` on Windows, but only after ``--help`` has been handled.
    """
    arguments = parser.parse_args(argv)
    if needs_posix:
        require_posix()
    name: str = arguments.config_name
    if name:
        given = getattr(arguments, "config", None) or os.environ.get(CONFIG_VARIABLE)
        path = Path(given) if given else default_path(name)
        arguments.config = path / name if os.path.isdir(path) else path
    return arguments


def exit_status(name: str, call: Callable[[], int]) -> int:
    """Return the result of ``call``.

    If it raises, print the error as one line and return its exit status.
    """
    try:
        with printing():
            return call()
    except SedgeError as exc:
        print(f"{name}:", *str(exc).split(), file=sys.stderr)
        return exc.exit_status
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return INTERRUPTED


def _nearest(word: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(word.partition("=")[0], known, n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def seconds(text: str) -> float:
    """Parse a duration for argparse: a finite number of seconds, at least 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(
            f"found {text!r}, expected a finite number of seconds, from 0"
        )
    return number
