"""The store's queries by role. Each method runs as one transaction, and raises ``StorageError`` on failure.

``Store`` implements them on any dialect. The facts package only reads. Ingest and leader also write, and
share nothing but the rows: hints.py lists which rows each reads to learn what the other has done.
"""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from sedge_cloud.store.certificate_rows import RenewalQueries
from sedge_cloud.store.contract import MOST_ROWS, Blobs, Parts, Public
from sedge_cloud.store.records import Accounts, Census, ClosedRound
from sedge_cloud.store.rollouts import RolloutRows
from sedge_cloud.store.rows import (
    Arrival,
    ClientModelRow,
    CoordinatorRow,
    DeviceRow,
    DiskRow,
    HistoryRow,
    JoinRow,
    OrderRow,
    Received,
    RoundRow,
    RunRow,
    SessionRow,
    TokenRow,
    TrafficRow,
    UpdateRow,
)
from sedge_cloud.store.selector import Choice, Condition
from sedge_protocol.errors import StorageError


class Seen(Protocol):
    """The queries used by the facts package, and the blobs that rows name."""

    @property
    def blobs(self) -> Blobs:
        """Return the store's blobs."""
        ...

    def answers(self, run: str, number: int) -> list[tuple[str, str]]:
        """Return (device, its reason for declining or "") for each order in a round, by device."""
        ...

    def census(self) -> Census:
        """Count all devices, and how many of them are revoked, never heard from, online or paused."""
        ...

    def change(self) -> int:
        """Return the number of the last transaction that changed a device, session or history."""
        ...

    def changed_devices(self, since: int = -1, most: int = MOST_ROWS) -> list[DeviceRow]:
        """Return devices that changed after the transaction ``since``, oldest change first."""
        ...

    def close(self) -> None:
        """Close the database."""
        ...

    def coordinator(self) -> CoordinatorRow:
        """Return the row of the leading process; a default row if no process has ever run."""
        ...

    def count(self, wanted: Choice) -> int:
        """Return the number of selected devices."""
        ...

    def devices(self) -> list[DeviceRow]:
        """Return all devices ever enrolled, sorted by id."""
        ...

    def devices_named(self, names: Collection[str]) -> dict[str, DeviceRow]:
        """Return whichever of these devices are enrolled or revoked, by id."""
        ...

    def disk(self) -> list[DiskRow]:
        """Return the disk measurements of the last week, oldest first."""
        ...

    def histories(self, since: int = -1, most: int = MOST_ROWS) -> list[HistoryRow]:
        """Return histories that changed after the transaction ``since``, oldest change first."""
        ...

    def histories_named(self, names: Collection[str]) -> list[HistoryRow]:
        """Return the histories of these devices, oldest change first."""
        ...

    def last_rounds(self, run: str, after: int, most: int) -> list[RoundRow]:
        """Return the last ``most`` of a run's rounds after ``after``, oldest first, without summaries."""
        ...

    def online_matching(self, condition: Condition) -> set[str]:
        """Return the ids of the online devices that match a condition."""
        ...

    def paused(self) -> dict[str, float]:
        """Return the paused devices, with the times at which they were paused (wall clock)."""
        ...

    def page(self, wanted: Choice, offset: int, most: int) -> list[str]:
        """Return a page of the selected devices' sorted ids, skipping the first ``offset``."""
        ...

    def reading(self) -> AbstractContextManager[None]:
        """Let all reads in a ``with`` block see one consistent snapshot."""
        ...

    def received(self, run: str, number: int, since: int | None = None) -> Received:
        """Return a round's receipts, and late updates that arrived in rounds ``since`` to ``number``."""
        ...

    def runs(self) -> list[RunRow]:
        """Return all runs, oldest first."""
        ...

    def sessions(self, since: int = -1, most: int = MOST_ROWS) -> list[SessionRow]:
        """Return sessions that changed after the transaction ``since``, oldest change first."""
        ...

    def sessions_named(self, names: Collection[str]) -> list[SessionRow]:
        """Return the sessions of these devices."""
        ...

    def traffic(self, run: str, number: int) -> list[TrafficRow]:
        """Return the devices' traffic in a round, sorted by device."""
        ...


