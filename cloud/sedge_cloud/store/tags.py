"""Devices' tags and pauses, and the selection of devices by conditions on tags and attributes."""

from collections.abc import Collection, Mapping, Sequence

from sedge_cloud.store.connection import marks, portions
from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.devices import Devices
from sedge_cloud.store.selector import ATTRIBUTES, TAG, Condition, number_of
from sedge_protocol.errors import ConfigError

MAX_VALUE = 64
# The maximum number of tags per device.
MAX_TAGS = 32


def check_tag(key: str, value: str, where: str = "") -> None:
    """Raise ``ConfigError`` for a key or a value that is not allowed in a tag."""
    if not TAG.fullmatch(key) or key in ATTRIBUTES or key in ("and", "or", "not", "device"):
        expected = (
            "a tag: 1 to 32 of a-z, 0-9, _ and -, beginning with a letter, not an attribute's name"
        )
        raise ConfigError("tag", key, expected, where)
    if len(value) > MAX_VALUE or not value.isprintable() or "'" in value or '"' in value:
        expected = f"at most {MAX_VALUE} printable characters without quotes"
        raise ConfigError(f"tag {key}", value, expected, where)


class Tags(Devices):
    """Tags, pauses and selections.

    Each method runs as one transaction and raises ``StorageError`` on failure.
    """

    def tag(self, chosen: Condition | Collection[str], tags: Mapping[str, str]) -> int:
        """Give devices tags; an empty value removes a tag. Returns the number of devices.

        Raises ``ConfigError`` for a tag that is not allowed, and if a device is not enrolled or would get
        more than ``MAX_TAGS`` tags.
        """
        for key, value in tags.items():
            check_tag(key, value)
        with self._transaction() as db:
            names = self._chosen(db, chosen)
            self._put_tags(db, dict.fromkeys(names, tags))
            self._enrol(db)
        return len(names)

    def pause(self, chosen: Condition | Collection[str], since: float) -> int:
        """Exclude these devices from cohorts until ``resume``. Returns the number of devices.

        Raises ``ConfigError`` if a device is not enrolled.
        """
        return self._set_aside(
            chosen, "INSERT INTO paused VALUES (?, ?) ON CONFLICT DO NOTHING", since
        )

    def resume(self, chosen: Condition | Collection[str]) -> int:
        """Admit these devices to cohorts again. Returns the number of devices.

        Raises ``ConfigError`` as ``pause`` does.
        """
        return self._set_aside(chosen, "DELETE FROM paused WHERE device = ?")

    def paused(self) -> dict[str, float]:
        """Return the paused devices, with the times at which they were paused (wall clock)."""
        with self._db.errors():
            rows = self._db.execute("SELECT device, since FROM paused")
            return {str(name): float(since) for name, since in rows}

    def _set_aside(self, chosen: Condition | Collection[str], sql: str, *more: float) -> int:
        with self._transaction() as db:
            changed, names = self._enrol(db), self._chosen(db, chosen)
            for name in names:
                db.execute(sql, (name, *more))
                db.execute("UPDATE devices SET changed = ? WHERE device = ?", (changed, name))
        return len(names)

    def _chosen(self, db: Dialect, chosen: Condition | Collection[str]) -> list[str]:
        """Return the chosen ids. Raises ``ConfigError`` if a device is not enrolled."""
        if isinstance(chosen, Condition):
            return [str(row[0]) for row in db.execute(*chosen.query("d.device", "devices"))]
        names = sorted(chosen)
        unknown = set(names) - self.devices_named(names).keys()
        if unknown:
            raise ConfigError("device", min(unknown), "an enrolled device")
        return names

    def tags_of(self, devices: Collection[str]) -> dict[str, dict[str, str]]:
        """Return these devices' tags by device and key; devices with no tags are left out."""
        found: dict[str, dict[str, str]] = {}
        with self._db.errors():
            for some in portions(sorted(devices)):
                sql = f"SELECT device, key, value FROM tags WHERE device IN ({marks(some)})"
                for device, key, value in self._db.execute(f"{sql} ORDER BY device, key", some):
                    found.setdefault(str(device), {})[str(key)] = str(value)
        return found

    def tag_keys(self) -> list[str]:
        """Return the sorted keys of all tags."""
        keys, sql = list[str](), "SELECT MIN(key) FROM tags WHERE key > ?"
        with self._db.errors():
            while (row := self._db.execute(sql, (keys[-1] if keys else "",)).fetchone())[0]:
                keys.append(str(row[0]))
        return keys

    def require_known(self, condition: Condition, key: str) -> None:
        """Raise ``ConfigError`` if a condition names a tag that no device has."""
        known = self.tag_keys() if condition.keys else []
        for name in sorted(condition.keys.difference(known)):
            expected = f"an attribute ({', '.join(ATTRIBUTES)}) or a tag ({', '.join(known) or 'none yet'})"
            raise ConfigError(key, name, expected)

    def online_matching(self, condition: Condition, among: Sequence[str] = ()) -> set[str]:
        """Return the ids of the online devices that match a condition.

        If ``among`` is not empty, only the devices in it are considered.
        """
        sql, values = condition.devices("sessions", "d.online = 1")
        if among:
            sql, values = f"{sql} AND d.device IN ({marks(among)})", (*values, *among)
        with self._db.errors():
            return {str(row[0]) for row in self._db.execute(sql, values)}

    def _put_tags(self, db: Dialect, tags: Mapping[str, Mapping[str, str]]) -> None:
        """Store tags by device and key."""
        gone = [(d, key) for d, of in tags.items() for key, value in of.items() if not value]
        for device, key in gone:
            db.execute("DELETE FROM tags WHERE device = ? AND key = ?", (device, key))
        rows = [
            (device, key, value, number_of(value))
            for device, of in tags.items()
            for key, value in of.items()
            if value
        ]
        for some in portions(rows, 4):
            values = ",".join(["(?,?,?,?)"] * len(some))
            db.execute(
                f"INSERT INTO tags VALUES {values} ON CONFLICT (device, key) DO UPDATE"
                " SET value = excluded.value, number = excluded.number",
                [value for row in some for value in row],
            )
        for names in portions(sorted({row[0] for row in rows})):
            sql = f"SELECT device FROM tags WHERE device IN ({marks(names)})"
            many = f"{sql} GROUP BY device HAVING COUNT(*) > {MAX_TAGS} ORDER BY device LIMIT 1"
            if (row := db.execute(many, names).fetchone()) is not None:
                raise ConfigError("tag", str(row[0]), f"at most {MAX_TAGS} tags per device")
