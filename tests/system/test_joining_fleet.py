"""Joining by a token, with real processes: many devices, kills between any two steps, a stolen token."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
from tools.bench.parts.real_fleet import RealFleet

from sedge_cloud.store.opening import open_folder
from sedge_edge.asking import Asking
from sedge_edge.config import load_config
from sedge_protocol.host.enrolment import Token, parse_join_text
from sedge_protocol.host.mqtt import Connected, Disconnected, MqttLink, Received
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import Frame, Kind, seal
from sedge_protocol.wire.joining import key_name
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Joined, encode_body

pytestmark = pytest.mark.fleet


@pytest.fixture
def fleet(fleet: RealFleet) -> RealFleet:
    """Its coordinator reloads the broker by itself, as that of ``sedge-cloud up`` does."""
    fleet.reload_by(fleet.folder / "cloud.toml")
    return fleet


def wait_for(true: Callable[[], bool]) -> None:
    """Raises ``TimeoutError`` if it is not so within 30 s."""
    until = time.monotonic() + 30
    while not true():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.2)


def token(fleet: RealFleet, *words: str) -> str:
    """The line that ``device token add`` prints last."""
    return fleet.cloud("device", "token", "add", *words).splitlines()[-1]


def joining(fleet: RealFleet, line: str, name: str, *words: str) -> "subprocess.Popen[str]":
    """``sedge-edge join``, begun."""
    command = [sys.executable, "-m", "sedge_edge", "join", line, "--name", name, *words]
    out = () if "--out" in words else ("--out", str(fleet.folder / name))
    return subprocess.Popen(
        [*command, *out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def connects(fleet: RealFleet, name: str) -> bool:
    """Whether the broker lets the device in with the files that its join has written."""
    settings = load_config(fleet.folder / name / "edge.toml").broker_settings()
    link, until = MqttLink(settings, ()), time.monotonic() + 10
    try:
        while time.monotonic() < until:
            for event in link.step():
                if isinstance(event, Connected | Disconnected):
                    return isinstance(event, Connected)
            time.sleep(0.01)
    finally:
        link.close()
    return False


def test_a_token_admits_as_many_as_it_says(fleet: RealFleet) -> None:
    fleet.start_cloud()
    line = token(fleet, "--count", "3", "--tags", "site=lab", "--accept")
    began = [joining(fleet, line, f"pi-{number}") for number in range(3)]
    for process in began:
        status, said = ended(process)
        assert status == 0 and "Its tags: site=lab" in said, said
    status, said = ended(joining(fleet, line, "pi-3"))
    assert status == 5 and "used up: 3 devices have joined with it" in said
    for number in range(3):
        assert connects(fleet, f"pi-{number}")
        assert not (fleet.folder / f"pi-{number}" / "joining").exists()
    assert "pi-3 asked to join: the token is used up" in fleet.cloud("device", "list")


def test_it_is_pending_until_accepted_whatever_is_killed(fleet: RealFleet) -> None:
    """The coordinator is killed after the request, the device after each of its steps."""
    fleet.start_cloud()
    line = token(fleet)
    waiting = joining(fleet, line, "pi-1")
    wait_for(lambda: "pi-1: asks to join" in fleet.cloud("device", "list"))
    fleet.kill("cloud")
    waiting.send_signal(signal.SIGKILL)
    waiting.communicate()
    fleet.cloud("device", "accept", "pi-1")
    fleet.start_cloud()
    status, said = ended(joining(fleet, line, "pi-1"))
    assert status == 0, said
    # Killed after the secret was written: the same line ends the join, and asks for nothing new.
    secret = (fleet.folder / "pi-1" / "secret").read_text()
    assert connects(fleet, "pi-1")
    assert "--replace" in ended(joining(fleet, line, "pi-1"))[1]
    assert (fleet.folder / "pi-1" / "secret").read_text() == secret


def test_the_way_back_of_a_revoked_device(fleet: RealFleet) -> None:
    fleet.start_cloud()
    assert ended(joining(fleet, token(fleet, "--accept"), "pi-1"))[0] == 0
    fleet.cloud("device", "revoke", "pi-1")
    assert not connects(fleet, "pi-1")
    status, said = ended(joining(fleet, token(fleet, "--accept"), "pi-1", "--replace"))
    assert status == 5 and "token add --device pi-1" in said
    edge = fleet.folder / "pi-1" / "edge.toml"
    edge.write_text(edge.read_text().replace("train.npz", "mine.npz"))
    back = token(fleet, "--accept", "--device", "pi-1")
    assert ended(joining(fleet, back, "pi-1"))[0] == 2  # not without being told to
    status, said = ended(joining(fleet, back, "other", "--replace", "--out", str(edge.parent)))
    assert status == 0 and "new secret" in said
    assert connects(fleet, "pi-1") and "mine.npz" in edge.read_text()


def test_a_token_ends(fleet: RealFleet) -> None:
    """Expired, by the coordinator's clock, revoked, or of no fleet: one line each."""
    fleet.start_cloud()
    short, gone = token(fleet, "--expires", "1s"), token(fleet)
    name = parse_join_text(gone)
    assert isinstance(name, Token)
    fleet.cloud("device", "token", "revoke", name.token)
    status, said = ended(joining(fleet, gone, "pi-1"))
    assert status == 5 and f"does not know the token {name.token}" in said
    wait_for(lambda: "expired" in fleet.cloud("device", "token", "list"))
    status, said = ended(joining(fleet, short, "pi-2"))
    assert status == 5 and ("does not know" in said or "expired at" in said)
    acl = (fleet.folder / "broker-acl").read_text()
    assert name.token not in acl and "user coordinator-test" in acl
    status, said = ended(joining(fleet, gone[:-9], "pi-3"))
    assert status == 2 and "cut off or damaged" in said


