"""Keys against a plain HKDF, which is itself held against RFC 5869."""

import hashlib
import hmac

import pytest

from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.keys import DeviceKeys, derive, parse_secret

SECRET = bytes(range(32))


def hkdf(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    """RFC 5869, section 2, as it is written there."""
    extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
    block, output, counter = b"", b"", 0
    while len(output) < length:
        counter += 1
        block = hmac.new(extracted, block + info + bytes([counter]), hashlib.sha256).digest()
        output += block
    return output[:length]


def test_the_twin_is_right() -> None:
    """RFC 5869, test cases 1 and 3 (the one with an empty salt)."""
    first = hkdf(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert first.hex().startswith(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf"
    )
    third = hkdf(b"\x0b" * 22, b"", b"", 42)
    assert third.hex().startswith(
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    )


@pytest.mark.parametrize("purpose", ["up", "down", "mqtt password"])
def test_derivation_is_hkdf(purpose: str) -> None:
    assert derive(SECRET, purpose) == hkdf(SECRET, b"", f"sedge/1 {purpose}".encode(), 32)


def test_every_purpose_has_its_own_key() -> None:
    keys = DeviceKeys.of(SECRET)
    assert keys.up == derive(SECRET, "up")
    assert keys.down == derive(SECRET, "down")
    assert keys.password == derive(SECRET, "mqtt password").hex()
    assert len({keys.up, keys.down, bytes.fromhex(keys.password), SECRET}) == 4


def test_one_bit_of_the_secret_changes_every_key() -> None:
    other = DeviceKeys.of(bytes([SECRET[0] ^ 1]) + SECRET[1:])
    keys = DeviceKeys.of(SECRET)
    assert keys.up != other.up
    assert keys.down != other.down
    assert keys.password != other.password


def test_keys_do_not_show() -> None:
    keys = DeviceKeys.of(SECRET)
    for text in (repr(keys), str(keys)):
        assert keys.password not in text
        assert repr(keys.up) not in text


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
