"""``sedge-cloud up``: nothing, then a fleet; its first device joins with the line that was printed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tools.bench.parts.real_fleet import ENVIRONMENT, command, wait_until

pytestmark = pytest.mark.fleet


class Trial:
    """The command in a folder, in a session of its own as in a terminal."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.log = folder / "up.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sedge_cloud", "up", *words],
                cwd=folder, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True,
            )  # fmt: skip

    def until_it_is_up(self) -> "Trial":
        """Wait for the coordinator's connection; this trial."""
        wait_until(
            lambda: "Ctrl-C" in self.said and "connected to" in self.said, 60, "the fleet is up"
        )
        return self

    @property
    def said(self) -> str:
        return self.log.read_text()

    def interrupt(self) -> int:
        """Press Ctrl-C; the exit status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(30)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    trial = Trial(tmp_path)
    try:
        yield trial.until_it_is_up()
    finally:
        trial.process.kill()
        trial.process.wait()


def edge(folder: Path, *words: str) -> str:
    return command("sedge_edge", *words, folder=folder)


def test_from_nothing_to_a_device_that_is_let_in(trial: Trial, tmp_path: Path) -> None:
    line = re.search(r"^(sedge:\S+)$", trial.said, re.MULTILINE)
    assert line is not None and "The page: http://127.0.0.1:" in trial.said
    assert "cd device-1 && sedge-edge doctor" in edge(tmp_path, "join", line[1])
    np.savez(tmp_path / "device-1" / "train.npz", x=np.zeros((9, 2), "f4"), y=np.zeros(9, int))
    config = str(tmp_path / "fleet" / "cloud.toml")
    assert "PROBLEM" not in edge(tmp_path, "-c", "device-1/edge.toml", "doctor")
    edge(tmp_path, "-c", "device-1/edge.toml", "once")
    # A second one by a token, as the greeting says; the broker knows it without a signal by hand.
    hint = re.search(r"sedge-cloud (-c \S+ device token add .*)$", trial.said, re.MULTILINE)
    assert hint is not None
    printed = command("sedge_cloud", *hint[1].split(), folder=tmp_path)
    edge(tmp_path, "join", printed.splitlines()[-1], "--name", "pi-2", "--out", "second")
    shutil.copy(tmp_path / "device-1" / "train.npz", tmp_path / "second")
    assert "PROBLEM" not in edge(tmp_path, "-c", "second/edge.toml", "doctor")
    pid = int((tmp_path / "fleet" / "mosquitto.pid").read_text())
    assert trial.interrupt() == 0 and "Traceback" not in trial.said
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    again = Trial(tmp_path).until_it_is_up()
    assert "sedge:" not in again.said
    pid = int((tmp_path / "fleet" / "mosquitto.pid").read_text())
    again.process.kill()  # and nobody is left who could end the broker
    again.process.wait()
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), 20, "the broker ends")
    # Its number, left in the file, may be another process's by now.
    with subprocess.Popen(["sleep", "100"]) as stranger:
        (tmp_path / "fleet" / "mosquitto.pid").write_text(f"{stranger.pid}\n")
        command("sedge_cloud", "-c", config, "device", "add", "pi-3", folder=tmp_path)
        assert stranger.poll() is None
        stranger.kill()


def test_a_folder_that_was_moved_is_put_right(trial: Trial, tmp_path: Path) -> None:
    assert trial.interrupt() == 0
    (tmp_path / "fleet").rename(tmp_path / "moved")
    found = command("sedge_cloud", "-c", "moved", "doctor", folder=tmp_path, status=1)
    assert "PROBLEM  reload: " in found
    again = Trial(tmp_path, "moved").until_it_is_up()
    command("sedge_cloud", "-c", "moved", "device", "add", "pi-9", folder=tmp_path)
    assert again.interrupt() == 0


def test_a_port_that_is_taken_is_named(trial: Trial, tmp_path: Path) -> None:
    second = subprocess.run(
        [sys.executable, "-m", "sedge_cloud", "up"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert second.returncode == 2 and re.search(
        r"broker: found 'port \d+, in use', expected a free port", second.stderr
    )
    assert trial.process.poll() is None
    assert trial.interrupt() == 0
