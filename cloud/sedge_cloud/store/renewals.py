"""Renewals of devices' secrets, as rows that survive a crash at any point.

    a renewal:  asked -> offered (its public key) -> its password is at the broker -> gone, with a HELLO

Until the last step, the device's frames are accepted under its old secret.
"""

from collections.abc import Collection, Iterable

import msgspec

from sedge_cloud.store.joins import Joins
from sedge_cloud.store.rows import RenewalRow
from sedge_cloud.store.selector import Condition


class _AccountRow(msgspec.Struct, frozen=True):
    """A device's broker account: the secret from which its password is derived."""

    device: str
    secret: bytes


class Renewals(Joins):
    """Renewals as rows. Each method runs as one transaction and raises ``StorageError`` on failure."""

    def ask_to_renew(self, chosen: Condition | Collection[str], now: float) -> list[str]:
        """Ask active devices for a new secret. Returns their ids. A renewal already in progress continues.

        Raises ``ConfigError`` if a device is not enrolled.
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
        """Return all pending renewals of secrets, oldest first."""
        return self._rows(RenewalRow, "SELECT * FROM renewals ORDER BY asked, device")

    def renewal(self, device: str) -> RenewalRow | None:
        """Return one device's pending renewal, or None."""
        sql = "SELECT * FROM renewals WHERE device = ?"
        return next(iter(self._rows(RenewalRow, sql, device)), None)

    def offer_secret(self, device: str, point: bytes, secret: bytes) -> None:
        """Store a secret that a device offers, and its public key; a repeated offer changes nothing."""
        with self._transaction() as db:
            sql = (
                "UPDATE renewals SET point = ?, secret = ?, account = 0"
                " WHERE device = ? AND point != ?"
            )
            db.execute(sql, (point, secret, device, point))

    def renewals_due(self) -> list[RenewalRow]:
        """Return the renewals whose new password the broker does not have yet."""
        sql = "SELECT * FROM renewals WHERE account = 0 AND LENGTH(point) > 0 ORDER BY device"
        return self._rows(RenewalRow, sql)

    def broker_secrets(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the secrets whose passwords the broker must have: an offered secret, or the current one.

        Revoked devices have none.
        """
        sql = (
            "SELECT d.device, CASE WHEN LENGTH(r.secret) > 0 THEN r.secret ELSE d.secret END AS secret"
            " FROM devices d LEFT JOIN renewals r ON r.device = d.device"
            " WHERE d.revoked = 0 AND d.device IN ({})"
        )
        return {row.device: row.secret for row in self._named(_AccountRow, sql, names)}

    def give_passwords(self, rows: Iterable[RenewalRow]) -> None:
        """Record that the broker has these devices' new passwords."""
        with self._transaction() as db:
            for row in rows:
                sql = "UPDATE renewals SET account = 1 WHERE device = ? AND point = ?"
                db.execute(sql, (row.device, row.point))

    def end_renewal(self, row: RenewalRow) -> bool:
        """Make the device's new secret its only one.

        Returns False if the renewal has changed or has ended.
        """
        with self._transaction() as db:
            sql = "SELECT 1 FROM renewals WHERE device = ? AND point = ? FOR UPDATE"
            if db.execute(sql, (row.device, row.point)).fetchone() is None:
                return False
            self.reissue_device(row.device, row.secret)
        return True
