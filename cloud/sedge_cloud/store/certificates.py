"""The certificates that the fleet's authority has signed for devices and tokens, as rows.

    a certificate:  issued -> held (its device has said so) -> replaced by a later one      (or revoked)

A device keeps the certificate that it holds until it has said that it has the one issued since, so for a
while it may have two; they are for one key. ``revoked`` ones are on the broker's list until they end.
"""

from collections.abc import Collection

from sedge_cloud.store.certificate_rows import CertificateRow
from sedge_cloud.store.devices import Devices

_CURRENT = "c.state IN ('issued', 'held')"


class Certificates(Devices):
    """The certificates. Every method is one transaction, or raises ``StorageError``."""

    def add_certificates(self, rows: Collection[CertificateRow], *, renews: bool = False) -> None:
        """Store certificates that were signed now.

        Those that ``renews`` keep what their devices hold; otherwise these have new keys, and every earlier
        certificate of their names is revoked.
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
        """The newest certificate of a device or token; None if it has none that is in force."""
        sql = f"SELECT * FROM certificates c WHERE name = ? AND {_CURRENT} ORDER BY state DESC"
        return next(iter(self._rows(CertificateRow, sql, name)), None)

    def revoke_certificates(self, names: Collection[str]) -> None:
        """Revoke every certificate of these devices or tokens."""
        with self._transaction() as db:
            for name in names:
                db.execute("UPDATE certificates SET state = 'revoked' WHERE name = ?", (name,))

    def revoked_serials(self, now: float) -> list[bytes]:
        """The serial numbers that the broker's list must have, at a time on the wall clock."""
        sql = "SELECT * FROM certificates WHERE state = 'revoked' AND until > ? ORDER BY serial"
        return [row.serial for row in self._rows(CertificateRow, sql, now)]

    def hold_certificate(self, row: CertificateRow) -> None:
        """Note that the device has this certificate, and so needs its earlier ones no more."""
        with self._transaction() as db:
            sql = "UPDATE certificates SET state = 'replaced' WHERE name = ? AND state = 'held'"
            db.execute(sql, (row.name,))
            sql = "UPDATE certificates SET state = 'held' WHERE serial = ? AND state = 'issued'"
            db.execute(sql, (row.serial,))

    def certificates_to_send(self) -> list[CertificateRow]:
        """Those that replace one that a device holds, and that it has yet to get."""
        sql = (
            "SELECT c.* FROM certificates c JOIN certificates h ON h.name = c.name"
            " AND h.state = 'held' WHERE c.state = 'issued' ORDER BY c.name"
        )
        return self._rows(CertificateRow, sql)

    def certificates_due(self, before: float) -> list[CertificateRow]:
        """The newest certificate of each active device whose newest ends before then."""
        sql = (
            f"SELECT c.* FROM certificates c JOIN devices d ON d.device = c.name WHERE {_CURRENT}"
            " AND c.until < ? AND d.revoked = 0 AND NOT EXISTS (SELECT 1 FROM certificates n"
            " WHERE n.name = c.name AND n.state = 'issued' AND n.serial != c.serial)"
            " ORDER BY c.until, c.name"
        )
        return self._rows(CertificateRow, sql, before)

    def certificates_held(self) -> list[CertificateRow]:
        """The certificates that active devices hold, the first to end first."""
        sql = (
            "SELECT c.* FROM certificates c JOIN devices d ON d.device = c.name"
            " WHERE c.state = 'held' AND d.revoked = 0 ORDER BY c.until, c.name"
        )
        return self._rows(CertificateRow, sql)

    def certificates_late(self, now: float) -> list[CertificateRow]:
        """Those of these whose successor has long been issued, and not fetched.

        The two end about two thirds of a lifetime apart; late is a certificate with a sixth of one left.
        """
        sql = (
            "SELECT h.* FROM certificates h JOIN certificates c ON c.name = h.name"
            " JOIN devices d ON d.device = h.name WHERE h.state = 'held' AND c.state = 'issued'"
            " AND d.revoked = 0 AND h.until - ? < (c.until - h.until) / 4 ORDER BY h.until, h.name"
        )
        return self._rows(CertificateRow, sql, now)