class Rows(Seen, RolloutRows, RenewalQueries, Protocol):
    """Further queries used by the ingest and the leader, some of them about runs and their models."""

    @property
    def parts(self) -> Parts:
        """Return the uploads on this machine's disk."""
        ...

    @property
    def public(self) -> Public | None:
        """Return a function that maps a blob to its public URL; None if blobs have no public URLs."""
        ...

    def client_models(self, run: str, devices: Collection[str]) -> dict[str, ClientModelRow]:
        """Return these devices' last models, if there are any, as references to blobs."""
        ...

    def delete_run(self, run: str) -> None:
        """Delete every row of an ended run. Raises ``ConfigError`` if it is running."""
        ...

    def drop_small_updates(self) -> None:
        """Delete the small updates that nothing refers to."""
        ...

    def delete_old_rows(self, run: str, keep: int) -> int:
        """Delete the per-device rows of all closed rounds except the last ``keep``.

        Returns how many it deleted.
        """
        ...

    def last_orders(self, run: str, devices: Collection[str], since: int) -> dict[str, int]:
        """Return each of these devices' last round with an order, for rounds after ``since``."""
        ...

    def may_collect(self) -> AbstractContextManager[bool]:
        """Return a context that yields True if blobs may be collected; no process can then hold blobs."""
        ...

    def named_blobs(self) -> set[bytes]:
        """Return all blobs that rows refer to, except in runs' states; steps only from open rounds."""
        ...

    def orders(self, run: str, number: int) -> list[OrderRow]:
        """Return the orders in a round, sorted by device."""
        ...

    def revoke_device(self, device: str) -> None:
        """Revoke a device. Raises ``ConfigError`` if there is no such device."""
        ...

    def round_models(self, run: str, numbers: Collection[int]) -> dict[int, tuple[bytes, bytes]]:
        """Return the blob and hash of the global model in each of these rounds."""
        ...

    def summaries(self, run: str, numbers: Collection[int]) -> dict[int, bytes]:
        """Return the encoded summaries of whichever of these rounds are closed."""
        ...

    def transaction(
        self, dry_run: bool = False, flush: bool = True
    ) -> AbstractContextManager[None]:
        """Make everything in a ``with`` block one transaction; if ``dry_run``, it is rolled back."""
        ...

    def update_blob(self, sha256: bytes) -> bytes:
        """Return the bytes of an accepted update, checked against their hash."""
        ...

    def used_bytes(self) -> int:
        """Return the size of the database in bytes; only SQLite leaves out free space."""
        ...

    # The leader

    def account(self, it: Accounts) -> None:
        """Store the totals of a closed round."""
        ...

    def close_round(self, closed: ClosedRound) -> bool:
        """Close a round in one transaction. Returns False if receipts have arrived in the meantime.

        Also returns False if another leader has closed the round. In both cases nothing is written.
        """
        ...

    def current_round(self, run: str) -> RoundRow | None:
        """Return the run's open round, or None."""
        ...

    def decline(self, run: str, number: int, device: str, reason: str) -> None:
        """Record that a device declines its order. In an open round, the decline counts as a receipt."""
        ...

    def declines(self, run: str, first: int, last: int) -> list[tuple[str, int, str]]:
        """Return (device, round, reason) of the declines in these rounds, oldest first."""
        ...

    def missing_reason(self, sha256: bytes) -> str:
        """Return why an update or other blob is lost for good; empty unless it is lost for good."""
        ...

    def open_round(self, row: RoundRow, orders: Sequence[OrderRow]) -> None:
        """Store a round and all of its orders."""
        ...

    def pasts(self, run: str, devices: Collection[str]) -> dict[str, bytes]:
        """Return these devices' encoded histories in a run, by device; devices with none are left out."""
        ...

    def receipts(self, run: str, number: int) -> list[tuple[str, bool]]:
        """Return (device, whether its update was accepted) for each receipt in a round, by device."""
        ...

    def reject(self, row: UpdateRow) -> None:
        """Replace the receipt of an accepted update with this rejection."""
        ...

    def round(self, run: str, number: int) -> RoundRow | None:
        """Return one round, or None."""
        ...

    def add_newcomer_orders(self, row: RoundRow, orders: Sequence[OrderRow]) -> None:
        """Store a finished run's orders for newcomers, and their round unless it is already stored."""
        ...

    def set_status(self, run: str, status: str, why: str = "", ended: float = 0.0) -> None:
        """End a running run, with the reason and the time.

        Raises ``ConfigError`` if there is no such run.
        """
        ...

    def set_terms(self, run: str, terms: bytes) -> None:
        """Store a run's requirements on devices."""
        ...

    def sums(self, run: str) -> bytes:
        """Return the encoded totals of a run's closed rounds; empty if there are none, or no such run."""
        ...

    def took_part(self, run: str, device: str, number: int) -> bool:
        """Return True if a device has a receipt from this round or later, or an order in a later round."""
        ...

    def unaccounted(self, run: str, since: int) -> list[RoundRow]:
        """Return a run's closed rounds after round ``since``."""
        ...

    def updates(self, run: str, number: int) -> list[UpdateRow]:
        """Return a round's updates that are neither rejected nor late, sorted by device."""
        ...

    # An ingest

    def client_model(self, run: str, device: str) -> ClientModelRow | None:
        """Return a device's last model, as references to blobs."""
        ...

    def ask_to_join(self, asked: JoinRow, now: float) -> JoinRow:
        """Record that a device asks to join with a token.

        Returns its join, which stays the same if the device asks again.
        """
        ...

    def join_of(self, point: bytes) -> JoinRow | None:
        """Return the join of the device with this public key, or None."""
        ...

    def secret(self) -> bytes:
        """Return a secret that only the fleet's coordinators know."""
        ...

    def tags_of(self, devices: Collection[str]) -> dict[str, dict[str, str]]:
        """Return these devices' tags by device and key; devices with no tags are left out."""
        ...

    def tokens(self) -> list[TokenRow]:
        """Return all tokens, oldest first."""
        ...

    def device(self, name: str) -> DeviceRow | None:
        """Return the device with this id, or None."""
        ...

    def end_sessions(self, at: float) -> list[str]:
        """Mark every device offline. Returns the sorted ids of the devices that were online."""
        ...

    def enrolled(self) -> int:
        """Return how many devices are enrolled and not revoked."""
        ...

    def enrolment(self) -> int:
        """Return a number that grows whenever devices are enrolled, revoked or reissued."""
        ...

    def names(self, most: int) -> list[str]:
        """Return up to ``most`` sorted ids of devices that are enrolled and not revoked."""
        ...

    def online(self) -> list[str]:
        """Return the ids of the devices that are online according to their sessions."""
        ...

    def open_rounds(self) -> list[RoundRow]:
        """Return the open rounds of running runs and of finished runs that serve newcomers."""
        ...

    def order(self, run: str, number: int, device: str) -> OrderRow | None:
        """Return one device's order, or None."""
        ...

    def ready(self, condition: Condition, among: Sequence[str] = ()) -> list[str]:
        """Return the sorted ids of matching devices that are online and not waiting.

        If ``among`` is not empty, only the devices in it are considered.
        """
        ...

    def commit_receipts(self, arrived: Sequence[Arrival]) -> list[UpdateRow | StorageError]:
        """Call ``commit_receipt`` for each update in one transaction.

        Returns each update's row, or its error if it fails.
        """
        ...

    def save_hello(self, row: DeviceRow, incarnation: int, hello: bytes) -> None:
        """Store a device's newest incarnation and hello, unless its secret has changed in the meantime."""
        ...

    def save_sessions(self, sessions: Sequence[SessionRow]) -> None:
        """Store changed sessions. Nothing is flushed."""
        ...

    def save_traffic(self, rows: Sequence[TrafficRow]) -> None:
        """Store the devices' traffic in a round. Once stored as true, ``whole`` stays true."""
        ...

    def update(self, run: str, number: int, device: str) -> UpdateRow | None:
        """Return one device's receipt in one round, for an accepted or rejected update, or None."""
        ...

    # Queries used by the process that runs both ingest and leader.

    def next_incarnation(self, clock: int) -> int:
        """Return the next incarnation: above all earlier ones and, if plausible, at least ``clock``."""
        ...

    def version(self) -> int:
        """Return a number that changes whenever another process has committed a change."""
        ...

    def seen(
        self,
        sessions: Sequence[SessionRow],
        rounds: Sequence[RoundRow],
        coordinator: CoordinatorRow,
        disk: DiskRow | None = None,
        traffic: Sequence[TrafficRow] = (),
    ) -> None:
        """Store changes to sessions, open rounds, the coordinator, disk size and traffic."""
        ...
