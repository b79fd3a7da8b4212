"""The row of a certificate, and the ingest's queries about renewing certificates and secrets."""

from typing import Literal, Protocol, TypeAlias

import msgspec

from sedge_cloud.store.rows import RenewalRow

CertificateState: TypeAlias = Literal["issued", "held", "replaced", "revoked"]


class CertificateRow(msgspec.Struct, frozen=True):
    """A certificate that the fleet's authority has signed for the device or token ``name``.

    ``der`` is its encoding, and ``until`` its expiry on the wall clock.
    """

    serial: bytes
    name: str
    until: float
    der: bytes
    state: CertificateState = "issued"


class RenewalQueries(Protocol):
    """The ingest's queries about certificates and secrets that are being renewed."""

    def renewals(self) -> list[RenewalRow]:
        """Return all pending renewals of secrets, oldest first."""
        ...

    def renewal(self, device: str) -> RenewalRow | None:
        """Return one device's pending renewal, or None."""
        ...

    def offer_secret(self, device: str, point: bytes, secret: bytes) -> None:
        """Store a secret that a device offers, and its public key; a repeated offer changes nothing."""
        ...

    def end_renewal(self, row: RenewalRow) -> bool:
        """Make the device's new secret its only one.

        Returns False if the renewal has changed or has ended.
        """
        ...

    def certificate(self, name: str) -> CertificateRow | None:
        """Return the newest valid certificate of a device or token, or None."""
        ...

    def certificates_to_send(self) -> list[CertificateRow]:
        """Return new certificates for devices that still hold an earlier one."""
        ...

    def hold_certificate(self, row: CertificateRow) -> None:
        """Record that the device has this certificate, and no longer needs its earlier ones."""
        ...
