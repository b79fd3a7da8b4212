"""The coordinator's state: a database and blobs. The queries are in ``Store`` and its base classes.

Blobs are written and flushed before the transaction that names them, so a row never names a missing blob;
blobs that a crash leaves unnamed are collected. Commands also write here, even while the service runs; the
service notices their changes through ``version``.
"""

from collections.abc import Callable, Collection, Sequence
from secrets import token_bytes
from typing import TypeAlias

from sedge_cloud.store.certificates import Certificates
from sedge_cloud.store.connection import marks, portions
from sedge_cloud.store.leases import Leases
from sedge_cloud.store.observed import Observed
from sedge_cloud.store.receipts import Receipts
from sedge_cloud.store.records import ClosedRound
from sedge_cloud.store.renewals import Renewals
from sedge_cloud.store.rollouts import Rollouts
from sedge_cloud.store.rows import (
    LATE_ROUNDS,
    ClientModelRow,
    OrderRow,
    RoundRow,
    RunRow,
    TrafficRow,
)
from sedge_cloud.store.schema import FINISHED, RUNNING, named_blobs_sql, steps_of
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.wire.frame import next_incarnation

# Returns True if a run's row is still that of the run that the leader has loaded.
IsCurrent: TypeAlias = Callable[[RunRow], bool]


