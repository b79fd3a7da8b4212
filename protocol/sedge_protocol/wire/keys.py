"""Derives a device's keys from its secret.

Each direction has its own MAC key, so a frame cannot be replayed to its sender. The password for the broker
is derived as well, so a device has exactly one secret. HKDF-SHA256 (RFC 5869) has an empty salt, as the
secret is 32 uniformly random bytes.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from sedge_protocol.errors import ConfigError

SECRET_BYTES = 32


def derive(secret: bytes, purpose: str) -> bytes:
    """Derive 32 bytes for one purpose, by HKDF-SHA256 with ``info = "sedge/1 " + purpose``."""
    extracted = hmac.digest(bytes(32), secret, hashlib.sha256)
    return hmac.digest(extracted, f"sedge/1 {purpose}".encode() + b"\x01", hashlib.sha256)


@dataclass(frozen=True)
class DeviceKeys:
    """The keys of one device.

    ``up`` authenticates frames that it sends, and ``down`` frames that it receives.
    """

    up: bytes = field(repr=False)
    down: bytes = field(repr=False)
    password: str = field(repr=False)

    @property
    def fingerprint(self) -> bytes:
        """Return a value that identifies these keys and reveals nothing about them."""
        return hashlib.sha256(self.up).digest()[:16]

    @classmethod
    def of(cls, secret: bytes) -> "DeviceKeys":
        """Derive all keys of a device. Raises ``ConfigError`` for a secret that is not 32 bytes."""
        if len(secret) != SECRET_BYTES:
            raise ConfigError("secret", f"{len(secret)} bytes", f"{SECRET_BYTES} bytes")
        password = derive(secret, "mqtt password").hex()
        return cls(derive(secret, "up"), derive(secret, "down"), password)


def parse_secret(text: str, where: str) -> bytes:
    """Parse a secret of 64 hexadecimal digits. Raises ``ConfigError``, which never shows the digits."""
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        raise ConfigError("secret", "not a hexadecimal number", "64 hex digits", where) from None
    if len(secret) != SECRET_BYTES:
        raise ConfigError("secret", f"{len(secret)} bytes", "64 hex digits", where)
    return secret
