"""The hello: said until it is answered, and told when nobody does."""

from pathlib import Path

import pytest
from tests.edge.harness import DEVICE, FLEET, MAX_PACKET, UP, Harness, MakeDevice, only

from sedge_edge.agent import AgentEffect
from sedge_edge.rounds.handshake import HINT_EVERY_S, HINTS, WARN_AFTER_HELLOS
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.frame import VERSIONS
from sedge_protocol.wire.messages import Hello, Welcome
from sedge_protocol.wire.reconnect import HELLOS_A_SECOND
from sedge_protocol.wire.topics import hint, shard_of
from sedge_protocol.wire.transfer import RETRY_MAX_S, SILENCE_S

pytestmark = pytest.mark.both_cores

NOBODY = (
    f"no coordinator answers on {UP}: is one running that speaks protocol version "
    + ", ".join(map(str, VERSIONS))
)
ACCOUNT = (
    ", and does the broker know this connection as this device, by its user name or certificate"
)


@pytest.fixture
def device(make_device: MakeDevice, tmp_path: Path) -> Harness:
    """Not connected yet."""
    return make_device(tmp_path)


def nonces(device: Harness, effects: list[AgentEffect]) -> list[bytes]:
    """Of the hellos among effects, which send nothing else."""
    sent = device.messages(effects)
    hellos = [message.nonce for message in sent if isinstance(message, Hello)]
    assert len(hellos) == len(sent)
    return hellos


def noted(effects: list[AgentEffect]) -> list[tuple[int, str]]:
    return [(note.level, note.text) for note in only(effects, Note)]


def due(device: Harness) -> float:
    at = device.agent.timer()
    assert at is not None
    return at


def test_it_is_said_until_it_is_welcomed(device: Harness) -> None:
    agent, said = device.agent, list[bytes]()
    assert agent.timer() is None
    effects = agent.connected(device.now, MAX_PACKET)
    for _ in range(4):
        said += nonces(device, effects)
        assert SILENCE_S < due(device) - device.now <= SILENCE_S + RETRY_MAX_S
        assert not agent.welcomed and agent.poll(due(device) - 0.1) == []
        device.now = due(device)
        effects = agent.poll(device.now)
    assert len(said) == 4 and len(set(said)) == 1
    welcome = Welcome(said[0], "1", VERSIONS)
    assert noted(device.tell(welcome)) == [(20, "welcomed by coordinator 1")]
    assert agent.welcomed and agent.timer() is None
    assert device.tell(welcome) == []  # said twice
    # A coordinator that has just started calls everyone; so it is said again.
    assert len(nonces(device, device.tell(Welcome(bytes(16), "1", VERSIONS)))) == 1
    assert not agent.welcomed


def test_who_is_not_answered_says_so_once_and_doubts_its_account_until_it_was(
    device: Harness,
) -> None:
    for text in (NOBODY + ACCOUNT, NOBODY):
        device.agent.will()
        effects = device.agent.connected(device.now, MAX_PACKET)
        hellos, told = nonces(device, effects), list[tuple[int, tuple[int, str]]]()
        while len(hellos) < 3 * WARN_AFTER_HELLOS:
            device.now = due(device)
            effects = device.agent.poll(device.now)
            hellos += nonces(device, effects)
            told += [(len(hellos), note) for note in noted(effects)]
        assert told == [(WARN_AFTER_HELLOS, (30, f"{text}?"))]
        device.tell(Welcome(hellos[0], "1", VERSIONS))
        device.agent.disconnected()


def test_another_of_our_name_is_told_once_and_not_answered(device: Harness) -> None:
    """Two that answered each other's welcomes with hellos would do so at the speed of the link."""
    foreign = Welcome(b"f" * 16, "1", VERSIONS)
    device.connect()
    for _ in range(2):
        device.agent.disconnected()
        device.agent.will()
        (nonce,) = nonces(device, device.agent.connected(device.now, MAX_PACKET))
        assert device.tell(foreign) == []  # perhaps to the last connection's hello
        device.tell(Welcome(nonce, "1", VERSIONS))
        words = (
            "the coordinator welcomes another process under this device's name: is a copy of its "
            "state in use elsewhere? Only one of them can take part"
        )
        assert noted(device.tell(foreign)) == [(30, words)]
        assert device.tell(foreign) == [] and device.agent.welcomed


def test_hints_are_answered_soon_and_not_often(device: Harness) -> None:
    """Whoever may publish on a shard's topic can ask: no call is lost, and nobody is made to chatter."""
    device.pump(device.connect())
    begun, said, step = device.now, list[float](), 2.0
    while device.now < begun + 1000.0:
        effects = device.agent.receive(hint(FLEET, shard_of(DEVICE)), b"", device.now)
        for nonce in nonces(device, [*effects, *device.agent.poll(device.now)]):
            device.tell(Welcome(nonce, "1", VERSIONS, devices=400))
            said.append(device.now - begun)
        device.now += step
    assert max(said[:HINTS]) < HINTS * (400 / HELLOS_A_SECOND + step)
    waits = [later - first for first, later in zip(said[:-HINTS], said[HINTS:], strict=True)]
    assert min(waits) >= HINTS * HINT_EVERY_S
    assert len(said) >= 1000 // HINT_EVERY_S
