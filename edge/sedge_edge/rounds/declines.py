"""Declines orders that the device cannot carry out, and reports them to the coordinator and the log."""

import logging
from collections.abc import Callable

from sedge_edge.jobs.global_model import BrokenSteps
from sedge_edge.jobs.storage import ReadableBlobs
from sedge_edge.rounds.budget import TooManyOrders
from sedge_edge.rounds.state import StateStore, TooManyStarts
from sedge_protocol.errors import RemoteError, SedgeError
from sedge_protocol.wire.effects import Effect, Note
from sedge_protocol.wire.messages import Decline, Order, OrderName
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.reasons import without_paths


class Declines:
    """Declines orders.

    Methods that remove an accepted order raise ``StorageError`` if the disk write fails. ``why`` returns
    why an order whose bundle has arrived cannot be carried out, or None if it can.
    """

    def __init__(
        self,
        store: StateStore,
        blobs: ReadableBlobs,
        peer: Peer,
        why: Callable[[Order], RemoteError | None],
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._peer = peer
        self._why = why
        self._possible: dict[str, Order] = {}  # orders that have been checked, keyed by run

    def decline(self, order: Order | OrderName, error: SedgeError) -> list[Effect]:
        """Decline an order that has not been accepted."""
        text = f"run {order.run}, round {order.round}: {error}"
        return [Note(logging.ERROR, text), self.message(order, error)]

    def message(self, order: Order | OrderName, error: SedgeError) -> Effect:
        """Return the DECLINE message, without a note for the log."""
        why = type(error).__name__, without_paths(str(error))[:1000]
        return self._peer.message(Decline(order.run, order.round, *why))

    def give_up(self, order: Order, error: SedgeError) -> list[Effect]:
        """Remove and decline an order that cannot be carried out.

        If only its steps are broken, remove only the steps.
        """
        text = f"run {order.run}, round {order.round}: {error}"
        if isinstance(error, BrokenSteps):
            self._store.strike_steps(order)
            again = f"run {order.run}, round {order.round}: fetching the whole model instead"
            return [Note(logging.ERROR, text), Note(logging.WARNING, again)]
        self._store.decline(order)
        return self.decline(order, error)

    def beyond_limits(self, order: Order, why: str, tells: bool) -> list[Effect]:
        """Decline an order that exceeds the device's own limits, or drop it if ``why`` is empty.

        Logs a warning if ``tells`` is true.
        """
        effects: list[Effect] = []
        if tells:
            text = why or "orders arrive faster than rounds can end; dropping the excess"
            effects.append(Note(logging.WARNING, f"run {order.run}, round {order.round}: {text}"))
        return [*effects, self.message(order, TooManyOrders(why))] if why else effects

    def impossible(self) -> list[Effect]:
        """Remove and decline orders whose bundles have arrived and show that they cannot be carried out."""
        effects: list[Effect] = []
        orders = self._store.state.orders
        self._possible = {run: order for run, order in self._possible.items() if run in orders}
        for run, order in orders.items():
            if self._possible.get(run) is order or not self._blobs.has(order.bundle.sha256):
                continue
            if (error := self._why(order)) is None:
                self._possible[run] = order
            else:
                effects += self.give_up(order, error)
        return effects

    def exhausted(self, order: Order) -> list[Effect]:
        """Decline an order that repeatedly crashes the agent, so that other runs can continue."""
        error = TooManyStarts.of(order)
        return [Note(logging.ERROR, str(error)), self.message(order, error)]
