"""``sedge-cloud``: every command, its good path, and its errors: one line and status 2."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import segno
from tests.cloud.helper import CONFIG, LAYOUT, Cloud, as_nobody, make_bundle
from tools.bench.parts.real_fleet import free_port

from sedge_cloud.__main__ import main
from sedge_edge.config import load_config
from sedge_protocol import VERSION
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.wire.messages import Decline

CAPSYS = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, capsys: CAPSYS) -> Path:
    assert main(["init", str(tmp_path / "home"), "--fleet", "test", "--url", unused()]) == 0
    capsys.readouterr()
    return tmp_path / "home"


def unused() -> str:
    return f"mqtt://127.0.0.1:{free_port()}"


def call(home: Path, *words: str) -> int:
    return main(["-c", str(home / "cloud.toml"), *words])


def refused(capsys: CAPSYS, status: int, *parts: str, expected: int = 2) -> None:
    """The status of this kind of error, nothing on standard output, and one line that says all this."""
    out, err = capsys.readouterr()
    assert status == expected and out == "" and len(err.splitlines()) == 1
    assert err.startswith("sedge-cloud: ")
    assert all(part in err for part in parts), err


def test_init(tmp_path: Path, capsys: CAPSYS) -> None:
    folder = tmp_path / "home"
    assert main(["init", str(folder), "--fleet", "test"]) == 0
    out = capsys.readouterr().out
    assert f"sedge-cloud up {folder}" in out
    assert (folder / "mosquitto.conf").exists()
    refused(capsys, main(["init", str(folder), "--fleet", "test"]), "expected a folder without")
    refused(capsys, main(["init", str(tmp_path / "x"), "--fleet", "A"]), "fleet: found 'A'")
    wrong = ["init", str(tmp_path / "x"), "--fleet", "a", "--url", "x"]
    refused(capsys, main(wrong), "url: found 'x'")


def test_devices(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    out = tmp_path / "pi-1"
    assert call(home, "device", "add", "pi-1", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert f"Copy {out}/ to the device" in said and "SIGHUP" in said
    assert load_config(out / "edge.toml").device == "pi-1"
    assert call(home, "device", "add", "pi-2", "--out", str(tmp_path / "2"), "--service") == 0
    assert "sedge-edge.service" in capsys.readouterr().out
    assert call(home, "device", "revoke", "pi-2") == 0
    said = capsys.readouterr().out
    assert "device pi-2 is revoked" in said and "SIGHUP" in said
    first = load_config(out / "edge.toml").keys()
    assert call(home, "device", "reissue", "pi-1", "--out", str(tmp_path / "new")) == 0
    assert f"Copy {tmp_path / 'new'}/ to the device" in capsys.readouterr().out
    joined = ("device", "reissue", "pi-1", "--out", str(tmp_path / "new-2"), "--join")
    assert call(home, *joined) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("sedge:")
    assert load_config(tmp_path / "new" / "edge.toml").keys() != first
    assert call(home, "device", "list") == 0
    head, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[:4] == ["device", "state", "since", "heard"]
    assert [line[:2] for line in lines[:2]] == [["pi-1", "never"], ["pi-2", "revoked"]]
    passwords = (home / "broker-passwords").read_text().splitlines()
    assert [line.partition(":")[0] for line in passwords] == ["coordinator-test", "pi-1"]


def test_a_token_is_drawn(home: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(home, "device", "token", "add", "--qr") == 0
    out = capsys.readouterr().out
    code = io.StringIO()
    segno.make(out.splitlines()[-1], micro=False).terminal(out=code, compact=True)
    assert code.getvalue() in out
    monkeypatch.setitem(sys.modules, "segno", None)
    refused(capsys, call(home, "device", "token", "add", "--qr"), "pip install 'sedge-fl[qr]'")
    assert call(home, "device", "token", "list", "--json") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_run_from_start_to_stop(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    run_file = tmp_path / "run.toml"
    run_file.write_text('strategy = "fedavg"\nnum_rounds = 7\n')
    start = ("run", "start", "one", "--bundle", str(bundle), "--run-file", str(run_file))
    assert call(home, *start) == 0
    begins, silent = capsys.readouterr().out.splitlines()[-2:]
    assert begins.startswith("run one begins as soon as")
    assert silent.startswith("No coordinator is running: start one with `sedge-cloud serve`")
    assert call(home, "run", "list") == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["one", "running", "fedavg", "0", "of", "8", "(7", "train)"]
    assert call(home, "run", "show", "one") == 0
    _, why, *problems = capsys.readouterr().out.splitlines()
    assert problems[0] == "what is wrong:" and "coordinator: is not running" in problems[1]
    assert why == "running: needs 2 devices online, 0 are"
    assert call(home, "run", "stop", "one") == 0
    assert capsys.readouterr().out == "run one is stopped\n"
    assert call(home, "run", "list") == 0
    assert "stopped" in capsys.readouterr().out
    refused(capsys, call(home, "run", "stop", "one"), "one (stopped)")
    refused(capsys, call(home, "run", "stop", "two"), "run: found 'two', expected the name")
    refused(capsys, call(home, "run", "show", "two"), "expected the name of a run (see `run list`)")
    refused(capsys, call(home, *start), "run: found 'one', expected a name that no run has yet")


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ('strategy = "fedobp"\noptions = { quantile = "paper" }', "keeps at most 1 personal"),
        ('strategy = "fedbn"\n', "fedbn: the model has no BatchNorm, so this is FedAvg"),
        ('strategy = "heterofl"\n', "heterofl: the run has no narrower models, so every device"),
        ('strategy = "fedobp"\n', ""),
        ('strategy = "fedavg"\n', ""),
    ],
)
def test_a_method_that_comes_to_another_one_is_said_at_the_start(
    home: Path, capsys: CAPSYS, tmp_path: Path, text: str, remark: str
) -> None:
    bundle, run_file = make_bundle(tmp_path / "bundle"), tmp_path / "run.toml"
    run_file.write_text(text)
    words = ("--bundle", str(bundle), "--run-file", str(run_file))
    assert call(home, "run", "start", "one", *words) == 0
    *said, last, _ = capsys.readouterr().out.splitlines()
    assert last.startswith("run one begins")
    assert len(said) == bool(remark) and all(remark in line for line in said)
    assert call(home, "run", "show", "one") == 0
    shown = capsys.readouterr().out.splitlines()
    assert all(line in shown for line in said)


def test_runs_refused(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    run_file = tmp_path / "run.toml"

    def start(text: str, name: str = "one", folder: Path = bundle) -> int:
        run_file.write_text(text)
        words = ("--bundle", str(folder), "--run-file", str(run_file))
        return call(home, "run", "start", name, *words)

    good = 'strategy = "fedavg"\n'
    refused(capsys, start('strategy = "x"\n'), "run.toml: strategy: found 'x', expected one of")
    refused(capsys, start(good + "quorum = 2\n"), "run.toml: quorum: found 2")
    refused(capsys, start(good + "[options]\nx = 2\n"), "run.toml: options.x: found 2")
    refused(capsys, start(good, name="One"), "run: found 'One'")
    none = start(good, folder=tmp_path / "none")
    refused(capsys, none, "none", "expected a folder that sedge-export wrote")
    named = 'strategy = "fedobp"\noptions = { classifier_only = ["x"] }\n'
    refused(capsys, start(named), "classifier_only: found ['x'], expected names among")
    (bundle / "init.bin").write_bytes(b"123")
    refused(capsys, start(good), "init.bin", expected=6)
    assert call(home, "run", "list") == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def linked(home: Path, cloud: Cloud) -> None:
    """Let the configuration name this cloud's store."""
    text = (home / "cloud.toml").read_text()
    state = cloud.folder / "state"
    (home / "cloud.toml").write_text(text.replace('state_dir = "state"', f'state_dir = "{state}"'))


