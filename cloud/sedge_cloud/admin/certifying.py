"""Issues, renews and revokes certificates of devices and tokens, on the machine with the authority's key.

``[broker] authority_key_file`` names that key. The broker's list of revoked certificates is kept next to
the broker's password file and is rewritten from the rows in the store.
"""

import time
from collections.abc import Collection, Mapping
from pathlib import Path

from sedge_cloud.broker.certificates import Authority
from sedge_cloud.broker.files import change_lines
from sedge_cloud.config import CloudConfig
from sedge_cloud.store.certificate_rows import CertificateRow
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.privileges import as_caller

# The file name of the broker's list of revoked certificates.
REVOKED = "revoked.pem"
DAY_S = 86_400.0
# A device's certificate is renewed when this fraction of its lifetime remains.
RENEW_SHARE = 1 / 3


def authority_of(cloud: CloudConfig) -> Authority | None:
    """Return the certificate authority whose key is on this machine; None if none is configured.

    Raises ``ConfigError`` if its key and certificate do not match, and ``StorageError`` if a file cannot be
    read.
    """
    key, own = cloud.broker.authority_key_file, cloud.broker.ca_file
    if key is None:
        return None
    if own is None or cloud.broker.device_password_file is None:
        expected = "broker.ca_file and broker.device_password_file as well"
        raise ConfigError("broker.authority_key_file", key, expected)
    with as_caller(), translated("read the authority's files", Path(key)):
        try:
            return Authority.read(Path(key).read_text(), Path(own).read_text())
        except ValueError as exc:
            expected = f"the private key for {own} ({exc})"
            raise ConfigError("broker.authority_key_file", key, expected) from exc


def certified(cloud: CloudConfig, secrets: Mapping[str, bytes]) -> dict[str, CertificateRow]:
    """Sign new certificates for the keys derived from devices' secrets.

    Returns a dict from device to certificate, which is empty if the authority's key is not on this machine.
    The caller stores the certificates.
    """
    authority, until = authority_of(cloud), time.time() + _lifetime_s(cloud)
    if authority is None:
        return {}
    return {name: authority.certify(name, secret, until) for name, secret in secrets.items()}


def certify(
    store: Store, cloud: CloudConfig, secrets: Mapping[str, bytes], ended: Collection[str]
) -> None:
    """Issue certificates to devices that have joined, and revoke the certificates of tokens in ``ended``.

    Does nothing if the authority's key is not on this machine. Raises ``ConfigError`` and ``StorageError``.
    """
    if cloud.broker.authority_key_file is not None and (secrets or ended):
        store.revoke_certificates(ended)
        store.add_certificates(certified(cloud, secrets).values())
        write_revoked(store, cloud)


def certify_token(store: Store, cloud: CloudConfig, name: str, secret: bytes, until: float) -> None:
    """Issue a certificate for a token if this machine has the authority's key.

    Raises ``ConfigError`` and ``StorageError``.
    """
    authority = authority_of(cloud)
    if authority is not None:
        store.add_certificates([authority.certify(name, secret, until)])


def is_renewal_due(store: Store, cloud: CloudConfig) -> bool:
    """Return True if ``renew_due`` would renew any certificate."""
    return bool(_due(store, cloud))


def renew_due(store: Store, cloud: CloudConfig) -> int:
    """Renew the certificates that are in the last third of their lifetime. Returns how many."""
    rows = _due(store, cloud)
    authority = authority_of(cloud) if rows else None
    if authority is None:
        return 0
    until = time.time() + _lifetime_s(cloud)
    store.add_certificates([authority.renew(row, until) for row in rows], renews=True)
    return len(rows)


def write_revoked(store: Store, cloud: CloudConfig) -> None:
    """Write the list of revoked certificates for the broker, which reads it on its next reload.

    Raises ``ConfigError``, ``StorageError``.
    """
    authority = authority_of(cloud)
    if authority is None:
        return
    path = revoked_file(cloud)
    text = authority.revocations(store.revoked_serials(time.time()))
    with as_caller(), translated("write the revoked certificates to", path):
        change_lines(path, lambda _: text.splitlines())


def revoked_file(cloud: CloudConfig) -> Path:
    """Return the path of the broker's list of revoked certificates."""
    return Path(str(cloud.broker.device_password_file)).with_name(REVOKED)


def certificates_left(store: Store, cloud: CloudConfig) -> str:
    """Check the authority's files.

    Returns a line that says how many devices have certificates and which of these expires first.

    Raises ``ConfigError``, and ``StorageError`` naming devices whose certificates expire soon.
    """
    authority_of(cloud)
    now = time.time()
    late = store.certificates_late(now)
    if late:
        some = ", ".join(f"{row.name} {days_left(row, now)}" for row in late[:4])
        raise StorageError(f"{len(late)} not renewed because their devices do not connect: {some}")
    rows = store.certificates_held()
    if not rows:
        return "no device has connected with one yet"
    first = f"{rows[0].name} {days_left(rows[0], now)}"
    return f"held by {len(rows)} devices; the first to expire is that of {first}"


def days_left(row: CertificateRow, now: float) -> str:
    """Format the number of days until a certificate expires, or since it expired."""
    days = int((row.until - now) // DAY_S)
    return f"({days} days left)" if days >= 0 else f"(expired {-days} days ago)"


def _due(store: Store, cloud: CloudConfig) -> list[CertificateRow]:
    if cloud.broker.authority_key_file is None:
        return []
    return store.certificates_due(time.time() + RENEW_SHARE * _lifetime_s(cloud))


def _lifetime_s(cloud: CloudConfig) -> float:
    return cloud.broker.certificate_days * DAY_S
