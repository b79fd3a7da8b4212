"""The registry of enrolled devices: their secrets and their last hellos.

A fleet may have a million devices, so a query about all of them is one statement with a short result, and
rows are read by name or in batches.
"""

from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from sedge_cloud.store.connection import Database
from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.records import Census
from sedge_cloud.store.rows import DeviceRow
from sedge_cloud.store.selector import AbilityRow, DeviceQuery, number_of
from sedge_protocol.errors import ConfigError

# Selects paused devices that could otherwise take part in rounds.
PAUSED = (
    "SELECT p.device FROM paused p JOIN devices d ON d.device = p.device"
    " WHERE d.revoked = 0 AND d.hello IS NOT NULL"
)


class Devices(Database):
    """The devices as rows. Each method runs as one transaction, and raises ``StorageError`` on failure."""

    def devices(self) -> list[DeviceRow]:
        """Return all devices ever enrolled, sorted by id."""
        return self._rows(DeviceRow, "SELECT * FROM devices ORDER BY device")

    def device(self, name: str) -> DeviceRow | None:
        """Return the device with this id, or None."""
        return next(
            iter(self._rows(DeviceRow, "SELECT * FROM devices WHERE device = ?", name)), None
        )

    def devices_named(self, names: Collection[str]) -> dict[str, DeviceRow]:
        """Return whichever of these devices are enrolled or revoked, keyed by id."""
        rows = self._named(DeviceRow, "SELECT * FROM devices WHERE device IN ({})", names)
        return {row.device: row for row in rows}

    def enrolment(self) -> int:
        """Return a number that grows whenever devices are enrolled, revoked or reissued."""
        with self._db.errors():
            row = self._db.execute("SELECT value FROM meta WHERE key = 'enrolment'").fetchone()
        return int(row[0])

    def census(self) -> Census:
        """Count all devices, and how many of them are revoked, never heard from, online or paused."""
        sql = (
            "SELECT (SELECT COUNT(*) FROM devices), (SELECT COUNT(*) FROM devices WHERE revoked = 1),"
            " (SELECT COUNT(*) FROM devices WHERE hello IS NULL AND revoked = 0),"
            " (SELECT COUNT(*) FROM sessions WHERE online = 1),"
            f" (SELECT COUNT(*) FROM ({PAUSED}) a),"
            f" (SELECT COUNT(*) FROM ({PAUSED}) p JOIN sessions s ON s.device = p.device"
            " WHERE s.online = 1)"
        )
        with self._db.errors():
            return Census(*map(int, self._db.execute(sql).fetchone()))

    def agent_versions(self) -> dict[str, int]:
        """Count the active devices by the agent version in their last hello."""
        revoked = (
            "SELECT a.version, COUNT(*) FROM devices d JOIN abilities a ON a.device = d.device"
            " WHERE d.revoked = 1 GROUP BY a.version"
        )
        with self._db.errors():
            sql = "SELECT version, COUNT(*) FROM abilities GROUP BY version"
            found = Counter({str(version): int(count) for version, count in self._db.execute(sql)})
            found.subtract(
                {str(version): int(count) for version, count in self._db.execute(revoked)}
            )
        return +found

    def page(self, wanted: DeviceQuery, offset: int, most: int) -> list[str]:
        """Return a page of the selected devices' sorted ids, skipping the first ``offset``."""
        sql, values = wanted.query("d.device")
        with self._db.errors():
            rows = self._db.execute(
                f"{sql} ORDER BY d.device LIMIT ? OFFSET ?", (*values, most, offset)
            )
            return [str(row[0]) for row in rows]

    def count(self, wanted: DeviceQuery) -> int:
        """Return the number of selected devices."""
        with self._db.errors():
            return int(self._db.execute(*wanted.query("COUNT(*)")).fetchone()[0])

    def names(self, most: int) -> list[str]:
        """Return up to ``most`` sorted ids of devices that are enrolled and not revoked."""
        sql = "SELECT device FROM devices WHERE revoked = 0 ORDER BY device LIMIT ?"
        with self._db.errors():
            return [str(row[0]) for row in self._db.execute(sql, (most,))]

    def end_sessions(self, at: float) -> list[str]:
        """Mark every device offline. Returns the sorted ids of the devices that were online."""
        with self._transaction(flush=False) as db:
            sql = "SELECT device FROM sessions WHERE online = 1 ORDER BY device FOR UPDATE"
            names = [str(row[0]) for row in db.execute(sql)]
            if names:
                sql = "UPDATE sessions SET online = 0, since = ?, changed = ? WHERE online = 1"
                db.execute(sql, (at, self._stamp(db)))
        return names

    def online(self) -> list[str]:
        """Return the ids of the devices that are online according to their sessions."""
        with self._db.errors():
            rows = self._db.execute("SELECT device FROM sessions WHERE online = 1 ORDER BY device")
            return [str(name) for (name,) in rows]

    def enrolled(self) -> int:
        """Return how many devices are enrolled and not revoked."""
        with self._db.errors():
            row = self._db.execute("SELECT COUNT(*) FROM devices WHERE revoked = 0").fetchone()
        return int(row[0])

    def add_devices(
        self,
        secrets: Mapping[str, bytes],
        tags: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """Enrol all of these devices with their tags, or none. Raises ``ConfigError`` if an id is taken."""
        with self._transaction() as db:
            changed, now = self._enrol(db), self._now(db)
            for device in sorted(self.devices_named(secrets)):
                raise ConfigError("device", device, "an id that is not enrolled yet")
            rows = (DeviceRow(*each, False, 0, None, changed, now) for each in secrets.items())
            db.insert(
                "devices", map(msgspec.structs.astuple, rows), len(DeviceRow.__struct_fields__)
            )
            marked = (
                (name, key, value) for name, of in (tags or {}).items() for key, value in of.items()
            )
            db.insert("tags", ((*one, number_of(one[2])) for one in marked), 4)

    def add_device(self, device: str, secret: bytes) -> None:
        """Enrol one device. Raises ``ConfigError`` if the id is taken."""
        self.add_devices({device: secret})

    def revoke_device(self, device: str) -> None:
        """Revoke a device. Raises ``ConfigError`` if there is no such device."""
        with self._transaction() as db:
            sql = "UPDATE devices SET revoked = 1, changed = ? WHERE device = ?"
            if not db.execute(sql, (self._enrol(db), device)).rowcount:
                raise ConfigError("device", device, "an enrolled device")
            db.execute("DELETE FROM renewals WHERE device = ?", (device,))
            db.execute("UPDATE certificates SET state = 'revoked' WHERE name = ?", (device,))

    def reissue_device(self, device: str, secret: bytes) -> None:
        """Give a device, even a revoked one, a new secret. Its start count restarts from 0.

        Raises ``ConfigError`` if there is no such device.
        """
        sql = (
            "UPDATE devices SET secret = ?, revoked = 0, incarnation = 0, hello = NULL, changed = ?,"
            " enrolled = ? WHERE device = ?"
        )
        with self._transaction() as db:
            if not db.execute(sql, (secret, self._enrol(db), self._now(db), device)).rowcount:
                raise ConfigError("device", device, "an enrolled device")
            for table in ("abilities", "renewals"):
                db.execute(f"DELETE FROM {table} WHERE device = ?", (device,))

    def packet_limits(self) -> list[int]:
        """Return the MQTT packet limits that devices have announced; 0 means no limit."""
        with self._db.errors():
            rows = self._db.execute(
                "SELECT DISTINCT a.max_packet FROM abilities a JOIN devices d ON d.device = a.device"
                " WHERE d.revoked = 0 ORDER BY a.max_packet"
            )
            return [int(row[0]) for row in rows]

    def save_hello(self, row: DeviceRow, incarnation: int, hello: bytes) -> None:
        """Store a device's newest start count and hello, unless its secret has changed in the meantime."""
        sql = "UPDATE devices SET incarnation = ?, hello = ?, changed = ? WHERE device = ? AND secret = ?"
        known = msgspec.structs.replace(row, hello=hello).read_hello()
        with self._transaction() as db:
            values = incarnation, hello, self._stamp(db), row.device, row.secret
            if db.execute(sql, values).rowcount and known is not None:
                self._put(db, "abilities", AbilityRow.of(row.device, known))

    def _enrol(self, db: Dialect) -> int:
        """Record that enrolment has changed. Returns this transaction's number."""
        db.execute("UPDATE meta SET value = value + 1 WHERE key = 'enrolment'")
        return self._stamp(db)
