"""``sedge-edge``: exit status, one line for an error, and what each command prints."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from tests.edge.home import make_home, put_models
from tests.edge.test_model_socket import ask

from sedge_edge import __main__ as command
from sedge_edge.__main__ import main
from sedge_edge.agent import Agent
from sedge_edge.rounds.state import SCHEMA, AgentState, Pending
from sedge_edge.training.job import CODECS
from sedge_export import export
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.layout import Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.messages import Hello, decode_body, encode_body

CAPSYS = pytest.CaptureFixture[str]
Handlers = dict[int, Callable[[int, object], None]]  # by signal


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return make_home(tmp_path / "home")


def run(config: Path, *words: str) -> int:
    return main(["-c", str(config), *words])


@pytest.mark.parametrize("words", [[], ["nonsense"], ["predict"], ["once", "--timeout-s", "soon"]])
def test_bad_usage(words: list[str], capsys: CAPSYS) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert "usage: sedge-edge" in capsys.readouterr().err


def damaged_journal(config: Path) -> None:
    state = config.parent / "state"
    Journal(state / "journal", AgentState, SCHEMA).commit(AgentState(incarnation=3))
    (state / "journal").write_bytes((state / "journal").read_bytes()[:-1])


CANNOT_START: list[tuple[Callable[[Path], object], int, str]] = [
    (lambda config: config.unlink(), 2, "expected a readable TOML file"),
    (lambda config: (config.parent / "secret").chmod(0o644), 2, "other users cannot read"),
    (lambda config: (config.parent / "train.npz").unlink(), 3, "train.npz: No such file"),
    (lambda config: (config.parent / "state").write_text(""), 4, "state: "),
]


@pytest.mark.parametrize(("break_it", "status", "text"), CANNOT_START)
def test_an_agent_that_cannot_start_says_why_in_one_line(
    config: Path, break_it: Callable[[Path], object], status: int, text: str, capsys: CAPSYS
) -> None:
    break_it(config)
    assert run(config, "run") == status
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sedge-edge: ")
    assert text in line


def test_a_service_manager_sees_the_same(config: Path) -> None:
    damaged_journal(config)
    words = [sys.executable, "-m", "sedge_edge", "-c", str(config), "run"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 4 and line.startswith("sedge-edge: ")
    assert "damaged, its sha256 does not match" in line


def test_two_agents_do_not_share_a_folder(config: Path, capsys: CAPSYS) -> None:
    with lock_folder(config.parent / "state"):
        assert run(config, "run") == 4
    assert "another process is using this state folder" in capsys.readouterr().err


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Handlers:
    """Signal handlers are kept here, and the tests' own stay in place."""
    found: Handlers = {}
    monkeypatch.setattr(signal, "signal", found.__setitem__)
    return found


def hello_of(config: Path) -> Hello:
    """What the agent says of the device."""
    hellos: list[Hello] = []

    def done(agent: Agent) -> bool:
        hellos.append(agent.identity.hello)
        return True

    assert not command._run_agent(config, done)
    return hellos[0]


@pytest.mark.usefixtures("handlers")
def test_the_agent_says_what_the_device_can_do(config: Path) -> None:
    hello = hello_of(config)
    assert decode_body(Kind.HELLO, encode_body(hello)) == hello
    assert set(hello.compressions) == {"none", "zlib", "zstd"}
    assert set(CODECS) - set(hello.codecs) == {"settings", "arrays"}  # only a function has these
    assert {"int4", "sign", "freeze", "remember"} < set(hello.codecs)
    assert (hello.num_train, hello.num_test) == (16, 4)


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize(
    ("says", "lacks"),
    [
        ("fit.honours = ('freeze', 'optimizer', 'schedule')", set[str]()),
        ("", {"freeze", "optimizer", "schedule"}),
    ],
)
def test_a_device_announces_only_what_its_function_can_do(
    config: Path, says: str, lacks: set[str]
) -> None:
    module = f"announcing_{len(lacks)}"
    (config.parent / f"{module}.py").write_text(f"def fit(): pass\n{says}\n")
    with config.open("a") as file:
        file.write(f'[backend]\nname = "{module}:fit"\n')
    hello = hello_of(config)
    assert hello.backends == ("function",)
    never = {"own_model", "select", "scoring", "correction", "average", "loss"}
    assert set(CODECS) - set(hello.codecs) == never | lacks


def test_run_works_until_it_is_told_to_stop(config: Path, handlers: Handlers) -> None:
    def stop() -> None:
        while signal.SIGTERM not in handlers:
            time.sleep(0.01)
        time.sleep(0.2)
        handlers[signal.SIGTERM](signal.SIGTERM, None)

    threading.Thread(target=stop, daemon=True).start()
    assert run(config, "run") == 0
    assert set(handlers) == {signal.SIGTERM, signal.SIGINT}
    state = Journal(config.parent / "state" / "journal", AgentState, SCHEMA).load()
    assert state is not None
    # Seconds, so that a lost disk does not go back in time.
    assert state.incarnation > 1_700_000_000


