"""What a device gives up of its runs: by hand, by itself, never its newest model nor what it works for."""

from pathlib import Path

import msgspec
import pytest
from tests.cloud.killed import kills
from tests.edge.harness import Harness
from tests.edge.home import make_home, put_models

from sedge_edge.__main__ import main
from sedge_edge.jobs.job import Kept
from sedge_edge.prediction import personal_model
from sedge_edge.rounds.retention import KeepConfig, Retention
from sedge_edge.rounds.run_state import RunState
from sedge_edge.rounds.state import SCHEMA, AgentState, Pending
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.layout import Theta

CAPSYS = pytest.CaptureFixture[str]
MODEL = bytes(32)


def entry(model: bool = True) -> RunState:
    return RunState(b"bundle".ljust(32), bytes(32), 3, Kept(MODEL if model else None))


STATE = AgentState(runs={name: entry() for name in ("a", "b", "c", "d")})


@pytest.mark.parametrize(
    ("state", "keep", "gone"),
    [
        (STATE, KeepConfig(), ()),
        (STATE, KeepConfig(runs=4), ()),
        (STATE, KeepConfig(runs=2), ("a", "b")),
        (STATE, KeepConfig(runs=1), ("a", "b", "c")),
        (STATE, KeepConfig(gigabytes=2.5), ("a", "b")),
        (STATE, KeepConfig(runs=3, gigabytes=2.5), ("a", "b")),
        (STATE, KeepConfig(gigabytes=0.1), ("a", "b", "c")),
        (msgspec.structs.replace(STATE, outbox=(Pending("a", 3, MODEL),)), KeepConfig(runs=1), ("b", "c")),
        (msgspec.structs.replace(STATE, runs={**STATE.runs, "e": entry(False)}), KeepConfig(runs=1),
         ("a", "b", "c", "e")),
    ],
)  # fmt: skip
def test_which_runs_go(state: AgentState, keep: KeepConfig, gone: tuple[str, ...]) -> None:
    """Each run takes a gigabyte; the newest with a model is what the device predicts with."""
    sizes = {name.encode(): 10**9 for name in state.runs}
    found = Retention(keep, lambda: sizes).surplus(
        state, lambda one: {name.encode() for name in one.runs}
    )
    assert found == gone


def kept(config: Path) -> list[str]:
    state = Journal(config.parent / "state" / "journal", AgentState, SCHEMA).load()
    assert state is not None
    return list(state.runs)


@pytest.fixture
def config(tmp_path: Path, tiny: tuple[bytes, Theta]) -> Path:
    """A device with three models, that is to keep one."""
    path = make_home(tmp_path / "home")
    put_models(path, tiny[0], {"old": tiny[1], "newer": 2 * tiny[1], "newest": 3 * tiny[1]})
    path.write_text(path.read_text() + "[keep]\nruns = 1\n")
    return path


def test_prune_by_hand(config: Path, capsys: CAPSYS) -> None:
    state = config.parent / "state"
    names = {path.name for path in (state / "blobs").iterdir()}
    assert main(["-c", str(config), "prune", "--dry-run"]) == 0
    assert capsys.readouterr().out == "runs would be deleted: old, newer\n"
    assert {path.name for path in (state / "blobs").iterdir()} == names
    with lock_folder(state):  # as a running agent holds it
        assert main(["-c", str(config), "prune"]) == 4
        assert "another process is using this state folder" in capsys.readouterr().err
    assert kept(config) == ["old", "newer", "newest"]
    assert main(["-c", str(config), "prune"]) == 0
    assert capsys.readouterr().out.splitlines() == ["runs deleted: old, newer", "freed: 0.0 MB"]
    assert kept(config) == ["newest"]
    assert len(list((state / "blobs").iterdir())) == len(names) - 2
    personal_model(state)


def test_kill_at_each_step_of_a_pruning(config: Path) -> None:
    """The state names what is there, before and after."""
    state, found = config.parent / "state", list[int]()
    for _ in kills(lambda: main(["-c", str(config), "prune"])):
        for run in kept(config):
            personal_model(state, run)
        found.append(len(kept(config)))
    assert found[0] == 3 and found[-1] == 1 and found == sorted(found, reverse=True)


def test_a_running_agent_prunes_by_itself(tmp_path: Path) -> None:
    """Once a job is done, and the run that it was for is not the one that goes."""
    device = Harness(tmp_path)
    device.pump(device.connect())
    device.agent._collecting._retention = Retention(KeepConfig(runs=1))
    for run in ("first", "second"):
        device.give(device.order(run=run))
    assert list(device.agent.state.runs) == ["second"]
