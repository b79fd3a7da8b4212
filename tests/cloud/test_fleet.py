"""The fleet: who is enrolled, revoked, online, able, and whose topic it is."""

import logging
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, Device, a_hello, secret_of

from sedge_cloud.fleet import WHO_IS_THERE, Fleet
from sedge_cloud.ledger import Run
from sedge_cloud.store import DeviceRow
from sedge_protocol.effects import Effect, Note, Send
from sedge_protocol.errors import ConfigError, RemoteError
from sedge_protocol.messages import Hello, Message
from sedge_protocol.sparse import Compression
from sedge_protocol.topics import down, up


def row(name: str, revoked: bool = False, boot: int = 0) -> DeviceRow:
    """A device as the store has it."""
    return DeviceRow(name, secret_of(name), revoked, boot, None)


def read(found: list[Effect] | list[Send]) -> list[tuple[str, Message]]:
    """Who is sent what."""
    devices = {down(FLEET, name): Device(name) for name in ("a", "b", "c")}
    sends = [effect for effect in found if isinstance(effect, Send)]
    return [(devices[send.topic].name, devices[send.topic].read(send)) for send in sends]


@pytest.fixture
def fleet() -> Fleet:
    """Device a, and b, which is revoked."""
    fleet = Fleet(FLEET, 7)
    assert fleet.load([row("a"), row("b", revoked=True)]) == []
    return fleet


def test_only_who_is_new_is_called(fleet: Fleet) -> None:
    assert fleet.load([row("a"), row("b", revoked=True)]) == []
    found = fleet.load([row("a"), row("b", revoked=True), row("c")])
    assert read(found) == [("c", WHO_IS_THERE)]
    assert fleet.load([row("d", revoked=True)]) == []


def test_a_call_reaches_all_but_the_revoked(fleet: Fleet) -> None:
    fleet.load([row("a"), row("b", revoked=True), row("c")])
    assert read(fleet.call()) == [("a", WHO_IS_THERE), ("c", WHO_IS_THERE)]


def test_a_revoked_device_is_offline_at_once(fleet: Fleet) -> None:
    fleet["a"].online = True
    found = fleet.load([row("a", revoked=True), row("b", revoked=True)])
    assert found == [Note(logging.WARNING, "device a is revoked")] and not fleet["a"].online
    assert fleet.load([row("a", revoked=True)]) == []  # said once
    with pytest.raises(RemoteError, match="device 'a' is revoked"):
        fleet.sender(up(FLEET, "a"))


def test_loading_keeps_what_this_process_knows_better(fleet: Fleet) -> None:
    device = fleet["a"]
    device.row = msgspec.structs.replace(device.row, boot=9)
    fleet.load([row("a", boot=3)])
    assert fleet["a"] is device and fleet["a"].row.boot == 9


def test_whose_topic_it_is(fleet: Fleet) -> None:
    assert fleet.sender(up(FLEET, "a")) is fleet["a"]
    for topic, text in {
        up(FLEET, "b"): "device 'b' is revoked",
        up(FLEET, "x"): "device 'x' is not enrolled",
        down(FLEET, "a"): "is not a device's up topic",
        f"sedge/1/{FLEET}/device/a/up/": "is not a device's up topic",
        f"sedge/2/{FLEET}/device/a/up": "is not a device's up topic",
        "": "is not a device's up topic",
    }.items():
        with pytest.raises(RemoteError, match=text):
            fleet.sender(topic)


def test_nobody_is_there_without_a_link(fleet: Fleet) -> None:
    fleet["a"].online = True
    fleet.lose()
    assert not fleet["a"].online


def test_a_damaged_secret_is_an_error(fleet: Fleet) -> None:
    with pytest.raises(ConfigError, match="secret: found '5 bytes', expected 32 bytes"):
        fleet.load([DeviceRow("c", b"short", False, 0, None)])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run for onnxruntime."""
    return Cloud(tmp_path_factory.mktemp("fleet")).core.runs[RUN]


@pytest.mark.parametrize(
    ("hello", "compression", "able"),
    [
        (a_hello(), Compression.ZSTD, True),
        (a_hello(), Compression.ZLIB, False),
        (a_hello(backends=("executorch",)), Compression.ZSTD, False),
        (a_hello(backends=("executorch", "onnxruntime")), Compression.ZSTD, True),
        (a_hello(backends=()), Compression.ZSTD, False),
        (Hello(bytes(16), "x", ("onnxruntime",), ()), Compression.ZSTD, False),
    ],
)
def test_who_is_able(
    run: Run, fleet: Fleet, hello: Hello, compression: Compression, able: bool
) -> None:
    codec = msgspec.structs.replace(CONFIG.codec, compression=compression)
    run.config = msgspec.structs.replace(CONFIG, codec=codec)
    fleet["a"].hello = hello
    assert fleet.able(run) == []
    fleet["a"].online = True
    assert fleet.able(run) == (["a"] if able else [])
    fleet["a"].hello = None
    assert fleet.able(run) == []


def test_the_able_are_sorted(run: Run, tmp_path: Path) -> None:
    run.config = CONFIG
    fleet = Fleet(FLEET, 1)
    fleet.load([row("c"), row("a"), row("b")])
    for name in "abc":
        fleet[name].hello, fleet[name].online = a_hello(), True
    assert fleet.able(run) == ["a", "b", "c"]
