"""Sends the orders of open rounds to an ingest's devices, repeatedly until they are answered.

hello                  the orders that the device has not answered, unless the hello says that it waits
a round opens, or its deadline is extended
                       all unanswered orders, to devices that are online
no answer for a while  the same
the round is over      nothing; if the run was stopped or has failed, its devices are notified
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from sedge_cloud.disk_errors import disk_error
from sedge_cloud.events import CloudEffect
from sedge_cloud.hints import WHY_OVER, Declined, DiskFailed, Hint, Ordered, Over
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_cloud.runs.asked import AskedRound, RoundKey, read_answers, read_asked, round_key
from sedge_cloud.runs.loaded import Runs
from sedge_cloud.runs.named_blobs import Cut
from sedge_cloud.runs.orders import OrderBuilder, too_large
from sedge_cloud.runs.terms import keeps_model, packet_limit
from sedge_cloud.store.roles import Rows
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_protocol.errors import LocalError, StorageError, StrategyError
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.messages import Cancel, Order

# An order that has not been answered for this long is sent again, as a broker may have dropped it.
RESEND_S = 60.0
SERVING = "serving"  # the phase in which a finished run sends newcomers its model


class OpenOrders:
    """Tracks the open rounds, by run, and the orders sent for them. Methods may raise ``StorageError``."""

    def __init__(
        self, store: Rows, runs: Runs, devices: DeviceRegistry, cut: Cut, counters: Counter[str]
    ) -> None:
        self.order_builder = OrderBuilder(devices.hello, cut, store.public)
        self._store = store
        self._runs = runs
        self._devices = devices
        self._counters = counters
        self._open: dict[str, AskedRound] = {}
        self._resend_at: dict[str, float] = {}

    def round(self, run: str) -> AskedRound | None:
        """Return a run's open round, or None."""
        return self._open.get(run)

    def rounds(self) -> Iterable[AskedRound]:
        """Return all open rounds."""
        return self._open.values()

    def keys(self) -> dict[str, RoundKey]:
        """Return the keys of all open rounds, by run."""
        return {run: round_key(current.row) for run, current in self._open.items()}

    def waiting(self) -> list[str]:
        """Return the devices that have yet to answer, including other processes' devices."""
        return [name for current in self._open.values() for name in current.waiting]

    def look(self) -> None:
        """Update which of the devices that have yet to answer are online."""
        for current in self._open.values():
            current.look(self._devices.presence)

    def take(self) -> None:
        """Read the answers that other processes stored for devices that now belong to this process."""
        for name, current in self._open.items():
            read_answers(current, self._store.receipts(name, current.row.round))

    def find(self, run: str, number: int, device: str) -> tuple[OrderRow, RoundRow] | None:
        """Return a device's order in an open round, with the round. Returns None if there is none."""
        current = self._open.get(run)
        if current is None or current.row.round != number or device not in current.orders:
            return None
        return current.orders[device], current.row

    def load(self, now: float) -> list[CloudEffect | Hint]:
        """Load the rounds that a leader in another process has opened or ended.

        Extended deadlines need not be loaded, as devices that have yet to answer are asked again anyway.
        Receipts need not be loaded either, because this process writes the receipts of its own devices.
        """
        effects: list[CloudEffect | Hint] = []
        rows = {row.run: row for row in self._store.open_rounds()}
        for name in self._open.keys() - rows.keys():
            effects += self.over(Over(name, WHY_OVER.get(self._runs.status(name), "")))
        for name, row in rows.items():
            known = self._open.get(name)
            is_known = known is not None and round_key(known.row) == round_key(row)
            if is_known and row.phase != SERVING:
                continue
            asked = read_asked(self._store, row)
            before = known.orders if known is not None and is_known else {}
            new = tuple(name for name in asked.orders if name not in before)
            if new:
                settled = frozenset(asked.settled)
                effects += self.ordered(Ordered(row, asked.orders, settled, new), now)
        return effects

    def ordered(self, hint: Ordered, now: float) -> list[CloudEffect | Hint]:
        """Record new orders, and send those that are due."""
        known, settled = self._open.get(hint.row.run), set(hint.settled)
        if known is not None and _serves(known) and known.row.round == hint.row.round:
            settled -= known.present  # these devices have lost their model and must answer again
        current = AskedRound(hint.row, dict(hint.orders), settled)
        self._open[hint.row.run] = current
        current.look(self._devices.presence)
        return self._ask(current, hint.to, now, hint.made)

    def over(self, hint: Over) -> list[CloudEffect | Hint]:
        """Close a run's round.

        If the hint gives a reason, cancel the orders of devices that are still working on the round.
        """
        current = self._open.pop(hint.run, None)
        self._resend_at.pop(hint.run, None)
        if current is None or not hint.why:
            return []
        void = Cancel(hint.run, 0, hint.why)
        return [
            self._devices.cancel(name, void) for name in current.waiting if name in self._devices
        ]

    def arrive(self, device: str, now: float) -> list[CloudEffect | Hint]:
        """Send the orders that a device has yet to answer, once it has said hello."""
        effects: list[CloudEffect | Hint] = []
        for current in list(self._open.values()):
            if _serves(current) and not keeps_model(self._devices.hello(device), current.row.run):
                current.ask_again(device)
            if current.waiting_for(device):
                current.arrive(device, self._devices.presence(device).waits)
                effects += self._send(current, [device], now)
        return effects

    def leave(self, device: str) -> None:
        """Record that a device is offline until its next hello."""
        for current in self._open.values():
            current.present.discard(device)

    def disconnected(self) -> None:
        """Record that every device is offline."""
        for current in self._open.values():
            current.present.clear()

    def answered(self, run: str, number: int, device: str, counts: bool) -> None:
        """Record that a device has a receipt for its order; ``counts`` says if its update was accepted."""
        current = self._open.get(run)
        if current is not None and current.row.round == number:
            current.answered(device, counts)

    def decline(self, run: str, number: int, device: str, reason: str) -> list[CloudEffect | Hint]:
        """Record in the store that a device declines its order. The round then stops waiting for it."""
        current = self._open.get(run)
        if current is None or current.row.round != number or not current.waiting_for(device):
            return []
        self._store.decline(run, number, device, reason)
        current.decline(device, reason)
        self._counters["declined"] += 1
        text = f"run {run}, round {number}: {device} declines: {reason!r}"
        return [Note(logging.WARNING, text), Declined(run, number, device, reason)]

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        return min(self._resend_at.values(), default=None)

    def poll(self, now: float) -> Iterator[CloudEffect | Hint]:
        """Resend orders that have gone unanswered for ``RESEND_S``."""
        for run in [run for run, at in self._resend_at.items() if now >= at]:
            current = self._open[run]
            yield from self._ask(current, current.waiting, now)

    def _ask(
        self,
        current: AskedRound,
        names: Iterable[str],
        now: float,
        made: Mapping[str, Order] | None = None,
    ) -> list[CloudEffect | Hint]:
        self._resend_at[current.row.run] = now + RESEND_S
        return self._send(current, names, now, made)

    def _send(
        self,
        current: AskedRound,
        names: Iterable[str],
        now: float,
        made: Mapping[str, Order] | None = None,
    ) -> list[CloudEffect | Hint]:
        """Send orders, for the first time or again; ``made`` holds any that are already built.

        An order that can never be sent is declined on the device's behalf.
        """
        effects: list[CloudEffect | Hint] = []
        for name in names:
            if name not in current.present or name in current.excused:
                continue
            try:
                effects += self._send_one(current, name, (made or {}).get(name), now)
            except StorageError as exc:
                effects += [disk_error(self._counters, exc, current.row.run), DiskFailed()]
        return effects

    def _send_one(
        self, current: AskedRound, name: str, order: Order | None, now: float
    ) -> list[CloudEffect | Hint]:
        run = self._runs.get(current.row.run)
        if run is None:  # the run is being deleted
            return []
        try:
            order = order or self.order_builder.one(run, current, current.orders[name])
            why = too_large(order, packet_limit(self._devices.hello(name)))
            if not why:
                return [self._devices.give_order(name, order, now)]
        # Retrying would not help: the strategy failed, or the order is larger than a frame.
        except (StrategyError, LocalError) as exc:
            why = f"its order cannot be sent: {exc}"
        return self.decline(run.name, current.row.round, name, why)


def _serves(current: AskedRound) -> bool:
    return current.row.phase == SERVING
