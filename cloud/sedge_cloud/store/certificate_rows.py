"""The row of a certificate, and the ingest's queries about the renewal of certificates and secrets."""

from typing import Literal, Protocol, TypeAlias

import msgspec

from sedge_cloud.store.rows import RenewalRow

CertificateState: TypeAlias = Literal["issued", "held", "replaced", "revoked"]


class CertificateRow(msgspec.Struct, frozen=True):
    """A certificate that the fleet's authority has signed for the device or token ``name``.

    ``der`` is its encoding, and it ends at ``until`` on the wall clock.
    """

    serial: bytes
    name: str
    until: float
    der: bytes
    state: CertificateState = "issued"


class RenewalQueries(Protocol):
    """The ingest's queries about certificates and secrets that are renewed."""

    def renewals(self) -> list[RenewalRow]:
        """Every pending renewal of a secret, oldest first."""
        ...

    def renewal(self, device: str) -> RenewalRow | None:
        """One device's pending renewal."""
        ...

    def offer_secret(self, device: str, point: bytes, secret: bytes) -> None:
        """Store the secret that a device offers, by its public key; a repeated offer changes nothing."""
        ...

    def end_renewal(self, row: RenewalRow) -> bool:
        """Make the device's new secret its only one. False if the renewal has changed or ended."""
        ...

    def certificate(self, name: str) -> CertificateRow | None:
        """The newest certificate of a device or token; None if it has none that is in force."""
        ...

    def certificates_to_send(self) -> list[CertificateRow]:
        """Those that replace one that a device holds, and that it has yet to get."""
        ...

    def hold_certificate(self, row: CertificateRow) -> None:
        """Note that the device has this certificate, and so needs its earlier ones no more."""
        ...
