"""An open round, read from its rows: each device's order, who owes an answer, and who is online.

The leader and the ingest each keep their own copy, read from the same rows.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeAlias

import msgspec

from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_cloud.store.schema import StepRow, steps_of

# A round's number, and when it opened.
RoundKey: TypeAlias = tuple[int, float]


class Presence(NamedTuple):
    """Whether a device is online, is waiting (it starts no orders for now), or is revoked."""

    online: bool
    waits: bool
    revoked: bool


@dataclass
class AskedRound:
    """The devices of an open round. Those in ``settled`` no longer owe an answer.

    Settled devices are in ``received`` if they sent an update that counts. Devices that still owe an answer
    are in ``present`` if they are online, and in ``excused`` if they have said that they are waiting.
    """

    row: RoundRow
    orders: dict[str, OrderRow]
    settled: set[str] = field(default_factory=set[str])
    received: set[str] = field(default_factory=set[str])
    present: set[str] = field(default_factory=set[str])
    excused: set[str] = field(default_factory=set[str])

    @cached_property
    def steps(self) -> tuple[StepRow, ...]:
        """Return the changes that lead to the round's model, oldest first."""
        return steps_of(self.row.steps)

    @cached_property
    def users(self) -> Counter[bytes]:
        """Count the orders that name each blob: a model, patch, mask, correction or summed step."""
        given = self.orders.values()
        named = [
            (o.model or self.row.model, o.patch_blob, o.patch_context, o.correction, o.step)
            for o in given
        ]
        return Counter(blob for blobs in named for blob in blobs if blob)

    @cached_property
    def widths(self) -> Counter[int]:
        """Count the orders for each width."""
        return Counter(order.width for order in self.orders.values())

    @cached_property
    def bundles(self) -> Counter[tuple[int, bytes]]:
        """Count the orders for each pair of width and rollout bundle."""
        return Counter((order.width, order.bundle) for order in self.orders.values())

    def waiting_for(self, device: str) -> bool:
        """Return True if this device still owes an answer."""
        return device in self.orders and device not in self.settled

    @property
    def waiting(self) -> list[str]:
        """Return the devices that still owe an answer."""
        return [name for name in self.orders if name not in self.settled]

    def look(self, presence: Callable[[str], Presence]) -> list[str]:
        """Update which devices are online and which are waiting. Returns the revoked ones."""
        revoked: list[str] = []
        self.present, self.excused = set(), set()
        for name in self.waiting:
            online, waits, is_revoked = presence(name)
            if online:
                self.present.add(name)
            if waits:
                self.excused.add(name)
            if is_revoked:
                revoked.append(name)
        return revoked

    def arrive(self, device: str, waits: bool) -> None:
        """Record that a device is online, and whether it says that it is waiting."""
        if not self.waiting_for(device):
            return
        self.present.add(device)
        if waits:
            self.excused.add(device)
        else:
            self.excused.discard(device)

    def ask_again(self, device: str) -> None:
        """Record that a device has lost its result, and owes an answer again."""
        if device in self.orders and not self.orders[device].declined:
            self.settled.discard(device)

    def settle(self, device: str) -> None:
        """Record that a device no longer owes an answer."""
        self.settled.add(device)
        self.present.discard(device)
        self.excused.discard(device)

    def answered(self, device: str, counts: bool) -> None:
        """Settle a device that got a receipt; ``counts`` says whether its update was accepted."""
        if device in self.orders:
            self.settle(device)
            if counts:
                self.received.add(device)

    def decline(self, device: str, reason: str) -> None:
        """Record that a device declines its order."""
        self.orders[device] = msgspec.structs.replace(self.orders[device], declined=reason)
        self.settle(device)


def round_key(row: RoundRow) -> RoundKey:
    """Return what tells a round from all others of a run's name, which a new run may have taken over."""
    return row.round, row.opened


def read_asked(store: Rows, row: RoundRow) -> AskedRound:
    """Read an open round from the store, without the devices' presence."""
    asked = AskedRound(row, {order.device: order for order in store.orders(row.run, row.round)})
    asked.settled.update(name for name, order in asked.orders.items() if order.declined)
    read_answers(asked, store.receipts(row.run, row.round))
    return asked


def read_answers(asked: AskedRound, receipts: Iterable[tuple[str, bool]]) -> None:
    """Settle the devices that got a receipt; ``receipts`` are (device, whether its update was accepted)."""
    for device, counts in receipts:
        asked.answered(device, counts)
