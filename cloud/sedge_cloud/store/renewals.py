"""Devices that are to change their secret: rows that outlive a crash between any two steps.

    a renewal:  asked -> offered (by its public key) -> its password is at the broker -> gone, with a HELLO

Until its last step the device is heard under the secret that it has.
"""

from collections.abc import Collection, Iterable

from sedge_cloud.store.joins import Joins
from sedge_cloud.store.rows import RenewalRow
from sedge_cloud.store.selector import Condition


class Renewals(Joins):
    """Renewals. Every method is one transaction, or raises ``StorageError``."""

    def ask_to_renew(self, chosen: Condition | Collection[str], now: float) -> list[str]:
        """Ask devices in force for another secret; their ids. One that has been asked already goes on.

        Raises ``ConfigError`` for a device that is not enrolled.
        """
        with self._transaction() as db:
            rows = self.devices_named(self._chosen(db, chosen))
            names = sorted(name for name, row in rows.items() if not row.revoked)
            for name in names:
                sql = "INSERT INTO renewals VALUES (?, ?, ?, ?, 0) ON CONFLICT DO NOTHING"
                db.execute(sql, (name, now, b"", b""))
            self._enrol(db)
        return names

    def renewals(self) -> list[RenewalRow]:
        """Every device that is to change its secret, the longest ago first."""
        return self._rows(RenewalRow, "SELECT * FROM renewals ORDER BY asked, device")

    def renewal(self, device: str) -> RenewalRow | None:
        """One device's."""
        sql = "SELECT * FROM renewals WHERE device = ?"
        return next(iter(self._rows(RenewalRow, sql, device)), None)

    def offer_secret(self, device: str, point: bytes, secret: bytes) -> None:
        """A device offers a secret, by its public key; the same once more changes nothing."""
        with self._transaction() as db:
            sql = (
                "UPDATE renewals SET point = ?, secret = ?, account = 0"
                " WHERE device = ? AND point != ?"
            )
            db.execute(sql, (point, secret, device, point))

    def renewals_due(self) -> list[RenewalRow]:
        """Those whose new password the broker has yet to get."""
        sql = "SELECT * FROM renewals WHERE account = 0 AND LENGTH(point) > 0 ORDER BY device"
        return self._rows(RenewalRow, sql)

    def give_passwords(self, rows: Iterable[RenewalRow]) -> None:
        """The broker has the new passwords of these devices."""
        with self._transaction() as db:
            for row in rows:
                sql = "UPDATE renewals SET account = 1 WHERE device = ? AND point = ?"
                db.execute(sql, (row.device, row.point))

    def end_renewal(self, row: RenewalRow) -> bool:
        """The device uses its new secret: the old one is void. False if that was settled otherwise."""
        with self._transaction() as db:
            sql = "SELECT 1 FROM renewals WHERE device = ? AND point = ? FOR UPDATE"
            if db.execute(sql, (row.device, row.point)).fetchone() is None:
                return False
            self.reissue_device(row.device, row.secret)
        return True
