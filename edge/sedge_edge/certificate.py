"""The device's certificate for the broker, which the coordinator may renew (E18, E19).

The certificate's key is derived from the secret that the device was enrolled with, so no file contains the
key. A renewed certificate is used until another certificate is put into ``cert_file``.
"""

import ssl
from datetime import UTC, datetime

import msgspec

from sedge_edge.jobs.storage import DurableValue
from sedge_protocol.errors import ConfigError, RemoteError
from sedge_protocol.host import tls
from sedge_protocol.wire.joining import key_name

SCHEMA = 1


class KeptCertificate(msgspec.Struct, frozen=True):
    """The stored state: the certificate ``der``, and the name ``base`` of the one that it replaces."""

    base: bytes
    der: bytes


class OwnCertificate:
    """The device's newest certificate. ``given`` is the one in ``cert_file``, in DER."""

    def __init__(
        self, secret: bytes, given: bytes, durable: DurableValue[KeptCertificate] | None
    ) -> None:
        self._secret, self._base, self._durable = secret, key_name(given), durable
        kept = None if durable is None else durable.load()
        self._der = kept.der if kept is not None and kept.base == self._base else given

    @property
    def name(self) -> bytes:
        """The name of the certificate in a hello, 16 bytes."""
        return key_name(self._der)

    @property
    def pem(self) -> str:
        """The certificate and its private key, in PEM."""
        return tls.client_pem(self._secret, self._der)

    @property
    def until(self) -> datetime:
        """When the certificate expires. Raises ``ConfigError`` if it cannot be read."""
        from cryptography import x509

        try:
            made = x509.load_der_x509_certificate(self._der)
        except ValueError as exc:
            raise ConfigError("broker.cert_file", str(exc), "a certificate in PEM") from exc
        if hasattr(made, "not_valid_after_utc"):
            return made.not_valid_after_utc
        return made.not_valid_after.replace(tzinfo=UTC)  # cryptography before version 42

    def check(self) -> None:
        """Raise ``ConfigError`` if the certificate is not for the key derived from the secret."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        tls.load(lambda _, own, key: context.load_cert_chain(str(own), key), tls.NO_FILES, self.pem)

    def replace(self, der: bytes) -> None:
        """Store a newer certificate.

        Raises ``RemoteError`` if the certificate is not for our key, and ``StorageError`` if the disk
        fails.
        """
        before, self._der = self._der, der
        try:
            self.check()
        except ConfigError as exc:
            self._der = before
            raise RemoteError(f"the certificate is not for this device's key: {exc}") from exc
        if self._durable is not None:
            self._durable.commit(KeptCertificate(self._base, der))
