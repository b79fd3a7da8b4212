"""The fleet's certificate authority, which certifies the broker, coordinator, devices and tokens.

It signs and revokes; the store records who has which certificate (store/certificates.py). ``cryptography``
is imported when first needed, so that a coordinator that signs nothing does not spend memory on it.
"""

import ipaddress
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sedge_cloud.store.certificate_rows import CertificateRow
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.joining import certificate_key, public_key

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )

# The lifetime of the authority's, the broker's and the coordinator's certificates. It is long because
# nothing renews them. Replacing the authority means replacing ca.pem on every device.
DAYS = 3650
HERE = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
# Certificates are valid from the day before they are issued, so that a broker whose clock is
# behind accepts them.
_BEFORE = timedelta(days=1)


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a host name that cannot be in a certificate."""
    for host in hosts:
        if not _is_address(host) and not _HOST.fullmatch(host):
            raise ConfigError("--tls", host, "a host name or an IP address, without a port")


class Authority:
    """A certificate authority, which signs with its key; ``own`` is its certificate."""

    def __init__(self, key: "EllipticCurvePrivateKey", own: "x509.Certificate") -> None:
        self._key, self._own = key, own

    @classmethod
    def made(cls, fleet: str) -> "Authority":
        """Create an authority with a new key."""
        from cryptography import x509

        key, name = _new_key(), _name(f"Sedge {fleet}")
        builder = _builder(name, name, key.public_key(), _in(DAYS))
        for extension in (x509.BasicConstraints(True, None), _usage(signs_certificates=True)):
            builder = builder.add_extension(extension, critical=True)
        return cls(key, _signed(builder, key))

    @classmethod
    def read(cls, key: str, certificate: str) -> "Authority":
        """Load the authority with this key and certificate (PEM).

        Raises ``ValueError`` if they do not match.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        own = x509.load_pem_x509_certificate(certificate.encode())
        private = load_pem_private_key(key.encode(), None)
        if not isinstance(private, EllipticCurvePrivateKey) or own.public_key() != (
            private.public_key()
        ):
            raise ValueError("the key does not match the certificate")
        return cls(private, own)

    def texts(self) -> tuple[str, str]:
        """Return the authority's own certificate and key, in PEM."""
        return _pem(self._own), _key_pem(self._key)

    def broker(self, hosts: Sequence[str]) -> tuple[str, str]:
        """Return the certificate and key, in PEM, for a broker that clients reach under these host names.

        The names by which this machine reaches itself are always included.
        """
        from cryptography import x509

        names = [
            x509.IPAddress(ipaddress.ip_address(host)) if _is_address(host) else x509.DNSName(host)
            for host in dict.fromkeys((*hosts, *HERE))
        ]
        key = _new_key()
        extension = x509.SubjectAlternativeName(names)
        return _pem(self._leaf("broker", key.public_key(), _in(DAYS), extension)), _key_pem(key)

    def coordinator(self, name: str) -> tuple[str, str]:
        """Return the certificate and key for a coordinator, in PEM."""
        key = _new_key()
        return _pem(self._leaf(name, key.public_key(), _in(DAYS))), _key_pem(key)

    def certify(self, name: str, secret: bytes, until: float) -> CertificateRow:
        """Issue a certificate for the key derived from a secret, valid until ``until`` (wall clock)."""
        from cryptography.hazmat.primitives.asymmetric import ec

        point = public_key(certificate_key(secret))
        public = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        return self._row(name, self._leaf(name, public, _at(until)), until)

    def renew(self, row: CertificateRow, until: float) -> CertificateRow:
        """Issue a new certificate for the same key, valid until ``until`` (wall clock)."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        public = x509.load_der_x509_certificate(row.der).public_key()
        assert isinstance(public, ec.EllipticCurvePublicKey)
        return self._row(row.name, self._leaf(row.name, public, _at(until)), until)

    def revocations(self, serials: Collection[bytes]) -> str:
        """Sign a list of revoked certificates. Returns it in PEM; once it expires, brokers admit nobody."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        listed = x509.CertificateRevocationListBuilder().issuer_name(self._own.subject)
        listed = listed.last_update(now - _BEFORE).next_update(_in(DAYS))
        for serial in serials:
            one = x509.RevokedCertificateBuilder().serial_number(int.from_bytes(serial))
            listed = listed.add_revoked_certificate(one.revocation_date(now).build())
        return listed.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    def _leaf(
        self,
        name: str,
        public: "EllipticCurvePublicKey",
        until: datetime,
        names: "x509.SubjectAlternativeName | None" = None,
    ) -> "x509.Certificate":
        """Issue a certificate for a broker, which has ``names``, or for a client, which has none."""
        from cryptography import x509
        from cryptography.x509.oid import ExtendedKeyUsageOID

        builder = _builder(_name(name), self._own.subject, public, until)
        builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        uses = [ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return _signed(builder, self._key)

    def _row(self, name: str, made: "x509.Certificate", until: float) -> CertificateRow:
        from cryptography.hazmat.primitives.serialization import Encoding

        der = made.public_bytes(Encoding.DER)
        return CertificateRow(made.serial_number.to_bytes(20), name, until, der)


def _new_key() -> "EllipticCurvePrivateKey":
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _name(common_name: str) -> "x509.Name":
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: "x509.Name", issuer: "x509.Name", public: "EllipticCurvePublicKey", until: datetime
) -> "x509.CertificateBuilder":
    from cryptography import x509

    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    made = made.serial_number(x509.random_serial_number())
    made = made.not_valid_before(min(datetime.now(UTC), until) - _BEFORE).not_valid_after(until)
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    return made.add_extension(identifier, critical=False)


def _usage(*, signs_certificates: bool) -> "x509.KeyUsage":
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _signed(
    builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey"
) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    return builder.add_extension(issuer, critical=False).sign(key, hashes.SHA256())


def _pem(made: "x509.Certificate") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return made.public_bytes(Encoding.PEM).decode()


def _key_pem(key: "EllipticCurvePrivateKey") -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()
    ).decode()


def _in(days: float) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _at(when: float) -> datetime:
    return datetime.fromtimestamp(when, UTC)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
