"""Every command of Sedge that a page shows is one that its program understands."""

import argparse
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/*.md", "protocol/**/*.md", "tools/bench/*.md")
# A page of the past names what was, and is no page to type from.
PAST = {"CHANGELOG.md"}


class Understood(Exception):
    """Raised in place of running a command whose words were parsed."""


def mains() -> dict[str, Callable[[list[str]], int]]:
    """What each command of the wheel calls, by the command's name."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return {
        name: import_module(f"{name.replace('-', '_')}.__main__").main for name in sorted(scripts)
    }


MAINS = mains()


def blocks(page: str) -> Iterator[str]:
    """Each command of the page's shell blocks that runs a program of Sedge, from its name on."""
    for block in re.findall(r"^ *```(?:sh|console)$(.*?)^ *```$", page, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield from commands(line.removeprefix("$ "))


def commands(line: str) -> Iterator[str]:
    """The commands of a line of shell, without what precedes the program's name."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= set("();<>|&"):
            words.append(word)
            continue
        while words and (words[0] in ("sudo", "env") or "=" in words[0]):
            del words[0]
        if words and Path(words[0]).name in MAINS:
            yield shlex.join([Path(words[0]).name, *words[1:]])
        words = []


def inline(page: str) -> Iterator[str]:
    """Each command in backquotes, which may lack arguments, up to its first option or placeholder."""
    text = re.sub(r"^ *```.*?^ *```$", "", page, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`(sedge-[a-z]+ [^`]+)`", text):
        words = re.split(r" -| [(\[]|,| [A-Z]{2}", code.replace("…", ""))[0].split()
        if words[0] in MAINS:
            yield shlex.join(words)


def pages() -> dict[str, str]:
    found = {path for pattern in PAGES for path in ROOT.glob(pattern) if path.name not in PAST}
    return {str(path.relative_to(ROOT)): path.read_text() for path in sorted(found)}


def cases(of: Callable[[str], Iterator[str]]) -> list[tuple[str, str]]:
    found = [(page, command) for page, text in pages().items() for command in of(text)]
    assert len(found) > 30
    return list(dict.fromkeys(found))


@pytest.mark.parametrize(("page", "command"), cases(blocks))
def test_a_command_is_understood(
    page: str, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parse = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *words: list[str]) -> None:
        parse(parser, *words)
        raise Understood

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", stop)
    program, *words = shlex.split(command)
    with pytest.raises((Understood, SystemExit)) as raised:
        MAINS[program](words)
    asked = {"--help", "--version"} & {*words}
    assert raised.type is Understood or asked, f"{page}: {command}: {capsys.readouterr().err}"


@pytest.mark.parametrize(("page", "command"), cases(inline))
def test_a_command_in_a_sentence_exists(
    page: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = shlex.split(command)
    with pytest.raises(SystemExit) as raised:
        MAINS[program]([*words, "--help"])
    assert raised.value.code == 0, f"{page}: {command}: {capsys.readouterr().err}"


def test_a_wrong_command_is_not_understood(capsys: pytest.CaptureFixture[str]) -> None:
    page = "```sh\nsudo sedge-edge fly --high   # as a bird\n```\n"
    assert [*blocks(page)] == ["sedge-edge fly --high"]
    with pytest.raises(SystemExit) as raised:
        MAINS["sedge-edge"](["fly", "--help"])
    assert raised.value.code == 2 and "fly" in capsys.readouterr().err
