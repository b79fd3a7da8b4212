"""Break a real fleet in every way that an operator meets: within ten seconds the facts name it and why.

Each test prints how long it took (``pytest -s``): from the break to the first answer of the status page's
JSON that has the problem's code, its subject and its reason.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.system.harness import ENVIRONMENT, RealFleet, free_port, wait_until

pytestmark = pytest.mark.fleet

SECONDS = 10.0
RUN = """\
strategy = "fedavg"
num_rounds = 100000
min_available_devices = {available}
quorum = {quorum}
grace_s = {grace_s}
[training]
learning_rate = 0.1
"""
# A program whose file system is full while a file is there.
WITHOUT_DISK = """\
import os, sys
real = os.statvfs
def statvfs(path):
    found = list(real(path))
    if os.path.exists({flag!r}):
        found[3] = found[4] = 0
    return os.statvfs_result(found)
os.statvfs = statvfs
from {module}.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
WRONG_CLOCK = """\
import sys, time
time.time = lambda: 1_600_000_000.0
from sedge_edge.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
FUNCTIONS = """\
def fit(parameters, examples, settings):
    {body}

def evaluate(parameters, examples):
    return 1.0, len(examples.targets), {{"accuracy": 0.5}}
"""


class Watched(RealFleet):
    """A fleet with a status page, and what its JSON says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.http = free_port()
        with (folder / "cloud.toml").open("a") as config:
            config.write(f'\n[http]\nlisten = "127.0.0.1:{self.http}"\n')

    def ask(self, path: str) -> object:
        """A part of the facts."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else None
        except OSError:
            return None
        finally:
            connection.close()

    def problem(self, code: str, subject: str) -> str | None:
        """The text of a problem; None while there is none."""
        found = self.ask("/api/problems")
        assert isinstance(found, list | None)
        texts = (p["text"] for p in found or () if (p["code"], p["subject"]) == (code, subject))
        return next(texts, None)

    def online(self) -> set[str]:
        """The devices that are online."""
        found = self.ask("/api/devices")
        assert isinstance(found, list | None)
        return {device["device"] for device in found or () if device["state"] == "online"}

    def closed(self) -> int:
        """How many rounds have closed."""
        found = self.ask("/api/runs/run")
        assert isinstance(found, dict | None)
        return 0 if found is None else int(found["closed_rounds"])

    def sees(self, what: str, code: str, subject: str, words: str, since: float) -> None:
        """The problem stands there, with this reason, within ten seconds of ``since``."""
        wait_until(lambda: self.problem(code, subject) is not None, SECONDS, f"{what} is seen")
        seconds, text = time.monotonic() - since, self.problem(code, subject) or ""
        print(f"\n| {what} | {seconds:.1f} s | `{code}` | {subject}: {text} |", end="")
        assert words in text
        assert seconds < SECONDS

    def heals(self, what: str, code: str, subject: str) -> None:
        """The problem goes away."""
        wait_until(lambda: self.problem(code, subject) is None, 60, f"{what} heals")

    def going(
        self, bundle: Path, devices: int, available: int, quorum: float, grace: float
    ) -> None:
        """Start the run, and let a round close."""
        wait_until(lambda: len(self.online()) == devices, 60, "the devices say hello")
        text = RUN.format(available=available, quorum=quorum, grace_s=grace)
        self.start_run(bundle, text)
        wait_until(lambda: self.closed() > 0, 60, "a round closes")

    def function(self, device: str, body: str) -> None:
        """Let a device train with a function of its own."""
        home = self.folder / device
        (home / "own_client.py").write_text(FUNCTIONS.format(body=body))
        with (home / "edge.toml").open("a") as config:
            config.write('\n[backend]\nname = "own_client:fit"\n')


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """A broker, and a coordinator's configuration with a status page."""
    fleet = Watched(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


def signalled(fleet: Watched, device: str, number: signal.Signals) -> float:
    """Send a signal to a device's agent; the time."""
    os.killpg(fleet.processes[device].pid, number)
    return time.monotonic()


def test_what_breaks_while_a_run_goes_on(watched: Watched, small_bundle: Path) -> None:
    watched.start_cloud()
    names = ["pi-1", "pi-2", "pi-3", "pi-4"]
    for seed, name in enumerate(names):
        watched.add_device(name, seed)
        watched.start_agent(name)
    watched.going(small_bundle, devices=4, available=3, quorum=1.0, grace=0)

    watched.kill("pi-2")
    since = time.monotonic()
    watched.sees("device killed", "device_lost", "pi-2", "is offline; round", since)
    watched.sees("round below quorum", "round_below_quorum", "run", "1 of ", since)
    watched.start_agent("pi-2")
    watched.heals("device killed", "device_lost", "pi-2")

    since = signalled(watched, "pi-3", signal.SIGSTOP)
    watched.sees("slow device", "device_slow", "pi-3", "is slow: the others trained in", since)
    signalled(watched, "pi-3", signal.SIGCONT)
    watched.heals("slow device", "device_slow", "pi-3")

    before = watched.closed()
    signalled(watched, "pi-4", signal.SIGSTOP)
    wait_until(lambda: watched.problem("device_slow", "pi-4") is not None, 60, "pi-4 is awaited")
    since = time.monotonic()
    watched.cloud("device", "revoke", "pi-4")
    watched.sees("revoked device", "device_revoked", "pi-4", "declined round", since)
    watched.kill("pi-4")
    wait_until(lambda: watched.closed() > before, 30, "the round goes on without it")

    watched.kill("broker")
    since = time.monotonic()
    watched.sees("broker down", "broker_down", "coordinator", "has no broker: ", since)
    watched.start_broker()
    watched.heals("broker down", "broker_down", "coordinator")

    watched.kill("pi-1")
    watched.kill("pi-2")
    since = time.monotonic()
    watched.sees("round below quorum again", "round_below_quorum", "run", "missing", since)

    watched.kill("cloud")
    since = time.monotonic()
    config = ["-m", "sedge_cloud", "-c", str(watched.folder / "cloud.toml")]
    while True:  # nobody serves the page now: the command line reads what is left
        words = [sys.executable, *config, "device", "list"]
        said = subprocess.run(words, capture_output=True, text=True, env=ENVIRONMENT, check=True)
        if "coordinator: is not running" in said.stdout:
            break
        assert time.monotonic() - since < SECONDS + 5
    print(f"\n| coordinator killed | {time.monotonic() - since:.1f} s | `coordinator_silent` | … |")


def test_devices_that_are_no_good(watched: Watched, small_bundle: Path) -> None:
    """Each from its start; five good ones beside them, so that rounds go on."""
    watched.start_cloud()
    good = [f"pi-{i}" for i in range(1, 6)]
    for seed, name in enumerate([*good, "full", "nan", "evil", "raises", "clock", "elsewhere"]):
        watched.add_device(name, seed)
    for name in (*good, "clock"):
        watched.start_agent(name)
    watched.going(small_bundle, devices=6, available=5, quorum=0.5, grace=2)
    home = watched.folder

    watched.kill("clock")
    shutil.rmtree(home / "clock" / "state")
    since = time.monotonic()
    watched.start_agent("clock", script=WRONG_CLOCK)
    watched.sees("wrong clock", "device_unheard", "clock", "start count 1600000000 is below", since)

    text = (home / "elsewhere" / "edge.toml").read_text()
    (home / "elsewhere" / "edge.toml").write_text(text.replace('fleet = "test"', 'fleet = "home"'))
    since = time.monotonic()
    watched.start_agent("elsewhere")
    watched.sees("wrong fleet name", "device_never", "elsewhere", "with this fleet's name", since)

    flag = home / "full-now"
    flag.touch()
    since = time.monotonic()
    script = WITHOUT_DISK.format(flag=str(flag), module="sedge_edge")
    watched.start_agent("full", script=script)
    watched.sees("device without disk", "device_waits", "full", "waits: disk full", since)

    with np.load(home / "nan" / "train.npz") as data:
        np.savez(home / "nan" / "train.npz", x=data["x"] * np.float32(np.nan), y=data["y"])
    since = time.monotonic()
    watched.start_agent("nan")
    watched.sees("NaN data", "device_declined", "nan", "", since)

    watched.function("raises", 'raise RuntimeError("the sensor is unplugged")')
    since = time.monotonic()
    watched.start_agent("raises")
    watched.sees("declining device", "device_declined", "raises", "the sensor is unplugged", since)

    body = "return [(p - 5).astype('float32') for p in parameters], len(examples.targets), {}"
    watched.function("evil", body)
    since = time.monotonic()
    watched.start_agent("evil")
    watched.sees("hostile updates", "device_distrusted", "evil", "unlike the others", since)


def test_a_coordinator_without_disk(watched: Watched, small_bundle: Path) -> None:
    flag = watched.folder / "full-now"
    config = str(watched.folder / "cloud.toml")
    script = WITHOUT_DISK.format(flag=str(flag), module="sedge_cloud")
    watched.start("cloud", [sys.executable, "-c", script, "-c", config, "serve"])
    for seed, name in enumerate(("pi-1", "pi-2")):
        watched.add_device(name, seed)
        watched.start_agent(name)
    watched.going(small_bundle, devices=2, available=2, quorum=1.0, grace=0)
    flag.touch()
    since = time.monotonic()
    watched.sees("coordinator disk full", "disk_full", "disk", "updates are refused", since)
    watched.sees(
        "… and what it says itself", "coordinator_error", "coordinator", "disk full", since
    )
    before = watched.closed()
    flag.unlink()
    wait_until(lambda: watched.closed() > before, 90, "the run goes on")
    watched.heals("coordinator disk full", "disk_full", "disk")