class Store(Receipts, Observed, Renewals, Certificates, Rollouts, Leases):
    """The coordinator's state.

    Each method runs as one transaction, and raises ``StorageError`` on failure.
    """

    def require_fleet(self, name: str) -> None:
        """Raise ``ConfigError`` if the store is another fleet's. A new store is assigned to this fleet."""
        with self._db.errors():
            row = self._db.execute("SELECT name FROM fleet").fetchone()
        if row is None:
            with self._transaction() as db:
                sql = "INSERT INTO fleet VALUES (?, ?) ON CONFLICT DO NOTHING"
                db.execute(sql, (name, token_bytes(32)))
        elif row[0] != name:
            raise ConfigError("fleet", name, f"{row[0]!r}, which owns the store {self.place}")

    def secret(self) -> bytes:
        """Return a secret that only the fleet's coordinators know."""
        with self._db.errors():
            return bytes(self._db.execute("SELECT secret FROM fleet").fetchone()[0])

    def next_incarnation(self, clock: int) -> int:
        """Return the next start count: above all earlier ones and, if plausible, at least ``clock``."""
        with self._transaction() as db:
            sql = "SELECT value FROM meta WHERE key = 'incarnation' FOR UPDATE"
            row = db.execute(sql).fetchone()
            incarnation = next_incarnation(int(row[0]), clock)
            db.execute("UPDATE meta SET value = ? WHERE key = 'incarnation'", (incarnation,))
        return incarnation

    def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        return self._rows(RunRow, "SELECT * FROM runs ORDER BY created, run")

    def add_run(self, row: RunRow, past: Sequence[ClientModelRow] = ()) -> None:
        """Store a run and ``past``, its first client models.

        Raises ``ConfigError`` if its name is taken.
        """
        with self._transaction() as db:
            if db.execute("SELECT 1 FROM runs WHERE run = ?", (row.run,)).fetchone():
                raise ConfigError("run", row.run, "a name that no run has yet")
            self._insert(db, "runs", row)
            self._insert(db, "client_models", *past)

    def set_status(self, run: str, status: str, why: str = "", ended: float = 0.0) -> None:
        """End a running run, with the reason and the time.

        Raises ``ConfigError`` if there is no such run.
        """
        sql = "UPDATE runs SET status = ?, why = ?, ended = ? WHERE run = ? AND status = 'running'"
        with self._transaction(leads=True) as db:
            if not db.execute(sql, (status, why, ended, run)).rowcount:
                raise ConfigError("run", run, "the name of a running run")

    def resume_run(self, run: str, config: bytes, state: bytes, last: int, ends_at: float) -> None:
        """Resume an ended run after the round ``last``. If a round is open, it has until ``ends_at``.

        Raises ``ConfigError`` if the run is running.
        """
        sql = (
            "UPDATE runs SET status = 'running', why = '', ended = 0, config = ?, state = ?"
            " WHERE run = ? AND status != 'running'"
        )
        with self._transaction() as db:
            if not db.execute(sql, (config, state, run)).rowcount:
                raise ConfigError("run", run, "the name of a run that has ended")
            sql = "UPDATE rounds SET open = 0, phase = 'closed' WHERE run = ? AND round <= ?"
            db.execute(sql, (run, last))
            sql = (
                "UPDATE rounds SET phase = 'open', ends_at = ?, deadline = ?"
                " WHERE run = ? AND round > ? AND open = 1"
            )
            db.execute(sql, (ends_at, ends_at, run, last))

    def delete_run(self, run: str) -> None:
        """Delete every row of an ended run. Raises ``ConfigError`` if it is running."""
        with self._transaction() as db:
            sql = "DELETE FROM runs WHERE run = ? AND status != 'running'"
            if not db.execute(sql, (run,)).rowcount:
                raise ConfigError("run", run, "the name of a run that has ended")
            of_runs = (
                "rounds",
                "orders",
                "updates",
                "client_models",
                "traffic",
                "histories",
                "rollouts",
            )
            for table in of_runs:
                db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))

    def delete_old_rows(self, run: str, keep: int) -> int:
        """Delete the per-device rows of all closed rounds except the last ``keep``.

        Returns how many it deleted.
        """
        newest = "(SELECT MAX(round) FROM rounds WHERE run = :run AND open = 0)"
        rows = 0
        with self._transaction() as db:
            for table in ("orders", "updates", "traffic"):
                sql = f"DELETE FROM {table} WHERE run = :run AND round <= {newest} - :keep"
                rows += db.execute(sql, {"run": run, "keep": keep}).rowcount
        return rows

    def rounds(self, run: str) -> list[RoundRow]:
        """Return a run's rounds in order."""
        return self._rows(RoundRow, "SELECT * FROM rounds WHERE run = ? ORDER BY round", run)

    def current_round(self, run: str) -> RoundRow | None:
        """Return the run's open round, or None."""
        sql = "SELECT * FROM rounds WHERE run = ? AND open = 1 ORDER BY round"
        return next(iter(self._rows(RoundRow, sql, run)), None)

    def open_rounds(self) -> list[RoundRow]:
        """Return the open rounds of running runs and of finished runs that serve newcomers."""
        sql = (
            "SELECT * FROM rounds WHERE open = 1 AND run IN"
            " (SELECT run FROM runs WHERE status IN ('running', 'finished')) ORDER BY run, round"
        )
        return self._rows(RoundRow, sql)

    def round(self, run: str, number: int) -> RoundRow | None:
        """Return one round, or None."""
        sql = "SELECT * FROM rounds WHERE run = ? AND round = ?"
        return next(iter(self._rows(RoundRow, sql, run, number)), None)

    def open_round(
        self, row: RoundRow, orders: Sequence[OrderRow], is_current: IsCurrent = lambda row: True
    ) -> None:
        """Store a round and all of its orders, if the run ``is_current``."""
        with self._transaction(leads=True) as db:
            self._require_current(row.run, is_current)
            self._insert(db, "rounds", row)
            self._insert(db, "orders", *orders)

    def add_newcomer_orders(self, row: RoundRow, orders: Sequence[OrderRow]) -> None:
        """Store a finished run's orders for newcomers, and their round unless it is already stored.

        Raises ``StorageError`` for a run that has just been resumed or deleted.
        """
        with self._transaction(leads=True) as db:
            self._require_run(db, row.run, FINISHED, alone=True)
            if not db.execute(
                "SELECT 1 FROM rounds WHERE run = ? AND round = ?", (row.run, row.round)
            ).fetchone():
                self._insert(db, "rounds", row)
            self._insert(db, "orders", *orders)

    def took_part(self, run: str, device: str, number: int) -> bool:
        """Return True if a device has a receipt from this round or later, or an order in a later round."""
        sql = (
            "SELECT EXISTS (SELECT 1 FROM updates"
            " WHERE run = :run AND round >= :number AND device = :device)"
            " OR EXISTS (SELECT 1 FROM orders WHERE run = :run AND round > :number AND device = :device)"
        )
        with self._db.errors():
            names: dict[str, str | int] = {"run": run, "device": device, "number": number}
            return bool(self._db.execute(sql, names).fetchone()[0])

    def close_round(self, closed: ClosedRound, is_current: IsCurrent = lambda row: True) -> bool:
        """Close a round in one transaction. Returns False if receipts have arrived in the meantime.

        Also returns False if another leader has closed the round. In both cases nothing is written. Orders
        for which updates are no longer accepted are emptied; their rows stay. Raises ``StorageError``
        unless the run ``is_current``.
        """
        run, number, it = closed.run, closed.round, closed.accounts
        with self._transaction(leads=True) as db:
            self._require_current(run, is_current)
            is_closed = db.execute(
                "UPDATE rounds SET open = 0, phase = 'closed', summary = ?, closed = ?, why = ?,"
                " up = ?, down = ?, parts = ? WHERE run = ? AND round = ? AND open = 1"
                " AND receipts = ?",
                (
                    closed.summary, closed.closed, closed.why, closed.up, closed.down, it.parts, run,
                    number, closed.receipts,
                ),
            )  # fmt: skip
            if not is_closed.rowcount:
                return False
            db.execute(
                "UPDATE orders SET patch = ?, work = ? WHERE run = ? AND round = ?",
                (b"", b"", run, number - LATE_ROUNDS - 1),
            )
            sql = "UPDATE runs SET state = ?, sums = COALESCE(?, sums) WHERE run = ?"
            db.execute(sql, (closed.state, it.sums or None, run))
            if closed.status != RUNNING:
                sql = (
                    "UPDATE runs SET status = ?, why = ?, ended = ?"
                    " WHERE run = ? AND status != 'stopped'"
                )
                db.execute(sql, (closed.status, closed.failure, closed.closed, run))
            self._save_traffic(db, closed.traffic)
            self._put_histories(db, it.histories)
        return True

    def _require_current(self, run: str, is_current: IsCurrent) -> None:
        """Raise ``StorageError`` if a command has deleted, resumed or replaced a run since it was loaded.

        All other transactions that write for the run wait until this one ends.
        """
        row = next(
            iter(self._rows(RunRow, "SELECT * FROM runs WHERE run = ? FOR UPDATE", run)), None
        )
        if row is None or not is_current(row):
            state = "is deleted" if row is None else "has been resumed, or begun anew"
            raise StorageError(f"run {run}: it {state}")

    def orders(self, run: str, number: int) -> list[OrderRow]:
        """Return the orders in a round, sorted by device."""
        sql = "SELECT * FROM orders WHERE run = ? AND round = ? ORDER BY device"
        return self._rows(OrderRow, sql, run, number)

    def order(self, run: str, number: int, device: str) -> OrderRow | None:
        """Return one device's order, or None."""
        sql = "SELECT * FROM orders WHERE run = ? AND round = ? AND device = ?"
        return next(iter(self._rows(OrderRow, sql, run, number, device)), None)

    def decline(self, run: str, number: int, device: str, reason: str) -> None:
        """Record that a device declines its order. In an open round, the decline counts as a receipt."""
        with self._transaction() as db:
            self._count_receipt(db, run, number)
            db.execute(
                "UPDATE orders SET declined = ? WHERE run = ? AND round = ? AND device = ?",
                (reason, run, number, device),
            )

    def declines(self, run: str, first: int, last: int) -> list[tuple[str, int, str]]:
        """Return (device, round, reason) of the declines in these rounds, oldest first.

        A decline is left out if the device has sent an update since then.
        """
        sql = (
            "SELECT o.device, o.round, o.declined FROM orders o"
            " LEFT JOIN client_models c ON c.run = o.run AND c.device = o.device"
            " WHERE o.run = ? AND o.round BETWEEN ? AND ? AND o.declined != ''"
            " AND o.round > COALESCE(c.round, 0) ORDER BY o.round, o.device"
        )
        with self._db.errors():
            rows = self._db.execute(sql, (run, first, last)).fetchall()
        return [(str(device), int(number), str(why)) for device, number, why in rows]

    def save_traffic(self, rows: Sequence[TrafficRow]) -> None:
        """Store the devices' traffic in a round. Once stored as true, ``whole`` stays true."""
        with self._transaction() as db:
            self._save_traffic(db, rows)

    def traffic(self, run: str, number: int) -> list[TrafficRow]:
        """Return the devices' traffic in a round, sorted by device."""
        sql = "SELECT * FROM traffic WHERE run = ? AND round = ? ORDER BY device"
        return self._rows(TrafficRow, sql, run, number)

    def client_model(self, run: str, device: str) -> ClientModelRow | None:
        """Return a device's last model, as references to blobs."""
        sql = "SELECT * FROM client_models WHERE run = ? AND device = ?"
        return next(iter(self._rows(ClientModelRow, sql, run, device)), None)

    def client_models(self, run: str, devices: Collection[str]) -> dict[str, ClientModelRow]:
        """Return these devices' last models, if there are any, as references to blobs."""
        sql = "SELECT * FROM client_models WHERE run = ? AND device IN ({})"
        rows = [
            row
            for names in portions(sorted(devices))
            for row in self._rows(ClientModelRow, sql.format(marks(names)), run, *names)
        ]
        return {row.device: row for row in rows}

    def round_models(self, run: str, numbers: Collection[int]) -> dict[int, tuple[bytes, bytes]]:
        """Return the blob and hash of the global model in each of these rounds."""
        sql = "SELECT round, model, model_hash FROM rounds WHERE run = ? AND round IN ({})"
        rows = self._among(sql, run, sorted(numbers))
        return {int(number): (bytes(model), bytes(named)) for number, model, named in rows}

    def summaries(self, run: str, numbers: Collection[int]) -> dict[int, bytes]:
        """Return the encoded summaries of whichever of these rounds are closed."""
        sql = "SELECT round, summary FROM rounds WHERE run = ? AND summary IS NOT NULL AND round IN ({})"
        return {int(n): bytes(coded) for n, coded in self._among(sql, run, sorted(numbers))}

    def last_orders(self, run: str, devices: Collection[str], since: int) -> dict[str, int]:
        """Return each of these devices' last round with an order, for rounds after ``since``."""
        sql = (
            "SELECT device, MAX(round) FROM orders WHERE run = ? AND round > ? AND device IN ({})"
            " GROUP BY device"
        )
        return {str(d): int(number) for d, number in self._among(sql, run, sorted(devices), since)}

    def client_devices(self, run: str) -> list[str]:
        """Return the ids of the devices that have a client model in a run, sorted."""
        sql = "SELECT device FROM client_models WHERE run = ? ORDER BY device"
        with self._db.errors():
            return [str(row[0]) for row in self._db.execute(sql, (run,))]

    def named_blobs(self) -> set[bytes]:
        """Return all blobs that rows refer to, but not those in runs' states or closed rounds' steps."""
        with self._db.errors():
            rows = self._db.execute(named_blobs_sql(LATE_ROUNDS))
            named = {bytes(row[0]) for row in rows if row[0]}
            coded = self._db.execute("SELECT steps FROM rounds WHERE open = 1").fetchall()
        return named.union(*({step.blob for step in steps_of(bytes(row[0]))} for row in coded))
