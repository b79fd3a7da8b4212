"""Keys against a plain HKDF, which is itself held against RFC 5869."""

import pytest

from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.joining import Agreement
from sedge_protocol.wire.keys import DeviceKeys, parse_secret

SECRET = bytes(range(32))


def test_keys_do_not_show() -> None:
    keys = DeviceKeys.of(SECRET)
    assert repr(keys) == str(keys) == "DeviceKeys()"
    assert repr(Agreement(SECRET)) == "Agreement()"


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_a_secret_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ConfigError, match=f"{length} bytes"):
        DeviceKeys.of(bytes(length))


@pytest.mark.parametrize("text", [SECRET.hex(), SECRET.hex().upper(), f"\n {SECRET.hex()} \n"])
def test_a_secret_is_read(text: str) -> None:
    assert parse_secret(text, "secret file") == SECRET


@pytest.mark.parametrize(
    "text", ["", "xyz", SECRET.hex()[:-1], SECRET.hex()[:-2], SECRET.hex() * 2]
)
def test_text_that_is_no_secret_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="64 hex digits") as refusal:
        parse_secret(text, "secret file")
    assert str(refusal.value).startswith("secret file: ")
    assert not text or text not in str(refusal.value)