class Thief:
    """Whoever has a token's line, and does with its account as they like."""

    def __init__(self, token: Token, *listens: str) -> None:
        self.token, self.asking = token, Asking(token, "thief", os.urandom(32))
        self.link, self.heard = MqttLink(self.asking.settings(None), listens), list[Received]()

    def run(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not done():
            self.heard += [event for event in self.link.step() if isinstance(event, Received)]
            time.sleep(0.01)


def test_what_a_stolen_token_can_do(fleet: RealFleet) -> None:
    """Against the shipped access list: it hears and reaches its own topics, and nothing else."""
    fleet.start_cloud()
    assert ended(joining(fleet, token(fleet, "--accept"), "pi-1"))[0] == 0
    victim = load_config(fleet.folder / "pi-1" / "edge.toml")
    line = token(fleet, "--count", "2")
    stolen = parse_join_text(line)
    assert isinstance(stolen, Token)
    thief = Thief(stolen, "#", topics.blob("test", bytes(16)), topics.down("test", "pi-1"))
    thief.run(10, lambda: thief.link.up)
    # Subscribe to others: what the coordinator says to a shard, to a device, and to all.
    password = (fleet.folder / "coordinator-password").read_text().strip()
    settings = victim.broker_settings()
    master = MqttLink(type(settings)(settings.url, "x", "coordinator-test", password), ("#",))
    for _ in range(200):
        master.step()
        time.sleep(0.01)
    for topic in (
        topics.blob("test", bytes(16)), topics.down("test", "pi-1"), topics.hint("test", "00"),
        topics.down("test", stolen.token),
    ):  # fmt: skip
        master.send(topic, b"to all")
    master.step()
    thief.run(2)
    assert {event.topic for event in thief.heard if event.payload == b"to all"} == {
        topics.down("test", stolen.token)
    }
    # Publish to others.
    heard: list[Received] = []
    for topic in (topics.up("test", "pi-1"), topics.down("test", "pi-1"),
                  topics.down("test", stolen.token), topics.blob("test", bytes(16))):  # fmt: skip
        thief.link.send(topic, b"of the thief")
        thief.run(0.5)
        heard += [e for e in master.step() if isinstance(e, Received)]
    assert not [event for event in heard if event.payload == b"of the thief"]
    # Replay a device's request, under another name or as it was: the device is asked for once.
    device = Asking(stolen, "pi-2", os.urandom(32))
    topic, bytes_ = device.question()
    keys = DeviceKeys.of(bytes.fromhex(stolen.key))
    thief.link.send(topic, bytes_)
    thief.run(2)
    other = Asking(stolen, "pi-9", bytes(32))
    body = other.question()[1][64:].replace(b"pi-9", b"pi-8")
    thief.link.send(topic, seal(Frame(Kind.JOIN, body, 1, 1), topic, keys.up))
    thief.link.send(topic, bytes_)
    thief.link.send(topic, seal(Frame(Kind.JOIN, b"\x80", 1, 1), topic, keys.up))
    thief.run(2)
    store = open_folder(fleet.folder / "state")
    try:
        assert [join.device for join in store.joins(["pending"])] == ["pi-2"]
    finally:
        store.close()
    # Forge the coordinator's answer: even a broker that lets it through does not make a device believe it.
    forged = Joined(key_name(device.point), "accepted", "pi-2", bytes(16))
    frame = Frame(Kind.JOINED, encode_body(forged), 1, 1)
    assert device.answer(seal(frame, device.down, keys.down)) is None
    # Take the name of a device in force.
    status, text = ended(joining(fleet, line, "pi-1", "--out", str(fleet.folder / "copy")))
    assert status == 5 and "there is a device pi-1 already" in text
    master.close()
    thief.link.close()
    assert connects(fleet, "pi-1")
