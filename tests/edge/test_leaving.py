"""``sedge-edge leave``: what is deleted, with and without a coordinator that answers."""

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
        assert main(["-c", str(config), "leave"]) == 2
    assert "another process is using this state folder" in capsys.readouterr().err
    assert main(["-c", str(config), "leave"]) == 1
    said = capsys.readouterr()
    assert said.out == "pi-1 has left home: its state and its secret are deleted\n"
    assert "the coordinator has not heard of it: " in said.err
    assert "sedge-cloud device revoke pi-1" in said.err
    assert sorted(path.name for path in (tmp_path / "home").rglob("*")) == [
        "edge.toml", "lock", "state", "train.npz",
    ]  # fmt: skip