def test_a_running_agent_serves_its_model(
    config: Path, tiny: tuple[bytes, Theta], handlers: Handlers
) -> None:
    put_models(config, tiny[0], {"first": tiny[1]})
    config.write_text(config.read_text() + '[serve]\nsocket = "model.sock"\n')
    answers: list[tuple[int, bytes]] = []

    def use() -> None:
        path = config.parent / "model.sock"
        while signal.SIGTERM not in handlers or not path.exists():
            time.sleep(0.01)
        answers.append(ask(path, "GET", "/"))
        handlers[signal.SIGTERM](signal.SIGTERM, None)

    threading.Thread(target=use, daemon=True).start()
    assert run(config, "run") == 0
    ((status, body),) = answers
    assert status == 200 and b'"name": "tiny"' in body


def test_once_tells_ctrl_c_from_a_silent_coordinator(
    config: Path, handlers: Handlers, capsys: CAPSYS
) -> None:
    def stop() -> None:
        while signal.SIGINT not in handlers:
            time.sleep(0.01)
        handlers[signal.SIGINT](signal.SIGINT, None)

    threading.Thread(target=stop, daemon=True).start()
    assert run(config, "once") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "sedge-edge: interrupted"


@pytest.mark.usefixtures("handlers")
def test_once_leaves_after_its_time(config: Path, capsys: CAPSYS) -> None:
    began = time.monotonic()
    # Whoever runs it by a timer wants to know.
    assert run(config, "once", "--timeout-s", "0.3") == 5
    assert time.monotonic() - began >= 0.3
    assert "no coordinator answered within 0 s; pending work is kept" in capsys.readouterr().err


