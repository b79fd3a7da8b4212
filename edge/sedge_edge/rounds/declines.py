"""Gives up orders that the device cannot do, and reports them to the coordinator and the log."""

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
    """Declines orders. Methods that give an order up raise ``StorageError`` when the disk refuses.

    ``why`` returns why an order cannot be done, as far as its bundle shows, once that has arrived.
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
        self._possible: dict[str, Order] = {}  # by run, the orders that have been checked

    def decline(self, order: Order | OrderName, error: SedgeError) -> list[Effect]:
        """Decline an order that has not been accepted."""
        text = f"run {order.run}, round {order.round}: {error}"
        return [Note(logging.ERROR, text), self.message(order, error)]

    def message(self, order: Order | OrderName, error: SedgeError) -> Effect:
        """Only the DECLINE message."""
        why = type(error).__name__, without_paths(str(error))[:1000]
        return self._peer.message(Decline(order.run, order.round, *why))

    def give_up(self, order: Order, error: SedgeError) -> list[Effect]:
        """Give up an order that cannot be done; if only its steps are broken, continue without them."""
        text = f"run {order.run}, round {order.round}: {error}"
        if isinstance(error, BrokenSteps):
            self._store.strike_steps(order)
            again = f"run {order.run}, round {order.round}: fetching the whole model instead"
            return [Note(logging.ERROR, text), Note(logging.WARNING, again)]
        self._store.decline(order)
        return self.decline(order, error)

    def beyond_limits(self, order: Order, why: str, tells: bool) -> list[Effect]:
        """Decline an order beyond the device's own limits; without ``why`` drop it; ``tells``: log it."""
        effects: list[Effect] = []
        if tells:
            text = why or "orders arrive faster than rounds can end; dropping the excess"
            effects.append(Note(logging.WARNING, f"run {order.run}, round {order.round}: {text}"))
        return [*effects, self.message(order, TooManyOrders(why))] if why else effects

    def impossible(self) -> list[Effect]:
        """Give up the orders that turn out to be impossible now that their bundles have arrived."""
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
        """Decline an order that keeps killing the agent, so that other runs can continue."""
        error = TooManyStarts.of(order)
        return [Note(logging.ERROR, str(error)), self.message(order, error)]
