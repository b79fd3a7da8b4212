"""Joining by a token, with real processes: many devices, kills between any two steps, attacks."""

import os
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace

import pytest
from tools.bench import joining as bench
from tools.bench.joining import attacks, lets_in, run, settings_of, up
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.store.opening import open_folder
from sedge_edge.asking import Asking
from sedge_protocol.host.enrolment import Token, parse_join_text
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


def test_a_token_admits_as_many_as_it_says_and_no_attack_gets_in(
    fleet: RealFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a stolen token or a device's account: against the shipped access list."""
    monkeypatch.setattr(bench, "PASS_S", 0.5)
    fleet.start_cloud()
    line = token(fleet, "--count", "3", "--tags", "site=lab", "--accept")
    began = [joining(fleet, line, f"pi-{number}") for number in range(3)]
    for process in began:
        status, said = ended(process)
        assert status == 0 and "Its tags: site=lab" in said, said
    status, said = ended(joining(fleet, line, "pi-3"))
    assert status == 5 and "used up: 3 devices have joined with it" in said
    for number in range(3):
        assert lets_in(settings_of(fleet, f"pi-{number}"))
        assert not (fleet.folder / f"pi-{number}" / "joining").exists()
    assert "pi-3 asked to join: the token is used up" in fleet.cloud("device", "list")
    for what, repelled in attacks(fleet, line, token(fleet, "--count", "2")):
        assert repelled, what


def test_it_is_pending_until_accepted_whatever_is_killed(fleet: RealFleet) -> None:
    """The coordinator is killed after the request, the device after each of its steps."""
    fleet.start_cloud()
    line = token(fleet)
    waiting = joining(fleet, line, "pi-1")
    wait_until(lambda: "pi-1: asks to join" in fleet.cloud("device", "list"), 30, "it asks")
    fleet.kill("cloud")
    waiting.send_signal(signal.SIGKILL)
    waiting.communicate()
    fleet.cloud("device", "accept", "pi-1")
    fleet.start_cloud()
    status, said = ended(joining(fleet, line, "pi-1"))
    assert status == 0, said
    # Killed after the secret was written: the same line ends the join, and asks for nothing new.
    secret = (fleet.folder / "pi-1" / "secret").read_text()
    assert lets_in(settings_of(fleet, "pi-1"))
    assert "--replace" in ended(joining(fleet, line, "pi-1"))[1]
    assert (fleet.folder / "pi-1" / "secret").read_text() == secret


def test_the_way_back_of_a_revoked_device(fleet: RealFleet) -> None:
    fleet.start_cloud()
    assert ended(joining(fleet, token(fleet, "--accept"), "pi-1"))[0] == 0
    fleet.cloud("device", "revoke", "pi-1")
    assert not lets_in(settings_of(fleet, "pi-1"))
    status, said = ended(joining(fleet, token(fleet, "--accept"), "pi-1", "--replace"))
    assert status == 5 and "token add --device pi-1" in said
    edge = fleet.folder / "pi-1" / "edge.toml"
    edge.write_text(edge.read_text().replace("train.npz", "mine.npz"))
    back = token(fleet, "--accept", "--device", "pi-1")
    assert ended(joining(fleet, back, "pi-1"))[0] == 2  # not without being told to
    status, said = ended(joining(fleet, back, "other", "--replace", "--out", str(edge.parent)))
    assert status == 0 and "new secret" in said
    assert lets_in(settings_of(fleet, "pi-1")) and "mine.npz" in edge.read_text()


def test_a_token_ends(fleet: RealFleet) -> None:
    """Expired, by the coordinator's clock, revoked, or of no fleet: one line each."""
    fleet.start_cloud()
    short, gone = token(fleet, "--expires", "1s"), token(fleet)
    name = parse_join_text(gone)
    assert isinstance(name, Token)
    fleet.cloud("device", "token", "revoke", name.token)
    status, said = ended(joining(fleet, gone, "pi-1"))
    assert status == 5 and f"does not know the token {name.token}" in said
    wait_until(lambda: "expired" in fleet.cloud("device", "token", "list"), 30, "its end")
    status, said = ended(joining(fleet, short, "pi-2"))
    assert status == 5 and ("does not know" in said or "expired at" in said)
    acl = (fleet.folder / "broker-acl").read_text()
    assert name.token not in acl and "user coordinator-test" in acl
    status, said = ended(joining(fleet, gone[:-9], "pi-3"))
    assert status == 2 and "cut off or damaged" in said


def test_a_token_hears_its_own_topics_and_nothing_is_forged(fleet: RealFleet) -> None:
    fleet.start_cloud()
    stolen = parse_join_text(token(fleet, "--count", "2"))
    assert isinstance(stolen, Token)
    device = Asking(stolen, "pi-2", os.urandom(32))
    settings, shared = device.settings(None), topics.blob("test", bytes(16))
    link = up(settings, "#", shared)
    # Subscribe to others: what the coordinator says to a shard and to all.
    password = (fleet.folder / "coordinator-password").read_text().strip()
    master = up(replace(settings, username="coordinator-test", password=password))
    own = topics.down("test", stolen.token)
    for topic in (shared, topics.hint("test", "00"), own):
        master.send(topic, b"to all")
    run(master, 0.5, lambda event: False)
    assert {event.topic for event in run(link, 2, lambda event: False)} == {own}
    master.close()
    # Replay a device's request, under another name or as it was: the device is asked for once.
    topic, bytes_ = device.question()
    keys = DeviceKeys.of(bytes.fromhex(stolen.key))
    link.send(topic, bytes_)
    run(link, 2, lambda event: False)
    other = Asking(stolen, "pi-9", bytes(32))
    body = other.question()[1][64:].replace(b"pi-9", b"pi-8")
    link.send(topic, seal(Frame(Kind.JOIN, body, 1, 1), topic, keys.up))
    link.send(topic, bytes_)
    link.send(topic, seal(Frame(Kind.JOIN, b"\x80", 1, 1), topic, keys.up))
    run(link, 2, lambda event: False)
    with closing(open_folder(fleet.folder / "state")) as store:
        assert [join.device for join in store.joins(["pending"])] == ["pi-2"]
    # Forge the coordinator's answer: even a broker that lets it through does not make a device believe it.
    forged = Joined(key_name(device.point), "accepted", "pi-2", bytes(16))
    frame = Frame(Kind.JOINED, encode_body(forged), 1, 1)
    assert device.answer(seal(frame, device.down, keys.down)) is None
    link.close()
