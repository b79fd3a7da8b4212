"""Records which processes serve a fleet, which shards each has, and which one leads.

A serving process has a row with a ``token`` that no other process has had. It renews the row while it is
alive. When the row has not been renewed for ``LEASE_S`` by the database's clock, or the process is known to
be dead, another process deletes the row. Shards and the lead belong to a token; if the token has no row,
they are free.

The fence: every transaction in which a process writes first locks that process's row with ``FOR KEY
SHARE``, and is refused if the row is gone. Deleting the row waits for that lock. So even a process that is
stopped between its last statement and its commit either commits before it is replaced, or not at all.
Renewing does not wait, since ``token`` is the row's key. Writes that only the leader makes (rounds, and the
ends of runs) also lock the row of the leader's lease against any change, so the lead cannot change hands in
the middle of one. The server ends a transaction that is idle for ``IDLE_S``, so a stopped process delays
others no longer than that.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from sedge_cloud.store.connection import Database
from sedge_cloud.store.contract import Dialect

# A process counts as lost LEASE_S seconds after its last renewal, and renews every RENEW_S.
LEASE_S, RENEW_S = 10.0, 2.0
# How long a transaction may be idle, which must be less than a lease.
IDLE_S = 5.0


class ProcessRow(msgspec.Struct, frozen=True):
    """A process that serves the fleet. Its ``token`` is higher than any earlier process's.

    ``boot`` identifies the host's boot and the namespace in which ``pid`` is valid, and ``started`` is when
    the process started, in the host's ticks. ``joined`` and ``expires`` are times on the database's clock.
    A process that ``leaves`` no longer takes shards or the lead.
    """

    token: int
    host: str
    boot: str
    pid: int
    started: int
    joined: float = 0.0
    expires: float = 0.0
    leaves: bool = False


class LeaseRow(msgspec.Struct, frozen=True):
    """The lease of a shard or of the lead. ``token`` identifies the process that holds it; 0 if none does.

    ``heir`` is the token of the process that should get it next, or 0. ``ready`` says that the heir already
    receives the shard's frames.
    """

    name: str
    token: int
    heir: int = 0
    ready: bool = False


# Returns True if a process is gone, given the time on the database's clock.
IsGone: TypeAlias = Callable[[ProcessRow, float], bool]
# Takes the living processes and all leases. Returns the changed leases.
Plan: TypeAlias = Callable[[Sequence[ProcessRow], Sequence[LeaseRow]], Iterable[LeaseRow]]


class Leases(Database):
    """Processes and leases as rows.

    Each method runs as one transaction and raises ``StorageError`` on failure.
    """

    @property
    def token(self) -> int | None:
        """Return this process's token; None while it is not serving."""
        return self._token

    def clock(self) -> float:
        """Return the time on the database's clock, in seconds since 1970."""
        with self._db.errors():
            return float(self._db.execute(f"SELECT {self._db.clock}").fetchone()[0])

    def join(self, process: ProcessRow, is_gone: IsGone) -> ProcessRow:
        """Register as a serving process with a new token, which fences all later writes.

        Rows of processes that are gone are deleted.
        """
        with self._transaction(alone=True, fenced=False) as db:
            self._bury(db, is_gone)
            db.execute("UPDATE meta SET value = value + 1 WHERE key = 'token'")
            token = int(db.execute("SELECT value FROM meta WHERE key = 'token'").fetchone()[0])
            now = self._now(db)
            row = msgspec.structs.replace(process, token=token, joined=now, expires=now + LEASE_S)
            self._insert(db, "processes", row)
            # Rows of processes that are gone would pile up; only the newest row is still needed.
            db.execute(
                "DELETE FROM coordinator WHERE id NOT IN (SELECT token FROM processes)"
                " AND heard < (SELECT MAX(heard) FROM coordinator)"
            )
        self.limit_idle()
        self._token = token
        return row

    def limit_idle(self) -> None:
        """Ensure that no process waits longer than ``IDLE_S`` for one that stopped during a transaction."""
        with self._db.errors():
            self._db.limit_idle(IDLE_S)

    def renew(self) -> float:
        """Renew this process's lease. Returns the database's clock.

        Raises ``LeaseLost`` if another process has replaced this one.
        """
        with self._transaction(flush=False, quiet=True) as db:
            now = self._now(db)
            sql = "UPDATE processes SET expires = ? WHERE token = ?"
            db.execute(sql, (now + LEASE_S, self._token))
        return now

    def vouch(self, token: int) -> None:
        """Renew the lease of the process with this token; does nothing if it was replaced."""
        with self._transaction(flush=False, quiet=True) as db:
            sql = "UPDATE processes SET expires = ? WHERE token = ?"
            db.execute(sql, (self._now(db) + LEASE_S, token))

    def retire(self, leaves: bool) -> None:
        """If ``leaves``, keep serving but take no more shards; otherwise take shards again."""
        sql = "UPDATE processes SET leaves = ? WHERE token = ?"
        with self._transaction() as db:
            db.execute(sql, (int(leaves), self._token))

    def leave(self) -> None:
        """Stop serving, which frees this process's shards and the lead."""
        with self._transaction() as db:
            db.execute("DELETE FROM processes WHERE token = ?", (self._token,))
        self._token = None

    def settle(self, plan: Plan, is_gone: IsGone) -> None:
        """Delete the rows of processes that are gone, and make the changes to leases that ``plan`` returns.

        No other process can change leases at the same time.
        """
        with self._transaction(alone=True) as db:
            self._bury(db, is_gone)
            for lease in plan(self.processes(), self.leases()):
                self._put(db, "leases", lease)

    def processes(self) -> list[ProcessRow]:
        """Return all processes that have joined and not left, oldest first."""
        return self._rows(ProcessRow, "SELECT * FROM processes ORDER BY token")

    def leases(self) -> list[LeaseRow]:
        """Return all leases, sorted by name."""
        return self._rows(LeaseRow, "SELECT * FROM leases ORDER BY name")

    def _bury(self, db: Dialect, is_gone: IsGone) -> None:
        """Delete the rows of processes that are gone."""
        now = self._now(db)
        for process in self.processes():
            if process.token != self._token and is_gone(process, now):
                db.execute("DELETE FROM processes WHERE token = ?", (process.token,))
