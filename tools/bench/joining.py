"""Lets devices join with one token, then attacks the shipped broker and coordinator.

A real Mosquitto with the files that ``sedge-cloud init`` wrote, a real ``sedge-cloud serve``, and
``--devices`` real ``sedge-edge join`` commands, a few at a time, run on this machine. Starting Python takes
most of the time. Each device then connects with its own files. The attacker has, in turn, nothing, a token,
a device's files, and recorded frames. The coordinator's own account subscribes to everything, which shows
what the broker forwards.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from tools.bench.harness import Figure, Result, at_least, bench
from tools.bench.parts.real_fleet import RealFleet

from sedge_cloud.broker.certificates import Authority
from sedge_cloud.store.opening import open_folder
from sedge_edge.asking import Asking
from sedge_edge.config import load_config
from sedge_protocol.host.enrolment import Token, parse_join_text
from sedge_protocol.host.mqtt import BrokerSettings, Connected, Disconnected, MqttLink, Received
from sedge_protocol.host.tls import client_pem
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.peer import Peer

FLEET = "test"  # the fleet's name in ``RealFleet``
WAIT_S, PASS_S = 15.0, 2.0


def serving(folder: Path, *, certificates: bool = False) -> RealFleet:
    """Start a fleet whose coordinator makes the broker reload its files, as under ``sedge-cloud up``."""
    fleet = RealFleet(folder, certificates=certificates)
    fleet.reload_by(folder / "cloud.toml")
    fleet.start_cloud()
    return fleet


def join(fleet: RealFleet, line: str, name: str, folder: str = "") -> str:
    """Run ``sedge-edge join`` as a new device. Returns its error, or "" if it has joined."""
    words = [
        "join",
        line,
        "--timeout-s",
        "60",
        "--name",
        name,
        "--out",
        str(fleet.folder / (folder or name)),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "sedge_edge", *words], capture_output=True, text=True, check=False
    )
    return done.stderr.strip() if done.returncode else ""


def settings_of(fleet: RealFleet, name: str) -> BrokerSettings:
    """Return a device's broker account."""
    return load_config(fleet.folder / name / "edge.toml").broker_settings()


def run(link: MqttLink, seconds: float, ends: Callable[[object], bool]) -> list[Received]:
    """Return the messages that a link receives.

    Stops after ``seconds``, or after the first event for which ``ends`` is true.
    """
    heard, until = list[Received](), time.monotonic() + seconds
    while time.monotonic() < until:
        for event in link.step():
            if isinstance(event, Received):
                heard.append(event)
            if ends(event):
                return heard
        time.sleep(0.01)
    return heard


def lets_in(settings: BrokerSettings) -> bool:
    """Return True if the broker accepts an account."""
    link = MqttLink(settings, ())
    try:
        run(link, WAIT_S, lambda event: isinstance(event, Connected | Disconnected))
        return link.up
    finally:
        link.close()


def refusal(settings: BrokerSettings) -> str:
    """Return why the broker rejects an account, in the words of a device's log, or "" if it does not."""
    link, said = MqttLink(settings, ()), list[str]()

    def ends(event: object) -> bool:
        if isinstance(event, Disconnected):
            said.append(event.reason)
        return isinstance(event, Connected | Disconnected)

    run(link, WAIT_S, ends)
    link.close()
    return "".join(said)


def up(settings: BrokerSettings, *listens: str) -> MqttLink:
    """Open a link that subscribes to these topics, and wait until it is connected."""
    link = MqttLink(settings, listens)
    run(link, WAIT_S, lambda event: isinstance(event, Connected))
    run(link, 0.5, lambda event: False)
    return link


def passes(sender: MqttLink, topic: str, receiver: MqttLink) -> bool:
    """Return True if a message that ``sender`` sends to a topic reaches ``receiver``."""
    payload = f"marked {time.monotonic_ns()}".encode()
    sender.send(topic, payload)
    for _ in range(int(PASS_S / 0.1)):
        sender.step()
        if any(event.payload == payload for event in run(receiver, 0.1, lambda event: False)):
            return True
    return False


def attacks(fleet: RealFleet, used: str, line: str) -> Iterator[tuple[str, bool]]:
    """Try every attack. Yields each attack and whether it was repelled.

    The fleet has pi-0, pi-1 and pi-2. The token in ``used`` is used up, the one in ``line`` is valid.
    """
    one, other = settings_of(fleet, "pi-0"), topics.up(FLEET, "pi-1")
    password = (fleet.folder / "coordinator-password").read_text().strip()
    account, token = replace(one, username=f"coordinator-{FLEET}"), parse_join_text(line)
    assert isinstance(token, Token)
    stolen = Asking(token, "thief", bytes(range(32))).settings(one.ca_file)
    guessed = replace(one, password="00" * 32)
    yield "connect without an account", not lets_in(replace(one, username=None, password=None))
    yield "connect as a device with a guessed password", not lets_in(guessed)
    yield "connect as the coordinator with a device's password", not lets_in(account)
    master = up(replace(account, password=password), "#")
    if one.client_pem is not None:
        yield from with_other_certificates(fleet, "pi-0")
    for who, settings in (("a token's", stolen), ("a device's", one)):
        thief, told = up(settings, "#", topics.down(FLEET, "pi-1")), topics.down(FLEET, "pi-1")
        for what, topic in (
            ("send as another device", other),
            ("send as the coordinator to another device", told),
            ("send a model to all devices", topics.blob(FLEET, bytes(16))),
            ("send a hint to a shard of devices", topics.hint(FLEET, "00")),
        ):
            yield f"{what}, with {who} account", not passes(thief, topic, master)
        yield (
            f"read what another device receives, with {who} account",
            not passes(master, told, thief),
        )
        yield (
            f"read what another device sends, with {who} account",
            not passes(master, other, thief),
        )
        # Permitted actions succeed, so the attempts above did not fail for lack of a connection.
        name = settings.username or ""
        assert passes(thief, topics.up(FLEET, name), master)
        assert passes(master, topics.down(FLEET, name), thief)
        thief.close()
    yield from forgeries(fleet, master)
    master.close()
    yield "join with a used token", "is used up" in join(fleet, used, "pi-x")
    yield (
        "join under an id that is taken",
        "there is a device pi-1" in join(fleet, line, "pi-1", "copy"),
    )
    fleet.cloud("device", "token", "revoke", token.token)
    yield "connect with a revoked token", not lets_in(stolen)
    fleet.cloud("device", "revoke", "pi-2")
    yield "connect as a revoked device", not lets_in(settings_of(fleet, "pi-2"))


