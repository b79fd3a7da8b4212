"""The registry: who is enrolled, with which secret, and what each device last said of itself.

A fleet may have a million devices: whatever is asked of all of them is one statement whose answer is short,
and rows are read by name, or a portion at a time.
"""

from collections.abc import Collection, Mapping

from sedge_cloud.store.connection import marks, portions
from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.leases import Leases
from sedge_cloud.store.rows import DeviceRow, SessionRow
from sedge_protocol.errors import ConfigError


class Devices(Leases):
    """The devices. Every method is one transaction, or raises ``StorageError``."""

    def devices(self) -> list[DeviceRow]:
        """Every device ever enrolled, by id."""
        return self._rows(DeviceRow, "SELECT * FROM devices ORDER BY device")

    def device(self, name: str) -> DeviceRow | None:
        """One device."""
        return next(
            iter(self._rows(DeviceRow, "SELECT * FROM devices WHERE device = ?", name)), None
        )

    def devices_named(self, names: Collection[str]) -> dict[str, DeviceRow]:
        """Those of these devices that are enrolled or revoked, by id."""
        sql = "SELECT * FROM devices WHERE device IN ({})"
        rows = (
            self._rows(DeviceRow, sql.format(marks(some)), *some)
            for some in portions(sorted(names))
        )
        return {row.device: row for some in rows for row in some}

    def enrolment(self) -> int:
        """A number that grows whenever devices are enrolled, revoked or reissued."""
        with self._db.errors():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'enrolment'").fetchone()
        return int(row[0])

    def names(self, most: int) -> list[str]:
        """Ids, in order, of the devices that are enrolled and not revoked, at most so many."""
        sql = "SELECT device FROM devices WHERE revoked = 0 ORDER BY device LIMIT ?"
        with self._db.errors():
            return [str(row[0]) for row in self._db.execute(sql, (most,))]

    def session(self, device: str) -> SessionRow | None:
        """What was seen of a device."""
        sql = "SELECT * FROM sessions WHERE device = ?"
        return next(iter(self._rows(SessionRow, sql, device)), None)

    def end_sessions(self, at: float) -> list[str]:
        """Nobody is online from now on; the ids, in order, of those who were."""
        with self._transaction(flush=False) as db:
            sql = "SELECT device FROM sessions WHERE online = 1 ORDER BY device FOR UPDATE"
            names = [str(row[0]) for row in db.execute(sql)]
            if names:
                sql = "UPDATE sessions SET online = 0, since = ?, changed = ? WHERE online = 1"
                db.execute(sql, (at, self._stamp(db)))
        return names

    def enrolled(self) -> int:
        """How many devices are enrolled and not revoked."""
        with self._db.errors():
            row = self._db.execute("SELECT COUNT(*) FROM devices WHERE revoked = 0").fetchone()
        return int(row[0])

    def add_devices(self, secrets: Mapping[str, bytes]) -> None:
        """Enrol devices, all or none. Raises ``ConfigError`` when an id is taken."""
        sql = (
            "INSERT INTO devices (device, secret, changed) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        )
        with self._transaction() as db:
            changed = self._enrol(db)
            for device, secret in secrets.items():
                if not db.execute(sql, (device, secret, changed)).rowcount:
                    raise ConfigError("device", device, "an id that is not enrolled yet")

    def add_device(self, device: str, secret: bytes) -> None:
        """Enrol one device. Raises ``ConfigError`` when the id is taken."""
        self.add_devices({device: secret})

    def revoke_device(self, device: str) -> None:
        """Never listen to a device again. Raises ``ConfigError`` when there is no such device."""
        with self._transaction() as db:
            sql = "UPDATE devices SET revoked = 1, changed = ? WHERE device = ?"
            if not db.execute(sql, (self._enrol(db), device)).rowcount:
                raise ConfigError("device", device, "an enrolled device")

    def reissue_device(self, device: str, secret: bytes) -> None:
        """Give a device a new secret, even a revoked one; its incarnation restarts from 0.

        Raises ``ConfigError`` when there is no such device.
        """
        sql = (
            "UPDATE devices SET secret = ?, revoked = 0, incarnation = 0, hello = NULL, changed = ?"
            " WHERE device = ?"
        )
        with self._transaction() as db:
            if not db.execute(sql, (secret, self._enrol(db), device)).rowcount:
                raise ConfigError("device", device, "an enrolled device")

    def save_hello(self, row: DeviceRow, incarnation: int, hello: bytes) -> None:
        """Store a device's newest incarnation and hello, unless its secret has changed meanwhile."""
        sql = "UPDATE devices SET incarnation = ?, hello = ?, changed = ? WHERE device = ? AND secret = ?"
        with self._transaction() as db:
            values = incarnation, hello, self._stamp(db), row.device, row.secret
            db.execute(sql, values)

    def _enrol(self, db: Dialect) -> int:
        """The number of this transaction, which changes who is enrolled."""
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'enrolment'")
        return self._stamp(db)
