"""The certificates that the fleet's authority has signed for devices and tokens, as rows.

    a certificate:  issued -> held (the device has confirmed it) -> replaced by a later one  (or revoked)

The certificate that a device holds stays valid until the device confirms the next one, so for a while it
may have two, for the same key. Revoked certificates are on the broker's list until they expire.
"""

from collections.abc import Collection

from sedge_cloud.store.certificate_rows import CertificateRow
from sedge_cloud.store.devices import Devices

_CURRENT = "c.state IN ('issued', 'held')"


class Certificates(Devices):
    """The certificates as rows.

    Each method runs as one transaction, and raises ``StorageError`` on failure.
    """

    def add_certificates(self, rows: Collection[CertificateRow], *, renews: bool = False) -> None:
        """Store certificates that have just been signed.

        If ``renews``, they are for the same keys, and devices keep the ones that they hold. If not, they
        are for new keys, and all earlier certificates of the same names are revoked.
        """
        earlier = "'replaced' WHERE state = 'issued'" if renews else "'revoked' WHERE TRUE"
        with self._transaction() as db:
            now = self._now(db)
            db.execute("DELETE FROM certificates WHERE until < ? AND state != 'held'", (now,))
            for row in rows:
                sql = f"UPDATE certificates SET state = {earlier} AND name = ?"
                db.execute(sql, (row.name,))
                self._insert(db, "certificates", row)
            self._enrol(db)

    def certificate(self, name: str) -> CertificateRow | None:
        """Return the newest valid certificate of a device or token, or None."""
        sql = f"SELECT * FROM certificates c WHERE name = ? AND {_CURRENT} ORDER BY state DESC"
        return next(iter(self._rows(CertificateRow, sql, name)), None)

    def revoke_certificates(self, names: Collection[str]) -> None:
        """Revoke all certificates of these devices or tokens."""
        with self._transaction() as db:
            for name in names:
                db.execute("UPDATE certificates SET state = 'revoked' WHERE name = ?", (name,))

    def revoked_serials(self, now: float) -> list[bytes]:
        """Return the serial numbers of revoked, unexpired certificates; ``now`` is on the wall clock."""
        sql = "SELECT * FROM certificates WHERE state = 'revoked' AND until > ? ORDER BY serial"
        return [row.serial for row in self._rows(CertificateRow, sql, now)]

    def hold_certificate(self, row: CertificateRow) -> None:
        """Record that the device has this certificate, and no longer needs its earlier ones."""
        with self._transaction() as db:
            sql = "UPDATE certificates SET state = 'replaced' WHERE name = ? AND state = 'held'"
            db.execute(sql, (row.name,))
            sql = "UPDATE certificates SET state = 'held' WHERE serial = ? AND state = 'issued'"
            db.execute(sql, (row.serial,))

    def certificates_to_send(self) -> list[CertificateRow]:
        """Return new certificates for devices that still hold an earlier one."""
        sql = (
            "SELECT c.* FROM certificates c JOIN certificates h ON h.name = c.name"
            " AND h.state = 'held' WHERE c.state = 'issued' ORDER BY c.name"
        )
        return self._rows(CertificateRow, sql)

    def certificates_due(self, before: float) -> list[CertificateRow]:
        """Return each active device's newest certificate if it expires before ``before``."""
        sql = (
            f"SELECT c.* FROM certificates c JOIN devices d ON d.device = c.name WHERE {_CURRENT}"
            " AND c.until < ? AND d.revoked = 0 AND NOT EXISTS (SELECT 1 FROM certificates n"
            " WHERE n.name = c.name AND n.state = 'issued' AND n.serial != c.serial)"
            " ORDER BY c.until, c.name"
        )
        return self._rows(CertificateRow, sql, before)

    def certificates_held(self) -> list[CertificateRow]:
        """Return the certificates that active devices hold, earliest expiry first."""
        sql = (
            "SELECT c.* FROM certificates c JOIN devices d ON d.device = c.name"
            " WHERE c.state = 'held' AND d.revoked = 0 ORDER BY c.until, c.name"
        )
        return self._rows(CertificateRow, sql)

    def certificates_late(self, now: float) -> list[CertificateRow]:
        """Return held certificates whose successor was issued long ago, but has not been fetched.

        The two expire about two thirds of a lifetime apart; a held certificate is late once it has less
        than a sixth of its lifetime left.
        """
        sql = (
            "SELECT h.* FROM certificates h JOIN certificates c ON c.name = h.name"
            " JOIN devices d ON d.device = h.name WHERE h.state = 'held' AND c.state = 'issued'"
            " AND d.revoked = 0 AND h.until - ? < (c.until - h.until) / 4 ORDER BY h.until, h.name"
        )
        return self._rows(CertificateRow, sql, now)
