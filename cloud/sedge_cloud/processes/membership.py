"""This process as one of those that serve the fleet: renews its lease and learns its shards.

Between two checks of the store it relies on the last one, but never for longer than a lease lasts: a
process that wakes after a pause drops incoming frames until it has checked. Writes need no such precaution,
because the store refuses writes from a process that has been replaced.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from sedge_cloud.processes.identity import has_ended, this_process
from sedge_cloud.processes.sharing import plan, without_gone
from sedge_cloud.store.connection import LeaseLost
from sedge_cloud.store.leases import LEASE_S, RENEW_S, LeaseRow, Leases, ProcessRow
from sedge_cloud.store.schema import LEADER
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.topics import SHARDS

# How often a process looks for changes made by other processes, in seconds.
LOOK_S = 0.5
# A host's clock may differ from the database's by this many seconds before a warning is logged about it.
SKEW_S = 60.0


class Membership:
    """One of the fleet's processes, which joins when this object is created; ``now`` is the loop's clock.

    The process owns ``shards``, and may be the one that ``leads``. It is about to get the ``coming``
    shards, and has yet to report that it is ready for the ``unready`` ones among them. For its own shards
    in ``going``, the process that takes over is ready. ``poll`` was last called at ``polled_at``. If no
    other process can serve (``alone``: this process holds the store's lock), it replaces any registered
    process, whatever that process's row says.
    """

    def __init__(self, store: Leases, now: float, alone: bool) -> None:
        self._store, self._alone = store, alone
        self._process = this_process()
        self.shards = self.coming = self.going = self.unready = frozenset[str]()
        self.leads = False
        self.notes: list[Note] = []
        self._ahead = 0.0  # the database's clock minus the loop's
        self._renewed_at = self._trusts_at = self._look_at = self.polled_at = now
        self._others: dict[int, ProcessRow] = {}
        self._is_in = self._leaves = False
        self._join(now)

    @property
    def token(self) -> int:
        """Return this process's token, which is never used for another process."""
        return self._process.token

    def wall(self, now: float) -> float:
        """Convert loop time to the database's clock."""
        return now + self._ahead

    def is_sure(self, now: float) -> bool:
        """Return True if it is certain that no other process has replaced this one yet."""
        return self._is_in and (self._alone or now < self._renewed_at + LEASE_S)

    def timer(self) -> float:
        """Return the time at which ``poll`` must next be called."""
        return self._look_at

    def poll(self, now: float) -> bool:
        """Renew the lease and check the store, if due. Returns True if the shards or the leader changed.

        Raises ``LeaseLost`` if this process must serve alone and another one has replaced it.
        """
        self.polled_at = now
        if now < self._look_at:
            return False
        before = self._standing()
        self._look_at = now + LOOK_S
        try:
            if not self._is_in:
                self._join(now)
            elif now >= self._renewed_at + RENEW_S:
                self._renew(now)
            if self._leaves != self._process.leaves:
                self._store.retire(self._leaves)
                self._process = replace(self._process, leaves=self._leaves)
            if not self._alone:
                self._look(now)
        except LeaseLost as exc:
            if self._alone:
                raise
            self.notes.append(Note(logging.ERROR, str(exc)))
            self._forget()
        except StorageError as exc:  # the store may be back before the lease expires
            self._look_at = now + RENEW_S
            self.notes.append(Note(logging.ERROR, str(exc)))
        return self._standing() != before

    def take_notes(self) -> list[Note]:
        """Remove and return the messages to log."""
        notes, self.notes = self.notes, []
        return notes

    def listens(self) -> None:
        """Report that this process is ready for the ``coming`` shards because it receives their frames."""
        self._change(lambda lease: replace(lease, ready=lease.ready or lease.heir == self.token))
        self.unready = frozenset()

    def hand_over(self) -> None:
        """Hand over the ``going`` shards. All frames received for them must have been processed.

        They belong to this process no longer, even if the next check finds that they have come back.
        """
        going = self.going
        self._change(
            lambda lease: (
                LeaseRow(lease.name, lease.heir)
                if lease.name in going and lease.heir and lease.token == self.token
                else lease
            )
        )
        self._own(self.shards - going)
        self.going = frozenset()

    def retire(self, leaves: bool) -> None:
        """Start to hand over all shards to other processes or, if not ``leaves``, to take shards again.

        The next ``poll`` that reaches the store records the decision.
        """
        self._leaves, self._look_at = leaves, 0.0

    def leave(self) -> None:
        """Release this process's leases. If that fails, other processes take them over when they expire."""
        with suppress(StorageError):
            self._store.leave()

    @property
    def is_alone(self) -> bool:
        """Return True if there is no other process that could take over."""
        return not any(not process.leaves for process in self._others.values())

    @property
    def others(self) -> int:
        """Return how many other processes serve the fleet."""
        return len(self._others)

    def _join(self, now: float) -> None:
        self._process = self._store.join(self._process, self._is_gone)
        self._ahead = self._process.joined - now
        self._renewed_at, self._is_in = now, True
        if abs(ahead := time.time() - self._process.joined) > SKEW_S:
            text = f"this host's clock is {ahead:+.0f} s off the database's, which takes precedence"
            self._note(logging.WARNING, text)
        self._look(now)

    def _renew(self, now: float) -> None:
        # This process holds the store's lock, so it need not write a renewal, which would fail on a full
        # disk.
        if self._alone:
            self._seen(now)
        ahead = (self._store.clock() if self._alone else self._store.renew()) - now
        # After a gap or a clock change, silent processes get a full lease: whatever silenced this process
        # may have silenced them too, and a changed clock proves nothing about them.
        if not self.is_sure(now) or abs(ahead - self._ahead) > LEASE_S / 2:
            self._trusts_at = now + LEASE_S
        self._ahead, self._renewed_at = ahead, now

    def _look(self, now: float) -> None:
        """Check which shards this process owns, and change leases if necessary."""
        gone, living, leases = self._seen(now)
        if gone or plan(self.token, living, leases):
            self._store.settle(partial(plan, self.token), self._is_gone)
            gone, living, leases = self._seen(now)
        self._note_others(living, gone)
        self._take_over(living, leases)

    def _seen(self, now: float) -> tuple[list[ProcessRow], list[ProcessRow], Sequence[LeaseRow]]:
        """Return the processes that have gone, those that are alive, and all leases.

        Raises ``LeaseLost`` if this process has lost its lease.
        """
        processes, leases = self._store.processes(), self._store.leases()
        if self.token not in (process.token for process in processes):
            raise self._store.lease_lost()
        gone = [
            it for it in processes if it.token != self.token and self._is_gone(it, self.wall(now))
        ]
        return gone, [process for process in processes if process not in gone], leases

    def _is_gone(self, process: ProcessRow, now: float) -> bool:
        """Return True if a process has ended, or stayed silent while this one renewed its own lease."""
        if self._alone:
            return True
        # An expiry later than any lease allows also counts as silence: it comes from a database clock that
        # has since been set back.
        is_silent = not now <= process.expires <= now + 2 * LEASE_S
        return (is_silent and self._renewed_at >= self._trusts_at) or has_ended(
            process, self._process
        )

    def _note_others(self, living: Sequence[ProcessRow], gone: Sequence[ProcessRow]) -> None:
        others = {process.token: process for process in living if process.token != self.token}
        for token in others.keys() - self._others.keys():
            self._note(logging.INFO, f"{_name(others[token])} also serves the fleet")
        for token in self._others.keys() - others.keys():
            self._note(logging.WARNING, f"{_name(self._others[token])} no longer serves the fleet")
        self._others = others

    def _take_over(self, living: Sequence[ProcessRow], leases: Sequence[LeaseRow]) -> None:
        tokens = {process.token for process in living}
        staying = {process.token for process in living if not process.leaves}
        mine, coming, going, unready = set[str](), set[str](), set[str](), set[str]()
        for lease in (without_gone(lease, tokens, staying) for lease in leases):
            if lease.name == LEADER:
                self._set_lead(lease.token == self.token)
            elif lease.token == self.token:
                mine.add(lease.name)
                going |= {lease.name} if lease.ready else set()
            elif lease.heir == self.token:
                coming.add(lease.name)
                unready |= set() if lease.ready else {lease.name}
        self._own(frozenset(mine))
        self.coming, self.going = frozenset(coming), frozenset(going)
        self.unready = frozenset(unready)

    def _own(self, shards: frozenset[str]) -> None:
        if shards != self.shards:
            self._note(logging.INFO, f"this process serves {len(shards)} of {SHARDS} shards")
        self.shards = shards

    def _set_lead(self, leads: bool) -> None:
        if leads != self.leads:
            self._note(logging.INFO, "this process leads" if leads else "another process leads")
        self.leads = leads

    def _change(self, changed: Callable[[LeaseRow], LeaseRow]) -> None:
        """Change leases in the store. The next check loads the result."""

        def changes(living: Sequence[ProcessRow], leases: Sequence[LeaseRow]) -> list[LeaseRow]:
            return [new for lease in leases if (new := changed(lease)) != lease]

        self._look_at = 0.0
        try:
            self._store.settle(changes, lambda process, now: False)
        except StorageError as exc:  # the next check finds out what remains to be done
            self._note(logging.ERROR, str(exc))

    def _forget(self) -> None:
        self.shards = self.coming = self.going = self.unready = frozenset()
        self.leads = self._is_in = False
        self._look_at = 0.0

    def _standing(self) -> tuple[object, ...]:
        return self.token, self.shards, self.coming, self.going, self.leads

    def _note(self, level: int, text: str) -> None:
        if not self._alone:
            self.notes.append(Note(level, text))


def _name(process: ProcessRow) -> str:
    return f"process {process.pid} on {process.host}"
