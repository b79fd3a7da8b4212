"""`make dist`: what needs no other package of it: a program's parser, from which its man page is made."""

import pytest
from tools.dist.parsers import COMMANDS, parser_of


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_gives_its_parser(command: str) -> None:
    parser = parser_of(command)
    assert parser.prog == command and (parser.description or "").endswith(".")


def test_a_command_that_is_none() -> None:
    with pytest.raises(KeyError, match="sedge-fly"):
        parser_of("sedge-fly")
