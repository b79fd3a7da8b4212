"""What all commands have in common: configuration, suggestions, help, exit statuses, completion, Ctrl-C."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.test_page_commands import MAINS
from tools.dist.parsers import parser_of

from sedge_cloud.__main__ import main as cloud
from sedge_edge.__main__ import main as edge
from sedge_export.command_line.arguments import commands_parser, export_parser
from sedge_protocol import VERSION
from sedge_protocol.errors import (
    CodecError,
    ConfigError,
    DataError,
    ExportError,
    LinkError,
    SedgeError,
    StorageError,
    StrategyError,
)
from sedge_protocol.host.command_line import Parser, exit_status, seconds

PARSERS = [
    *(parser_of(name) for name in MAINS if name != "sedge-export"),
    export_parser(),
    commands_parser(),
]


def below(parser: argparse.ArgumentParser) -> Iterator[Parser]:
    assert isinstance(parser, Parser)
    yield parser
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for child in action.choices.values():
                yield from below(child)


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.prog)
def test_every_example_of_a_help_is_a_command(parser: argparse.ArgumentParser) -> None:
    examples = [example for one in below(parser) for example in one.examples]
    assert examples
    for example in examples:
        words = [word for word in shlex.split(example) if "SEDGE_CONFIG=" not in word]
        if parser.prog == "sedge-export":
            parser = export_parser() if ":" in words[1] else commands_parser()
        assert words[0] == parser.prog
        parser.parse_args(words[1:])
        assert f"  {example}\n" in "".join(one.format_help() for one in below(parser))


@pytest.mark.parametrize("name", MAINS)
def test_every_command_says_its_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        MAINS[name](["--version"])
    assert stopped.value.code == 0 and capsys.readouterr().out == f"{name} {VERSION}\n"


@pytest.mark.parametrize(
    ("name", "words", "near"),
    [
        ("sedge-cloud", "rnu list", "'run'"),
        ("sedge-cloud", "device lits", "'list'"),
        ("sedge-cloud", "run list --jsno", "'--json'"),
        ("sedge-cloud", "reference fedvag", "'fedavg'"),
        ("sedge-edge", "statsu", "'status'"),
        ("sedge-export", "shwo model", "'show'"),
        ("sedge-emulate", "compar runs", "'compare'"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_nearest(
    name: str, words: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        MAINS[name](words.split())
    assert stopped.value.code == 2 and f"(did you mean {near}?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "-c {file} run list",
        "run -c {file} list",
        "run list -c {file}",
        "run list --config {folder}",
        "run list",
    ],
)
def test_the_configuration_is_named_anywhere_or_by_the_environment(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    assert cloud(["init", str(folder), "--fleet", "lab"]) == 0
    if words == "run list":
        monkeypatch.setenv("SEDGE_CONFIG", str(folder))
    else:
        monkeypatch.setenv("SEDGE_CONFIG", "/not/this/one")
    monkeypatch.chdir(folder)  # state_dir of a trial is relative
    capsys.readouterr()
    assert cloud(words.format(file=folder / "cloud.toml", folder=folder).split()) == 0
    assert capsys.readouterr().out.startswith("run ")


def test_a_missing_default_says_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SEDGE_CONFIG", raising=False)
    assert edge(["status"]) == 2
    assert capsys.readouterr().err == (
        "sedge-edge: edge.toml: neither here nor in /etc/sedge, expected one of the two, "
        "or -c FILE, or SEDGE_CONFIG set to a file\n"
    )
    assert cloud(["reference", "cloud.toml"]) == 0  # which reads none


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ConfigError("key", 1, "2"), 2),
        (DataError("rows"), 3),
        (ExportError("an\noperator"), 3),
        (StorageError("disk"), 4),
        (LinkError("broker"), 5),
        (StrategyError("strategy"), 6),
        (CodecError("bytes"), 6),
        (KeyboardInterrupt(), 130),
    ],
)
def test_the_exit_status_tells_kinds_of_errors_apart(
    error: SedgeError | KeyboardInterrupt, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> int:
        raise error

    assert exit_status("sedge-edge", fail) == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sedge-edge: ")


INTERRUPTED = """
import os, signal, sys, sedge_start
class AtImport:
    def find_spec(self, name, path, target=None):
        if name == "sedge_protocol.host.loop":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, AtImport())
sys.exit(sedge_start.edge())
"""


def test_ctrl_c_while_importing_is_one_line() -> None:
    words = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ)
    assert (done.returncode, done.stderr) == (130, "sedge-edge: interrupted\n")


def test_a_duration_is_finite_and_not_negative() -> None:
    assert [seconds(text) for text in ("0", "1.5")] == [0.0, 1.5]
    for text in ("-1", "inf", "nan", "soon"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"found '{text}', expected a finite"):
            seconds(text)
