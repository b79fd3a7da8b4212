"""The row of a certificate."""

from typing import Literal, TypeAlias

import msgspec

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
