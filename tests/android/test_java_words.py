"""What a person reads of the agent in Java is what the agent in Python says: both are told the same."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.edge.harness import SECRET, Harness
from tests.edge.java_core import JavaHarness, Jvm
from tests.protocol.driven import Driven, drive, settings
from tests.protocol.test_mqtt_hostile import FakeBroker

from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host import mqtt
from sedge_protocol.host.mqtt import MqttLink


@pytest.fixture
def pair(jvm: Jvm, tmp_path: Path) -> tuple[Harness, Harness]:
    """A device in Python and one in Java, each with a disk of its own."""
    return Harness(tmp_path / "python"), JavaHarness(jvm, tmp_path / "java")


@pytest.mark.parametrize(
    ("length", "end"), [(0, b""), (7, b""), (39, b""), (44, b""), (-1, b""), (-1, b"\xff")]
)
def test_a_damaged_journal_is_the_same_error_and_stays(
    length: int, end: bytes, pair: tuple[Harness, Harness]
) -> None:
    said: list[str] = []
    for harness in pair:
        path = harness.folder / "journal"
        path.write_bytes(damaged := path.read_bytes()[:length] + end)
        with pytest.raises(StorageError) as error:
            harness.start()
        said.append(str(error.value).replace(str(harness.folder), "FOLDER"))
        assert path.read_bytes() == damaged
        path.unlink()
        harness.agent = harness.start()
    assert said[0] == said[1]


EDGE = {
    "device": '"pi-1"', "fleet": '"test"', "secret_file": '"secret"', "state_dir": '"state"',
    "[broker]": "", "url": '"mqtt://127.0.0.1"', "[data]": "", "train": '"train.npz"',
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "secret"),
    [
        ({"device": None}, SECRET.hex()),
        ({"device": '"Pi"'}, SECRET.hex()),
        ({"fleet": '""'}, SECRET.hex()),
        ({"secret_file": None}, SECRET.hex()),
        ({"url": None}, SECRET.hex()),
        ({"url": '"http://127.0.0.1"'}, SECRET.hex()),
        ({"url": '"mqtt://me:mine@127.0.0.1"'}, SECRET.hex()),
        ({}, SECRET.hex()[2:]),
        ({}, "secret"),
    ],
)
def test_a_wrong_configuration_is_the_same_error(
    changes: dict[str, str | None], secret: str, jvm: Jvm, tmp_path: Path
) -> None:
    """But for the kinds of urls, of which Java has fewer."""
    lines = [
        key if key.startswith("[") else f"{key} = {value}"
        for key, value in {**EDGE, **changes}.items()
        if value is not None
    ]
    (tmp_path / "edge.toml").write_text("\n".join(lines))
    (tmp_path / "secret").write_text(secret)
    (tmp_path / "secret").chmod(0o600)
    np.savez(tmp_path / "train.npz", x=np.zeros((2, 1)), y=np.zeros(2, int))
    with pytest.raises(ConfigError) as error:
        load_config(tmp_path / "edge.toml")
    with pytest.raises(StorageError) as refused:
        jvm.call(0, ["config", tmp_path])
    said = str(refused.value)
    if changes.get("url"):
        assert said.partition(", expected")[0] == str(error.value).partition(", expected")[0]
    else:
        assert said == str(error.value)


# What a broker answers in MQTT 5 and in 3.1.1, and whether it then hangs up.
ANSWERS = [
    (b"\x20\x03\x00\x87\x00", b"\x20\x02\x00\x05", False),
    (b"\x20\x03\x00\x86\x00", b"\x20\x02\x00\x04", False),
    (b"", b"", True),
    pytest.param(b"", b"", False, marks=pytest.mark.slow),  # Java waits 10 s for an answer
]


@pytest.mark.parametrize(("new", "old", "hangs_up"), ANSWERS)
def test_a_broker_that_refuses_is_the_same_line(
    new: bytes, old: bytes, hangs_up: bool, jvm: Jvm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mqtt, "CONNECT_TIMEOUT_S", 0.2)
    said: list[str] = []
    java = partial(reason_in_java, jvm)
    asks: tuple[Callable[[str], str], ...] = reason_in_python, java
    for answer, ask in zip((new, old), asks, strict=True):
        broker = FakeBroker(answer, hangs_up=hangs_up)
        try:
            url = broker.settings.url
            said.append(ask(url).replace(url, "URL"))
        finally:
            broker.close()
    assert said[0] == said[1]


def test_a_broker_that_is_not_there_is_the_same_line(jvm: Jvm) -> None:
    url = "mqtt://127.0.0.1:1"
    assert reason_in_java(jvm, url) == reason_in_python(url)


def reason_in_python(url: str) -> str:
    driven = Driven(MqttLink(settings(url), ()))
    try:
        drive(lambda: bool(driven.losses()), driven)
        return driven.losses()[0].reason
    finally:
        driven.link.close()


def reason_in_java(jvm: Jvm, url: str) -> str:
    return bytes.fromhex(jvm.call(0, ["why", url])[1]).decode()
