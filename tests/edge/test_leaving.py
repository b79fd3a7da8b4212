"""``sedge-edge leave``: what is deleted, with and without a coordinator that answers."""

import io
from pathlib import Path

import pytest
from tests.edge.home import make_home

from sedge_edge.__main__ import main
from sedge_protocol.host.loop import lock_folder


def test_the_state_and_the_secret_go_even_where_no_coordinator_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_home(tmp_path / "home")
    state = tmp_path / "home" / "state"
    (state / "blobs").mkdir(parents=True)
    (state / "blobs" / "model").write_bytes(b"x")
    (state / "journal").write_bytes(b"damaged")
    with lock_folder(state):
        assert main(["-c", str(config), "leave", "--yes"]) == 4
    assert "another process is using this state folder" in capsys.readouterr().err
    assert main(["-c", str(config), "leave", "--yes"]) == 1
    said = capsys.readouterr()
    assert said.out == "pi-1: state and secret deleted\n"
    assert "the coordinator was not notified: " in said.err
    assert said.err.endswith("\non the coordinator, run: sedge-cloud device revoke pi-1\n")
    assert sorted(path.name for path in (tmp_path / "home").rglob("*")) == [
        "edge.toml", "lock", "state", "train.npz",
    ]  # fmt: skip
    assert main(["-c", str(config), "leave"]) == 4  # again
    why = "this device has already left its fleet, or never had a secret"
    secret = tmp_path / "home" / "secret"
    assert capsys.readouterr().err == f"sedge-edge: {secret} does not exist: {why}\n"


class Terminal(io.StringIO):
    """A stdin at which somebody sits."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdin", "code", "stays"),
    [
        (io.StringIO("y\n"), 2, True),
        (None, 2, True),
        (Terminal("\n"), 1, True),
        (Terminal(""), 1, True),
        (Terminal("y\n"), 1, False),  # nobody answers at the coordinator
    ],
)
def test_it_asks_before_it_deletes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: io.StringIO | None,
    code: int,
    stays: bool,
) -> None:
    config = make_home(tmp_path)
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["-c", str(config), "leave"]) == code
    assert (tmp_path / "secret").exists() is stays
    refused = "expected a terminal to confirm on, or --yes: leaving is final\n"
    assert capsys.readouterr().err.endswith(refused) is (code == 2)
