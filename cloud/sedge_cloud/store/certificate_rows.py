"""The row of a certificate, and what the ingest asks of such rows."""

from typing import Literal, Protocol, TypeAlias

import msgspec

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


class CertificateRows(Protocol):
    """The queries of the ingest."""

    def certificate(self, name: str) -> CertificateRow | None:
        """The newest certificate of a device or token; None if it has none that is in force."""
        ...

    def certificates_to_send(self) -> list[CertificateRow]:
        """Those that replace one that a device holds, and that it has yet to get."""
        ...

    def hold_certificate(self, row: CertificateRow) -> None:
        """Note that the device has this certificate, and so needs its earlier ones no more."""
        ...
