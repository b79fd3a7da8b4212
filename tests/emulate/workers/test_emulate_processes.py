"""Processes that compute: forks of one server, which has torch, and leaves this process without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sedge_emulate.workers.processes import ENVIRONMENT, in_process
from sedge_protocol.errors import LinkError


def loaded() -> tuple[int, bool, dict[str, str | None]]:
    """The parent of this process, whether it began with torch, and what it has of the environment."""
    environment = {name: os.environ.get(name) for name in ENVIRONMENT}
    return os.getppid(), "torch" in sys.modules, environment


def end() -> None:
    os._exit(1)


def refuse(text: str) -> None:
    raise LinkError(text)


@pytest.mark.skipif(sys.platform != "linux", reason="forks are made on Linux alone")
def test_a_process_is_a_fork_that_has_torch_and_one_thread() -> None:
    before = dict(os.environ)
    first, second = in_process(loaded), in_process(loaded)
    assert first == second == (first[0], True, ENVIRONMENT)
    assert first[0] != os.getpid()
    assert dict(os.environ) == before


def test_what_a_process_raises_is_raised_here() -> None:
    with pytest.raises(LinkError, match="no broker"):
        in_process(refuse, "no broker")


def test_a_process_that_dies_is_a_clear_error() -> None:
    with pytest.raises(LinkError, match="a process has died"):
        in_process(end)


def test_a_long_name_of_the_temporary_folder(tmp_path: Path) -> None:
    """Too long for the server's socket: each process is a fresh interpreter."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    call = "from sedge_emulate.workers.processes import in_process; print(in_process(pow, 2, 5))"
    command, environment = [sys.executable, "-c", call], {**os.environ, "TMPDIR": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("32\n", "")