def test_rounds_as_they_go(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path / "cloud", wall=lambda now: time.time())
    linked(home, cloud)
    cloud.hello()
    cloud.answer("a", "b")
    cloud.offer("a", b"x" * 100)  # of no use: rejected
    assert call(home, "run", "show", "run") == 0
    head, first, new, _, _, second, waiting, reject, *_ = capsys.readouterr().out.splitlines()
    assert waiting.strip() == "b the coordinator is not running"
    assert reject.strip().startswith("a was rejected: malformed: ")
    assert head.split()[:8] == ["round", "task", "updates", "before", "after", "loss", "up", "down"]
    assert head.split()[8:] == ["dense", "sent", "received"]
    link = first.split()[-2:]
    assert first.split() == [
        "1", "train", "2/2", "0.2500", "0.7500", "1.5000", "-", "-", "-", *link,
    ]  # fmt: skip
    assert new.split()[:2] == ["new", "2"]
    assert re.match(r" +2 train        0/2    open for \d s; closes with 2 updates or at ", second)
    assert call(home, "run", "show", "run", "--json") == 0
    found, current = map(json.loads, capsys.readouterr().out.splitlines())
    assert (found["state"], current["state"], current["needed"]) == ("closed", "open", 2)
    assert (found["round"], found["after"], found["failure"]) == (1, 0.75, "")
    assert [device["device"] for device in found["devices"]] == ["a", "b"]
    moved = [found["traffic"][name] for name in "ab"]
    both = [sum(one[way] for one in moved) / 2 for way in ("up", "down")]
    share = sum(both) / (8 * LAYOUT.size)
    assert new.split()[2:] == [*(f"{way:.0f}" for way in both), f"{100 * share:.2f}", "%"]
    assert link == [str(found["link"][way]) for way in ("up", "down")]
    assert found["newcomers"] == ["a", "b"] and (found["declines"], found["rejects"]) == ({}, {})
    assert call(home, "device", "list") == 0
    found = capsys.readouterr().out.splitlines()
    assert found[1].split() == [
        "a", "unknown", "bench", "onnxruntime", "1", "25.0", "%", "75.0", "%", "0",
    ]  # fmt: skip
    assert found[3].startswith("error    coordinator: is not running")
    assert call(home, "device", "list", "--json") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(d["device"], d["updates"], d["strikes"]) for d in found] == [("a", 1, 0), ("b", 1, 0)]
    assert call(home, "run", "stop", "run") == 0
    capsys.readouterr()
    assert call(home, "run", "show", "run") == 0
    found = capsys.readouterr().out.splitlines()
    assert found[found.index("what is wrong:") - 1].split() == ["2", "train", "0/2", "stopped"]