@pytest.mark.parametrize("timeout_s", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize("verb", ["once", "join"])
def test_a_time_ends(verb: str, timeout_s: str, capsys: CAPSYS) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([verb, f"--timeout-s={timeout_s}"])
    assert stopped.value.code == 2
    expected = f"--timeout-s: found {timeout_s!r}, expected a finite number of seconds, from 0"
    assert expected in capsys.readouterr().err


def test_a_working_directory_that_is_closed_to_us(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: CAPSYS
) -> None:
    real = os.stat

    def refuse(path: object, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path) == "edge.toml":
            raise PermissionError(13, "Permission denied", "edge.toml")
        return real(cast(str, path), *args, **kwargs)

    monkeypatch.setattr(os, "stat", refuse)
    assert run(config, "status") == 0
    assert "has never run" in capsys.readouterr().out


@pytest.mark.usefixtures("handlers")
def test_once_leaves_when_nothing_is_left(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two seconds after the last thing: an order follows a welcome at once."""
    asked: list[float] = []
    now = [0.0]
    busy = [True]

    class Busy:
        """An agent that is welcomed and, after a while, idle."""

        welcomed = True

        @property
        def idle(self) -> bool:
            return not busy[0]

    def work(path: Path, done: Callable[[Agent], bool]) -> bool:
        agent: Agent = Busy()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        for now[0] in (1.0, 5.0, 10.0):
            assert not done(agent)
        busy[0] = False
        for now[0] in (11.0, 12.9):
            assert not done(agent)
        busy[0] = True
        now[0] = 13.5
        assert not done(agent)
        busy[0] = False
        for now[0] in (14.0, 15.9):
            assert not done(agent)
        now[0] = 16.1
        assert done(agent)
        busy[0] = True
        now[0] = 101.0
        assert done(agent)
        asked.append(now[0])
        return False

    monkeypatch.setattr(command, "_run_agent", work)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    assert run(config, "once", "--timeout-s", "100") == 0
    assert asked == [101.0]


def test_status_of_a_device_that_has_never_run(config: Path, capsys: CAPSYS) -> None:
    assert run(config, "status") == 0
    assert capsys.readouterr().out == "device pi-1 of fleet home: has never run\n"


def test_status(config: Path, tiny: tuple[bytes, Theta], capsys: CAPSYS) -> None:
    bundle, theta = tiny
    put_models(config, bundle, {"first": theta, "second": None})
    state_dir = config.parent / "state"
    journal = Journal(state_dir / "journal", AgentState, SCHEMA)
    state = journal.load()
    assert state is not None
    blob = BlobFolder(state_dir, 0).write(b"x" * 123)
    waiting = (Pending("second", 4, blob),)
    journal.commit(AgentState(incarnation=1_795_528_800, runs=state.runs, outbox=waiting))
    assert run(config, "status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines.pop().startswith("today: 0.0 kB sent") and lines.pop().startswith("disk: ")
    assert lines == [
        "device pi-1 of fleet home: not running, last started 2026-11-24 14:00:00 UTC",
        "run first: last round 3, has a personal model",
        "run second: last round 3, has no personal model",
        "run second: the update of round 4 is pending, 123 bytes",
    ]
    assert run(config, "status", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pending"] == [{"run": "second", "round": 4, "size": 123}]
    assert [one["personal_model"] for one in found["runs"]] == [True, False]


def test_status_of_a_damaged_device(config: Path, capsys: CAPSYS) -> None:
    damaged_journal(config)
    assert run(config, "status") == 4
    assert "damaged, its sha256 does not match" in capsys.readouterr().err


def test_doctor_finds_the_dead_broker(config: Path, capsys: CAPSYS) -> None:
    assert run(config, "doctor") == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith("ok       ")] == [lines[-1]]
    assert lines[-1].startswith("PROBLEM  broker: cannot reach mqtt://127.0.0.1:1")


@pytest.fixture
def trained(config: Path, tiny: tuple[bytes, Theta]) -> Path:
    put_models(config, tiny[0], {"first": tiny[1]})
    return config


def test_predict_prints_labels_and_writes_outputs(trained: Path, capsys: CAPSYS) -> None:
    data, out = str(trained.parent / "train.npz"), trained.parent / "out.npy"
    assert run(trained, "predict", data, "--out", str(out)) == 0
    assert capsys.readouterr().out == ""
    outputs = np.load(out)
    assert outputs.shape == (20, 3)
    for words in ((), ("--run", "first")):
        assert run(trained, "predict", data, *words) == 0
        labels = [int(label) for label in capsys.readouterr().out.split()]
        assert labels == outputs.argmax(axis=1).tolist()


def test_a_table_is_predicted_with_its_target_and_without(trained: Path, capsys: CAPSYS) -> None:
    with np.load(trained.parent / "train.npz") as data:
        x, y = data["x"], data["y"]
    assert run(trained, "predict", str(trained.parent / "train.npz")) == 0
    expected = capsys.readouterr().out
    names = ",".join("abcdef")
    for name, rows, head in (
        ("bare.csv", x, ""),
        ("named.csv", x, names),
        ("target.csv", np.column_stack([x, y]), f"{names},label"),
    ):
        file = trained.parent / name
        np.savetxt(file, rows, delimiter=",", header=head, comments="", fmt="%.17g")
        assert run(trained, "predict", str(file)) == 0
        assert capsys.readouterr().out == expected
    assert run(trained, "predict", str(file), "--json") == 0
    objects = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "".join(f"{it['prediction']}\n" for it in objects) == expected
    assert all(np.argmax(it["outputs"]) == it["prediction"] for it in objects)


def test_a_photo_is_predicted(config: Path, capsys: CAPSYS) -> None:
    bundle = config.parent / "bundle"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    export(model, torch.randn(2, 3, 4, 4), batch_size=2, name="p", num_classes=3, folder=bundle)
    made, theta = bundles.load(bundle)
    put_models(config, bundles.pack(made), {"first": theta})
    pixels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8)
    photo, rows = config.parent / "photo.png", config.parent / "rows.npy"
    Image.fromarray(pixels).save(photo)
    np.save(rows, pixels.transpose(2, 0, 1)[None])
    said = []
    for file in (photo, rows):
        assert run(config, "predict", str(file), "--json") == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != ""
    Image.fromarray(pixels[:, :3]).save(photo)
    assert run(config, "predict", str(photo)) == 3
    assert "an image (3, 4, 3), but the model expects (3, 4, 4)" in capsys.readouterr().err


def test_export_writes_the_model(trained: Path) -> None:
    for name in ("model.npz", "model.onnx", "model.pt"):
        assert run(trained, "export", str(trained.parent / name)) == 0
        assert (trained.parent / name).stat().st_size > 100


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["predict", "missing.npy"], 3, "missing.npy: "),
        (["predict", "train.npz", "--out", "out.csv"], 2, "expected a name that ends in .npy"),
        (["predict", "train.npz", "--out", "nowhere/out.npy"], 4, "No such file or directory"),
        (["predict", "train.npz", "--run", "second"], 2, "expected one of: first"),
        (
            ["export", "model.pte"],
            2,
            "expected a name that ends in .npz, .safetensors, .pt or .onnx",
        ),
        (["export", "nowhere/model.onnx"], 4, "No such file or directory"),
        (["export", "model.npz", "--run", "second"], 2, "expected one of: first"),
    ],
)
def test_predict_and_export_say_what_is_wrong(
    trained: Path,
    words: list[str],
    status: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: CAPSYS,
) -> None:
    monkeypatch.chdir(trained.parent)
    assert main(words) == status  # edge.toml in this folder is the default
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert text in line