def with_other_certificates(fleet: RealFleet, name: str) -> Iterator[tuple[str, bool]]:
    """Connect with a device's password but without its valid certificate, to a broker that requires one."""
    good = settings_of(fleet, name)
    secret = load_config(fleet.folder / name / "edge.toml").secret()
    plain = good.url.replace("mqtts:", "mqtt:")
    key, own = ((fleet.folder / file).read_text() for file in ("ca.key", "ca.pem"))
    now = time.time()

    def showing(authority: Authority, until: float) -> BrokerSettings:
        row = authority.certify(name, secret, until)
        return replace(good, client_pem=client_pem(secret, row.der))

    ours, other = Authority.read(key, own), Authority.made(FLEET)
    for what, settings, reason in (
        ("without a certificate", replace(good, client_pem=None), "it requires a certificate"),
        ("with an expired one", showing(ours, now - 60), "our certificate has expired"),
        (
            "with one from another authority of the same name",
            showing(other, now + 600),
            "by another authority",
        ),
        ("without TLS", replace(good, url=plain, ca_file=None, client_pem=None), "expect TLS"),
    ):
        yield f"connect as a device {what}", reason in refusal(settings)
    assert not refusal(showing(ours, now + 600))  # a valid certificate is accepted


def forgeries(fleet: RealFleet, master: MqttLink) -> Iterator[tuple[str, bool]]:
    """Send frames from an account that may send anything, as if the broker itself were compromised."""
    keys, topic = load_config(fleet.folder / "pi-0" / "edge.toml").keys(), topics.up(FLEET, "pi-1")
    hello = Hello(bytes(16), "forged", versions=VERSIONS)
    own = Peer(topics.up(FLEET, "pi-0"), keys.up, keys.down, 1, 0).seal(hello)
    for what, payload in (
        ("random bytes", os.urandom(64)),
        ("another device's HELLO", own),
        ("a HELLO under another device's key", Peer(topic, keys.up, keys.down, 1, 0).seal(hello)),
    ):
        before = hellos(fleet)
        master.send(topic, payload)
        run(master, PASS_S, lambda event: False)
        yield f"{what} on a device's topic, bypassing the broker", hellos(fleet) == before


def hellos(fleet: RealFleet) -> list[bytes | None]:
    """Return the last HELLO that the coordinator has recorded from each device."""
    store = open_folder(fleet.folder / "state")
    try:
        return [row.hello for row in store.devices()]
    finally:
        store.close()


def figures(found: Result) -> list[Figure]:
    """Return a figure for the joins, then one for each attack."""
    joined = f"{found['joined']} of {found['devices']}"
    minutes = (
        f"{found['seconds'] / 60:.1f} min, with 1 command on the coordinator and 1 on each device"
    )
    every = at_least(found["devices"], found["joined"])
    rows = [
        Figure("devices that joined with one token and connect", f"{joined} in {minutes}", (every,))
    ]
    return rows + [
        Figure(what, "refused" if refused else "let through", (("refused", refused),))
        for what, refused in found["attacks"].items()
    ]


@bench("Joining with one token, and a list of attacks", figures)
def measure(devices: int = 50, at_once: int = 4, certificates: int = 0) -> Result:
    """Let this many devices join, at most ``at_once`` at a time; then try every attack.

    If ``certificates`` is 1, the broker is set up by ``init --client-certificates``.
    """
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        fleet = serving(Path(name), certificates=bool(certificates))
        try:
            begun = time.monotonic()
            add = ("device", "token", "add", "--expires", "1h")
            used = fleet.cloud(*add, "--count", str(devices), "--accept").splitlines()[-1]
            names = [f"pi-{number}" for number in range(devices)]
            with ThreadPoolExecutor(at_once) as pool:
                refused = [*pool.map(partial(join, fleet, used), names)]
            seconds = time.monotonic() - begun
            joined = sum(
                not why and lets_in(settings_of(fleet, n))
                for n, why in zip(names, refused, strict=True)
            )
            line = fleet.cloud(*add, "--count", "2").splitlines()[-1]
            tried = dict(attacks(fleet, used, line))
        finally:
            fleet.close()
    return {"devices": devices, "joined": joined, "seconds": seconds, "attacks": tried}