def test_a_fleet_is_watched_until_its_runs_end(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path / "cloud")
    linked(home, cloud)
    cloud.hello()
    watching = subprocess.Popen(
        [sys.executable, "-m", "sedge_cloud", "-c", str(home / "cloud.toml"), "run", "watch", "--json"],
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert watching.stdout is not None
    facts = json.loads(watching.stdout.readline())
    waiting = facts["runs"][0]["open"]["waiting"]
    assert [(w["device"], w["code"]) for w in waiting] == [
        ("a", "coordinator_silent"), ("b", "coordinator_silent"),
    ]  # fmt: skip
    assert call(home, "run", "stop", "run") == 0
    last = json.loads(watching.communicate(timeout=20)[0].splitlines()[-1])
    assert last["runs"][0]["status"] == "stopped" and watching.returncode == 0
    capsys.readouterr()
    assert call(home, "run", "watch") == 0
    assert "fleet test, " in capsys.readouterr().out
    refused(capsys, call(home, "run", "watch", "none"), "run: found 'none'")


@pytest.mark.parametrize("lot", [20_000, 2])
def test_some_of_the_devices_are_listed_however_many_are_read_at_a_time(
    home: Path, capsys: CAPSYS, tmp_path: Path, lot: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sedge_cloud.facts.reader.MAX_DEVICES", lot)
    cloud = Cloud(tmp_path / "cloud", devices=("pi-1", "pi-2", "pi-3", "x"))
    linked(home, cloud)

    def listed(*options: str) -> list[str]:
        assert call(home, "device", "list", "--json", *options) == 0
        return [json.loads(line)["device"] for line in capsys.readouterr().out.splitlines()]

    assert listed() == ["pi-1", "pi-2", "pi-3", "x"]
    assert listed("--search", "PI", "--offset", "1", "--limit", "1") == ["pi-2"]
    assert listed("--search", "PI", "--offset", "0", "--limit", "1") == ["pi-1"]
    cloud.store.tag(["pi-2", "pi-3", "x"], {"site": "lab"})
    assert listed("--where", "site=lab") == ["pi-2", "pi-3", "x"]
    assert listed("--limit", "3") == ["pi-1", "pi-2", "pi-3"]
    assert listed("--online") == [] and listed("--state", "never") == listed()
    assert call(home, "device", "list", "--search", "pi", "--limit", "2") == 0
    assert "2 of 3 matching devices, 4 in all" in capsys.readouterr().out.splitlines()
    with pytest.raises(SystemExit):
        call(home, "device", "list", "--limit", "0")


def test_devices_are_tagged_and_found(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path / "cloud", devices=("pi-1", "pi-2", "x"))
    cloud.hello("pi-1", "x")
    linked(home, cloud)
    assert call(home, "device", "tag", "pi-1", "pi-2", "site=hall b", "floor=3") == 0
    assert call(home, "device", "tag", "--where", "num_train=10", "floor=4", "site=") == 0
    assert capsys.readouterr().out.splitlines() == [
        "2 devices tagged: site=hall b floor=3", "2 devices tagged: floor=4 site="
    ]  # fmt: skip
    assert call(home, "device", "list", "--where", "floor>=4 or site='hall b'", "--json") == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(device["device"], device["tags"]) for device in listed] == [
        ("pi-1", {"floor": "4"}), ("pi-2", {"floor": "3", "site": "hall b"}), ("x", {"floor": "4"})
    ]  # fmt: skip
    assert call(home, "device", "list", "--where", "floor=3") == 0
    out = capsys.readouterr().out
    assert "floor=3 site=hall b" in out and "1 of 1 matching devices, 3 in all" in out
    assert call(home, "device", "pause", "--where", "floor=4") == 0
    assert capsys.readouterr().out == "2 devices paused: no round includes them\n"
    assert call(home, "device", "list", "--state", "paused", "--json") == 0
    listed = [json.loads(line)["device"] for line in capsys.readouterr().out.splitlines()]
    assert listed == ["pi-1", "x"]
    assert call(home, "device", "resume", "x") == 0
    capsys.readouterr()
    assert call(home, "device", "list", "--where", "floor=4", "--state", "paused", "--json") == 0
    assert [json.loads(line)["device"] for line in capsys.readouterr().out.splitlines()] == ["pi-1"]
    for command, text in (
        (["pause"], "expected device ids or --where, not both"),
        (["resume", "pi-9"], "device: found 'pi-9', expected an enrolled device"),
        (["list", "--where", "flor=3"], "expected an attribute ("),
        (["tag", "pi-1"], "expected at least one KEY=VALUE"),
        (["tag", "floor=1"], "expected device ids or --where, not both"),
        (["tag", "--where", "floor=3", "pi-1", "floor=1"], "device ids or --where, not both"),
        (["tag", "pi-1", "memory_mb=1"], "tag: found 'memory_mb', expected a tag: 1 to 32"),
        (["tag", "pi-1", "floor=a'b"], "printable characters without quotes"),
        (["tag", "pi-9", "floor=1"], "device: found 'pi-9', expected an enrolled device"),
    ):
        refused(capsys, call(home, "device", *command), text)


def test_a_run_that_failed(home: Path, capsys: CAPSYS, tmp_path: Path) -> None:
    cloud = Cloud(tmp_path / "cloud", msgspec.structs.replace(CONFIG, num_rounds=50))
    linked(home, cloud)
    cloud.hello()
    for name in "ab":
        cloud.say(name, Decline("run", 1, "DataError", "no data"))
    cloud.poll()
    assert call(home, "run", "list") == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert line.split() == ["run", "failed", "fedavg", "1", "of", "51", "(50", "train)"]
    assert call(home, "run", "list", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["closed_rounds"], found["total_rounds"]) == ("failed", 1, 51)
    assert call(home, "run", "show", "run") == 0
    said = capsys.readouterr().out
    row, _, why, declined, *_ = said.splitlines()[1:]
    assert declined.strip() == "declined: DataError 2"
    assert row.split()[:6] == ["1", "train", "0/2", "-", "-", "-"]
    assert "no personal" not in said, "nothing was trained, so nothing is known"
    assert why.strip() == (
        "failed: 0 of 2 devices sent an update that counts, expected min_updates = 1; "
        "2 declined, 0 rejected; most declined because 'DataError: no data' (2 of 2)"
    )
    assert call(home, "run", "show", "run", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert "2 declined" in found["failure"]
    assert found["declines"] == dict.fromkeys("ab", "DataError: no data")
    refused(capsys, call(home, "run", "stop", "run"), "run (failed)")


COMMANDS = [
    ["serve"],
    ["run", "list"],
    ["run", "show", "x"],
    ["run", "stop", "x"],
    ["run", "start", "x", "--bundle", "b", "--run-file", "r"],
    ["device", "list"],
    ["device", "revoke", "x"],
    ["device", "add", "x", "--out", "never-made"],
    ["device", "reissue", "x", "--out", "never-made"],
]


@pytest.mark.parametrize("words", COMMANDS[:2], ids=" ".join)
def test_commands_without_a_configuration(tmp_path: Path, capsys: CAPSYS, words: list[str]) -> None:
    refused(capsys, call(tmp_path, *words), "cloud.toml: file: No such file or directory")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_on_a_damaged_store(home: Path, capsys: CAPSYS, words: list[str]) -> None:
    (home / "state").mkdir(0o700)
    (home / "state" / "sedge.sqlite").write_bytes(b"rubbish" * 999)
    refused(capsys, call(home, *words), "sedge.sqlite: file is not a database", expected=4)


def test_a_state_folder_of_somebody_else(capsys: CAPSYS) -> None:
    with as_nobody() as folder:
        assert main(["init", str(folder / "home"), "--fleet", "a"]) == 0
        capsys.readouterr()
        (folder / "home" / "state").mkdir(0o500)
        refused(capsys, call(folder / "home", "device", "list"), "state", expected=4)
        refused(capsys, call(folder / "home", "serve"), "Permission denied", expected=4)


@pytest.mark.parametrize("words", [[], ["run"], ["run", "start", "x"], ["--nonsense"]])
def test_words_that_are_no_command(capsys: CAPSYS, words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2 and "usage: sedge-cloud" in capsys.readouterr().err


def test_the_version(capsys: CAPSYS) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0 and capsys.readouterr().out == f"sedge-cloud {VERSION}\n"


def test_the_configuration_of_the_folder_one_is_in(
    home: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    assert main(["device", "list"]) == 0
    assert (home / "state" / "sedge.sqlite").exists()


def test_a_folder_that_we_may_not_enter(capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch) -> None:
    with as_nobody() as folder:
        closed = folder / "closed"
        closed.mkdir()
        monkeypatch.chdir(closed)
        closed.chmod(0)
        try:
            status = main(["-c", str(folder / "none.toml"), "run", "list"])
        finally:
            closed.chmod(0o700)
    refused(capsys, status, "none.toml: file: No such file or directory")


def test_the_doctor(home: Path, capsys: CAPSYS) -> None:
    assert call(home, "doctor") == 1  # nobody listens there
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*["ok"] * 5, "PROBLEM", "ok"]
    assert lines[-2].startswith("PROBLEM  broker: cannot reach")
    assert call(home, "doctor", "--json") == 1
    checks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [check["ok"] for check in checks] == [True] * 5 + [False, True]
    assert call(home / "nowhere", "doctor") == 1
    assert capsys.readouterr().out.startswith("PROBLEM  configuration: ")


@pytest.fixture
def signals() -> Iterator[None]:
    """``serve`` takes the signals; they are given back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def when_logged(caplog: pytest.LogCaptureFixture, text: str, number: int) -> threading.Thread:
    """Send ourselves a signal as soon as the service has logged this."""

    def wait() -> None:
        deadline = time.monotonic() + 20
        while not any(text in line for line in caplog.messages) and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serving_without_a_broker_keeps_trying_until_told_to_stop(
    home: Path, signals: None, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = when_logged(caplog, "cannot reach mqtt://", number)
    assert call(home, "serve") == 0
    waiting.join()
    assert any("next try in" in line for line in caplog.messages)
    lock_folder(home / "state").close()  # given back


def test_one_coordinator_for_a_folder(home: Path, capsys: CAPSYS, signals: None) -> None:
    with lock_folder(home / "state"):
        refused(capsys, call(home, "serve"), "another process is using this", expected=4)
        assert call(home, "device", "list") == 0  # the command line may work beside it


def test_serving_with_bad_certificates(home: Path, capsys: CAPSYS, signals: None) -> None:
    text = (home / "cloud.toml").read_text().replace("mqtt://", "mqtts://")
    (home / "cloud.toml").write_text(text + 'ca_file = "none.crt"\n')
    refused(capsys, call(home, "serve"), "broker: found", "expected readable certificate files")
