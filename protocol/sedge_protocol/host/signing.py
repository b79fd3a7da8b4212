"""Stores Ed25519 keys (RFC 8032) in files, signs and verifies, using the library ``cryptography``.

The library is imported only when a key is used: an agent without pinned keys does not load it.
"""

import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sedge_protocol.errors import ConfigError, NotInstalled
from sedge_protocol.host.disk import opened, translated, write_at
from sedge_protocol.host.toml import named_text
from sedge_protocol.wire.policy import HEAD_BYTES, PUBLIC_BYTES, Policy, Sealed, key_id
from sedge_protocol.wire.signing_keys import SigningKeys, Verify, replacement

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_EXPECTED = "an Ed25519 key in PEM, without a password"


class TrustConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[trust]: the public keys, one of which must have signed a run's policy (docs/security.md).

    A device with such keys accepts no order without such a policy (pip install 'sedge-fl[signed]'). The
    coordinator passes its keys on to new devices, and starts no run without a signature.
    """

    keys: tuple[str, ...] = ()
    """Public keys, 64 hex digits each, as `sedge-cloud key show` prints them; by default, no signature is
    required."""


def new_key(path: Path) -> str:
    """Write a new private key that only its owner can read. Returns its public key as hex digits.

    Raises ``ConfigError`` if the file already exists, and ``StorageError`` if the disk fails.
    """
    require_library("key new")
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )

    key = Ed25519PrivateKey.generate()
    if path.exists():
        raise ConfigError("key new", str(path), "a file that does not exist yet")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with (
        translated("write a key to", path),
        opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor,
    ):
        write_at(descriptor, pem, 0)
    return public_hex(key)


def read_key(path: Path) -> "Ed25519PrivateKey":
    """Read the private key in a PEM file, which openssl may have made. Raises ``ConfigError``."""
    require_library("--key")
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    text = named_text(path, "--key")
    try:
        key = load_pem_private_key(text.encode(), None)
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
    ):  # the library's messages must not reveal the key
        raise ConfigError("--key", str(path), _EXPECTED) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("--key", f"{path} ({type(key).__name__})", _EXPECTED)
    return key


def public_hex(key: "Ed25519PrivateKey") -> str:
    """Return the public key as 64 hex digits, as used in [trust] in edge.toml and cloud.toml."""
    return key.public_key().public_bytes_raw().hex()


def sign(policy: Policy, key: "Ed25519PrivateKey") -> bytes:
    """Sign and seal a policy. Raises ``PolicyError`` if it is too large for an order."""
    signed = policy.signed
    return Sealed(key_id(bytes.fromhex(public_hex(key))), key.sign(signed), signed).bytes()


def replace_key(old: Path, new: Path) -> Path:
    """Write the chain of statements that proves that the key in ``new`` replaces the key in ``old``.

    It is the chain next to ``old``, extended by a statement that the old key signs. Returns the new chain's
    path, next to ``new``. Raises ``ConfigError`` and ``StorageError``.
    """
    before, after = read_key(old), bytes.fromhex(public_hex(read_key(new)))
    name = key_id(bytes.fromhex(public_hex(before)))
    if name == key_id(after):
        raise ConfigError("key replace", str(new), "a key other than the one that it replaces")
    statement = name + before.sign(replacement(after)) + after
    path = _chain_path(new)
    if path.exists():
        raise ConfigError("key replace", str(new), f"a key that has not replaced another ({path})")
    with translated("write a chain of keys to", path):
        path.write_text("".join(f"{one.hex()}\n" for one in (*read_chain(old), statement)))
    return path


def read_chain(key: Path) -> tuple[bytes, ...]:
    """Read the chain of statements next to a key's file. Without a chain, the result is empty.

    Raises ``ConfigError``.
    """
    path = _chain_path(key)
    if not path.exists():
        return ()
    try:
        chain = tuple(map(bytes.fromhex, named_text(path, "--key").split()))
    except ValueError:
        chain = (b"",)
    if any(len(statement) != HEAD_BYTES + PUBLIC_BYTES for statement in chain):
        raise ConfigError("--key", str(path), "a chain as `sedge-cloud key replace` writes it")
    return chain


def _chain_path(key: Path) -> Path:
    return key.with_name(f"{key.name}.chain")


def verifiers(keys: Iterable[str]) -> SigningKeys:
    """Return a function for each public key (64 hex digits) that verifies its signatures.

    Raises ``ConfigError`` for text that is not a key, and if the library is missing.
    """
    found: dict[bytes, Verify] = {}
    for text in keys:
        public = parse_public(text)
        found[key_id(public)] = _verify(public)
    return SigningKeys(found, _verify)


def parse_public(text: str) -> bytes:
    """Parse a public key of 64 hex digits into its 32 bytes. Raises ``ConfigError``."""
    try:
        public = bytes.fromhex(text)
    except ValueError:
        public = b""
    if len(public) != 32 or len(text) != 64:
        raise ConfigError(
            "trust.keys", text, "64 hex digits, as `sedge-cloud key show` prints them"
        )
    return public


def _verify(public: bytes) -> Verify:
    require_library("trust.keys")
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(public)

    def verify(signature: bytes, signed: bytes) -> bool:
        try:
            key.verify(signature, signed)
        except InvalidSignature:
            return False
        return True

    return verify


def require_library(key: str) -> None:
    """Raise ``ConfigError``, which names ``key``, if ``cryptography`` is not installed."""
    if find_spec("cryptography") is None:
        raise NotInstalled(key, "cryptography", "signed")
