"""The strict TOML loader: every way a file can be wrong is one ConfigError that names the place."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from sedge_protocol.errors import ConfigError
from sedge_protocol.host.toml import load, load_text


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Broker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: str
    port: Annotated[int, Meta(ge=1, le=65535)] = 1883
    ca_file: Path | None = None
    delay_s: Annotated[float, Meta(gt=0)] = 1.0
    level: Literal["info", "debug"] = "info"
    colour: Colour = Colour.RED
    workers: int | Literal["auto"] = "auto"
    name: Annotated[str, Meta(max_length=4)] = ""
    ports: tuple[int, ...] = ()
    tls: bool = False


class Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    broker: Broker
    brokers: dict[str, Broker] = {}
    spare: list[Broker] = []


VALID = '[broker]\nurl = "mqtt://x"\n'


def test_a_fitting_file_is_the_struct(tmp_path: Path) -> None:
    path = tmp_path / "program.toml"
    path.write_text(
        VALID
        + 'delay_s = 2\nca_file = "ca.pem"\ncolour = "blue"\n[brokers.b]\nurl="y"\n[[spare]]\nurl="z"'
    )
    expected = Broker("mqtt://x", ca_file=Path("ca.pem"), delay_s=2.0, colour=Colour.BLUE)
    assert load(path, Program) == Program(expected, {"b": Broker("y")}, [Broker("z")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "broker: missing, expected a table"),
        ("broker = 1", "broker: found 1, expected a table"),
        ("[broker]", "broker.url: missing, expected a string"),
        ("[broker]\nurl = 1", "broker.url: found 1, expected a string"),
        (VALID + "port = 0", "broker.port: found 0, expected a whole number >= 1"),
        (VALID + "port = 65536", "broker.port: found 65536, expected a whole number <= 65535"),
        (VALID + "port = true", "broker.port: found True, expected a whole number"),
        (VALID + "port = 1.0", "broker.port: found 1.0, expected a whole number"),
        (VALID + 'port = "1"', "broker.port: found '1', expected a whole number"),
        (VALID + "tls = 1", "broker.tls: found 1, expected true or false"),
        (VALID + "ca_file = 1", "broker.ca_file: found 1, expected a string"),
        (VALID + "delay_s = 0", "broker.delay_s: found 0, expected a number > 0.0"),
        (VALID + "delay_s = inf", "broker.delay_s: found inf, expected a finite number"),
        (VALID + "delay_s = nan", "broker.delay_s: found nan, expected a finite number"),
        (VALID + 'level = "loud"', "broker.level: found 'loud', expected one of 'debug', 'info'"),
        (VALID + 'colour = "pink"', "broker.colour: found 'pink', expected one of 'red', 'blue'"),
        (VALID + "workers = 1.5", "broker.workers: found 1.5, expected a whole number or a string"),
        (
            VALID + 'workers = "x"',
            "broker.workers: found 'x', expected a whole number or one of 'auto'",
        ),
        (VALID + 'name = "abcde"', "broker.name: found 'abcde', expected a string of length <= 4"),
        (VALID + 'ports = [1, "a"]', "broker.ports[1]: found 'a', expected a whole number"),
        (VALID + "ports = 1", "broker.ports: found 1, expected an array"),
        (VALID + "ulr = 1", "broker.ulr: unknown key, expected 'url'?"),
        ("brokr = 1\n" + VALID, "brokr: unknown key, expected 'broker'?"),
        ("zzz = 1\n" + VALID, "zzz: unknown key, expected one of broker, brokers, spare"),
        (
            VALID + '[brokers.good]\nurl = "a"\n[brokers.bad]\nurl = "b"\nprt = 1',
            "brokers.bad.prt: unknown key, expected 'port'?",
        ),
        (VALID + "[brokers.bad]\nurl = 7", "brokers.bad.url: found 7, expected a string"),
        (VALID + "[brokers]\nbad = 7", "brokers.bad: found 7, expected a table"),
        (VALID + '[[spare]]\nurl = "a"\n[[spare]]', "spare[1].url: missing, expected a string"),
        (VALID + "[[spare]]\nurl = 3", "spare[0].url: found 3, expected a string"),
        ("[broker", "end of document: Expected ']'"),
        ("a = 1\nb = ]", "line 2, column 5: Invalid value, expected valid TOML"),
        ("a = 1\na = 2\n\n", "line 2, column 6: Cannot overwrite a value, expected valid TOML"),
    ],
)
def test_a_wrong_text_names_key_found_and_expected(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_text(text, Program, "program.toml")
    assert str(error.value).startswith(f"program.toml: {message}")
    assert "\n" not in str(error.value)


def test_a_missing_file_and_a_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "program.toml"
    with pytest.raises(ConfigError, match=r"program.toml: file: No such file or directory"):
        load(path, Program)
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path, Program)
    path.write_bytes(b"a = '\xff'")
    with pytest.raises(ConfigError, match="a byte that is not UTF-8 at 5"):
        load(path, Program)
