"""Every command on streams whose encodings lack some of the signs that are printed."""

import argparse
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.test_page_commands import MAINS
from tools.dist.parsers import parser_of
from tools.reproduce.__main__ import main as reproduce
from tools.reproduce.__main__ import parser as reproduce_parser

from sedge_export.command_line.arguments import commands_parser, export_parser

ENCODINGS = ("ascii", "cp1252", "latin-1")
OF_A_FLEET = ("sedge-cloud", "sedge-edge", "sedge-emulate")
Main = Callable[[list[str]], int]


def helps(parser: argparse.ArgumentParser, *words: str) -> Iterator[list[str]]:
    """The words that print the help of a command and of everything below it."""
    yield [*words, "--help"]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from helps(below, *words, name)


CASES: Sequence[tuple[Main, Sequence[list[str]]]] = [
    *((MAINS[name], [*helps(parser_of(name)), ["reference"]]) for name in OF_A_FLEET),
    (MAINS["sedge-conformance"], [*helps(parser_of("sedge-conformance")), ["pi-1"]]),
    (
        MAINS["sedge-export"],
        [*helps(export_parser()), *helps(commands_parser()), ["show", "nowhere-→"]],
    ),
    (reproduce, [*helps(reproduce_parser()), ["--list"]]),
]


@pytest.mark.parametrize(("main", "calls"), CASES)
def test_every_help_and_reference_can_be_printed(
    monkeypatch: pytest.MonkeyPatch, main: Main, calls: Sequence[list[str]]
) -> None:
    """What ASCII can say, every encoding can."""
    for words in calls:
        streams = [io.TextIOWrapper(io.BytesIO(), "ascii") for _ in range(2)]
        monkeypatch.setattr(sys, "stdout", streams[0])
        monkeypatch.setattr(sys, "stderr", streams[1])
        try:
            status = main(words)
        except SystemExit as exc:
            status = int(exc.code or 0)
        for stream in streams:
            stream.flush()
        assert status in (0, 2, 4) and any(stream.tell() for stream in streams), words


FLEET = """\
devices = 2
workers = 1
[data]
dataset = "digits"
examples = 100
[rounds]
num_rounds = 1
[trainer]
backend = "onnx"
[[strategies]]
name = "fedavg"
"""


@pytest.mark.fleet
def test_an_emulation_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lines of progress, which have arrows, and its tables."""
    fleet, out = tmp_path / "fleet.toml", str(tmp_path / "out")
    fleet.write_text(FLEET)
    calls = [("ascii", ["run", str(fleet), "--seeds", "1", "--out", out])]
    said = {}
    for encoding, words in [*calls, *((encoding, ["compare", out]) for encoding in ENCODINGS)]:
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        assert MAINS["sedge-emulate"](words) == 0
        stream.seek(0)
        said[words[0], encoding] = stream.read()
    assert " newcomers up " in said["run", "ascii"] and " kB down " in said["run", "ascii"]
    assert "mean +/- sample" in said["compare", "ascii"]
    assert "mean ± sample" in said["compare", "latin-1"]
