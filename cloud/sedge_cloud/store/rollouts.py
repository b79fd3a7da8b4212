"""Rollouts in phases: new bundles for a running run's devices, or settings for the fleet's devices.

    in_progress -> succeeded      the last phase went well; the devices keep the new bundle
                -> aborted        too many devices failed, or got worse: all return to the previous bundle
                -> rolled_back    by the operator's command; also from ``succeeded``

A device's outcome is determined by its answers to the orders that named the bundle. The terms are taken
from Mender and AWS IoT Jobs.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias, TypeVar

import msgspec

from sedge_cloud.store.connection import Database, marks
from sedge_cloud.store.selector import ALL, parse
from sedge_protocol.errors import ConfigError, StorageError

T = TypeVar("T")
# Takes the place of a run's name in rollouts of settings.
FLEET = ""
RolloutState: TypeAlias = Literal["in_progress", "succeeded", "aborted", "rolled_back"]


class RolloutPlan(msgspec.Struct, frozen=True):
    """The plan of a rollout: ``phases`` are shares (0 to 1) of the devices that match ``where``.

    ``bundle`` is the name of the new bundle, or of the file that the ``settings`` (settings.py) come from.

    A phase lasts at least ``hold_s``, and until ``min_devices`` of the devices that it adds have succeeded.
    If it adds fewer, every added device that is online or was heard from within ``hold_s`` must succeed,
    and at least one device must. The rollout is aborted if the share of its devices that fail exceeds the
    share among the other devices by more than ``abort_at``, or if a metric falls by more than ``worse_by``
    compared with the other devices.
    """

    phases: tuple[float, ...]
    hold_s: float = 0.0
    abort_at: float = 0.05
    worse_by: float = 0.1
    min_devices: int = 10
    where: str = ""
    bundle: str = ""
    settings: bytes = b""


class RolloutProgress(msgspec.Struct, frozen=True):
    """The progress of a rollout, which has been in ``phase`` (from 0) ``since`` (wall clock).

    For each phase begun so far, ``bounds`` has the largest rank (``rank``) of its devices, and ``sizes``
    their number. The rollout's first orders are in ``first_round`` or later. ``failed`` devices are back on
    their previous bundle or settings, for the given ``reasons``, and ``succeeded`` counts the devices whose
    update was accepted. ``ended`` is when the rollout was aborted or its last phase ended (wall clock; 0:
    not yet). ``phase_round`` is the first round of the phase. ``awaited`` names a few of the devices
    without an outcome.

    ``tally`` sums up the devices' answers in the rounds up to ``tallied``, whose rows are not read again
    and may be deleted. It is empty once the rollout has ended.
    """

    since: float
    first_round: int
    phase: int = 0
    bounds: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    failed: tuple[str, ...] = ()
    succeeded: int = 0
    ended: float = 0.0
    tallied: int = 0
    tally: bytes = b""
    phase_round: int = 0
    reasons: dict[str, str] = {}
    awaited: tuple[str, ...] = ()


class RolloutRow(msgspec.Struct, frozen=True):
    """One rollout of a run; ``plan`` and ``progress`` are MessagePack, and ``why`` says why it ended."""

    run: str
    number: int
    bundle: bytes
    state: RolloutState
    plan: bytes
    progress: bytes
    created: float
    why: str = ""

    def read_plan(self) -> RolloutPlan:
        """Decode ``plan``. Raises ``StorageError`` when it cannot be read."""
        return read(self, self.plan, RolloutPlan)

    def read_progress(self) -> RolloutProgress:
        """Decode ``progress``. Raises ``StorageError`` when it cannot be read."""
        return read(self, self.progress, RolloutProgress)


class Tried(msgspec.Struct, frozen=True):
    """One of a run's orders, and its device's answer; ``report`` comes from the update."""

    device: str
    round: int
    bundle: bytes
    declined: str
    rejected: str
    report: bytes | None
    open: bool


class Rollouts(Database):
    """Rollouts as rows. Each method runs as one transaction and raises ``StorageError`` on failure."""

    def add_rollout(self, row: RolloutRow) -> None:
        """Store a new rollout. Raises ``ConfigError`` if another rollout of the run is in progress."""
        with self._transaction() as db:
            if row.run != FLEET:
                self._require_run(db, row.run, alone=True)
            sql = "SELECT number FROM rollouts WHERE run = ? AND state = 'in_progress'"
            if (found := db.execute(sql, (row.run,)).fetchone()) is not None:
                command = f"rollout rollback {row.run}".rstrip()
                expected = f"no rollout in progress: end rollout {found[0]} first (`{command}`)"
                raise ConfigError("rollout start", row.run or "settings", expected)
            self._insert(db, "rollouts", row)

    def rollouts(self, run: str) -> list[RolloutRow]:
        """Return a run's rollouts, oldest first."""
        return self._rows(RolloutRow, "SELECT * FROM rollouts WHERE run = ? ORDER BY number", run)

    def last_bundle(self, run: str, device: str) -> bytes | None:
        """Return the blob of the bundle that a device's order named in its last closed round.

        Returns b"" for the run's own bundle, and None if that order is no longer stored.
        """
        sql = (
            "SELECT o.bundle FROM histories h"
            " JOIN orders o ON o.run = h.run AND o.round = h.round AND o.device = h.device"
            " WHERE h.run = ? AND h.device = ?"
        )
        with self._db.errors():
            row = self._db.execute(sql, (run, device)).fetchone()
        return None if row is None else bytes(row[0])

    def save_rollout(self, row: RolloutRow) -> bool:
        """Store the progress of a rollout. Returns False if it is no longer in progress."""
        sql = (
            "UPDATE rollouts SET state = ?, progress = ?, why = ?"
            " WHERE run = ? AND number = ? AND state = 'in_progress'"
        )
        with self._transaction(leads=True) as db:
            given = (row.state, row.progress, row.why, row.run, row.number)
            return bool(db.execute(sql, given).rowcount)

    def roll_back(self, run: str, why: str, number: int | None = None) -> tuple[RolloutRow, bool]:
        """Roll back the newest rollout, or the given one. Returns its row, and whether it was in force.

        Raises ``ConfigError`` if there is no such rollout.
        """
        with self._transaction():
            rows = [row for row in self.rollouts(run) if number in (None, row.number)]
            if not rows:
                raise ConfigError("rollout rollback", run or "settings", "an existing rollout")
            row = rows[-1]
            if row.state not in ("in_progress", "succeeded"):
                return row, False
            coded = msgspec.msgpack.encode(msgspec.structs.replace(row.read_progress(), tally=b""))
            sql = (
                "UPDATE rollouts SET state = 'rolled_back', why = ?, progress = ?"
                " WHERE run = ? AND number = ?"
            )
            self._db.execute(sql, (why, coded, run, row.number))
        return row, True

    def eligible(self, where: str, among: Sequence[str] = ()) -> list[str]:
        """Return the enrolled devices that match a condition; all of them if ``where`` is empty.

        If ``among`` is not empty, only the devices in it are considered.
        """
        condition = parse(where) if where else ALL
        sql, values = condition.query("d.device", "devices", "d.revoked = 0")
        if among:
            sql, values = f"{sql} AND d.device IN ({marks(among)})", (*values, *among)
        with self._db.errors():
            return [str(row[0]) for row in self._db.execute(sql, values)]

    def tried(self, run: str, first: int, last: int) -> list[Tried]:
        """Return all of a run's orders in these rounds, sorted by round and device."""
        sql = (
            "SELECT o.device, o.round, o.bundle, o.declined, COALESCE(u.rejected, ''),"
            " u.report, r.open FROM orders o"
            " JOIN rounds r ON r.run = o.run AND r.round = o.round"
            " LEFT JOIN updates u ON u.run = o.run AND u.round = o.round AND u.device = o.device"
            " WHERE o.run = ? AND o.round BETWEEN ? AND ? ORDER BY o.round, o.device"
        )
        return self._rows(Tried, sql, run, first, last)


def read(row: RolloutRow, coded: bytes, kind: type[T]) -> T:
    """Decode a part of a rollout's row. Raises ``StorageError`` when it cannot be read."""
    try:
        return msgspec.msgpack.decode(coded, type=kind)
    except ValueError as exc:  # msgspec's errors are ValueErrors
        raise StorageError(f"run {row.run}, rollout {row.number}: {exc}") from exc
