"""Agrees on a device's secret without sending it, when the device joins by token or renews it.

The device makes a key pair. The coordinator has a permanent key pair; its public key is in the token. Both
derive the device's secret from the shared result of elliptic-curve Diffie-Hellman (spec/enrolment.md, E8 to
E12). The curve is P-256, because every version of Android supports it; points are 65 bytes, uncompressed
(SEC 1, 2.3.3). ``cryptography`` is imported when first needed, so an agent that has joined, or a
coordinator without tokens, spends no memory on it.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from sedge_protocol.errors import FrameError
from sedge_protocol.wire.keys import derive
from sedge_protocol.wire.messages import PROOF_BYTES

# A device that can change its secret (E14) announces this in its hello.
RENEWS = "renew"
# The prefix of a token's user name at the broker; no device id may begin with it.
TOKEN_PREFIX = "join-"
NAME_BYTES = 16
# The order of the elliptic curve's group (SEC 2, 2.4.2).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def private_key(seed: bytes) -> int:
    """Derive a private key, a number from 1 to the group's order - 1, from 32 random bytes."""
    return int.from_bytes(seed) % (_ORDER - 1) + 1


def fleet_key(fleet_secret: bytes) -> int:
    """Derive the coordinator's private key for joining from a secret that only coordinators know."""
    return private_key(derive(fleet_secret, "join"))


def certificate_key(secret: bytes) -> int:
    """Derive the private key of a device's or token's certificate from its secret (E18)."""
    return private_key(derive(secret, "certificate"))


def public_key(private: int) -> bytes:
    """Return the public key of a private key, 65 bytes."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = ec.derive_private_key(private, ec.SECP256R1()).public_key()
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def key_name(public: bytes) -> bytes:
    """Return the 16-byte hash that stands for a device's public key in the answers to its JOIN."""
    return hashlib.sha256(public).digest()[:NAME_BYTES]


@dataclass(frozen=True)
class Agreement:
    """The device's ``secret``, which each side derives from the other's public key, and proofs of it.

    A proof shows that its sender knows the secret.
    """

    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, private: int, other: bytes, device: bytes, fleet: str, token: str) -> "Agreement":
        """Derive the secret from our ``private`` key and the ``other`` side's public key.

        ``device`` is the device's public key, whichever side we are. Raises ``FrameError`` for bytes that
        are not a point on the curve.
        """
        from cryptography.hazmat.primitives.asymmetric import ec

        try:
            point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), other)
            shared = ec.derive_private_key(private, ec.SECP256R1()).exchange(ec.ECDH(), point)
        except ValueError as exc:
            raise FrameError("public key: not a point on the curve P-256") from exc
        said = hashlib.sha256(b"\0".join((fleet.encode(), token.encode(), device))).hexdigest()
        return cls(derive(shared, f"join {said}"))

    def asks(self, name: str) -> bytes:
        """Return the proof that the sender of a JOIN with this ``name`` has the device's private key."""
        return self._proof("join asks", name)

    def answers(self, name: str) -> bytes:
        """Return the proof that the sender of a JOINED with this ``name`` is the coordinator."""
        return self._proof("join answers", name)

    def _proof(self, purpose: str, name: str) -> bytes:
        return hmac.digest(derive(self.secret, purpose), name.encode(), "sha256")[:PROOF_BYTES]
