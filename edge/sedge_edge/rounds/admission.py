"""Decides whether to ignore, decline or accept an order that has arrived (WIRE.md, 5.7)."""

import logging

from sedge_edge.jobs.global_model import repeats
from sedge_edge.jobs.storage import ReadableBlobs
from sedge_edge.rounds.blob_limits import impossible_blob
from sedge_edge.rounds.budget import Budget
from sedge_edge.rounds.declines import Declines
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_edge.rounds.state import StateStore, TooManyRuns
from sedge_edge.rounds.trust import Trust
from sedge_protocol.errors import CodecError, RemoteError
from sedge_protocol.wire.effects import Effect, Note
from sedge_protocol.wire.extensions import unannounced
from sedge_protocol.wire.messages import MAX_RUNS, Order
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.refusals import OTHER_LAYOUT
from sedge_protocol.wire.signing_keys import SigningKeys


class OrderAdmission:
    """Checks orders against what the device has ``announced``, its limits and its pinned ``keys``.

    Methods raise ``StorageError`` if the disk fails.
    """

    def __init__(
        self,
        store: StateStore,
        blobs: ReadableBlobs,
        peer: Peer,
        budget: Budget,
        announced: frozenset[str],
        keys: SigningKeys | None,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._budget = budget
        self._announced = announced
        self._trust = Trust(keys, blobs, store, budget)
        self.declines = Declines(store, blobs, peer, self.impossible)

    def impossible(self, order: Order) -> RemoteError | None:
        """Return why the device cannot carry out an order or does not allow it, or None.

        Before the order's bundle has arrived, some reasons cannot be known yet.
        """
        too_large = impossible_blob(order, self._blobs)
        return too_large or self._other_layout(order) or self._trust.refusal(order)

    def _other_layout(self, order: Order) -> CodecError | None:
        """Return an error if the order's bundle does not have the layout of the run's kept state."""
        entry = self._store.state.runs.get(order.run)
        facts = bundle_facts(order.bundle.sha256, self._blobs)
        if entry is None or facts is None or not entry.goes_on(order):
            return None
        if facts.layout_hash == entry.layout or order.bundle.sha256 == entry.bundle:
            return None
        return CodecError(OTHER_LAYOUT.format(where=f"run {order.run}, round {order.round}"))

    def order(self, order: Order) -> list[Effect]:
        """Accept, decline or ignore an order. Returns the resulting effects."""
        state = self._store.state
        current = state.orders.get(order.run)
        done = state.pending(order.run, order.round)
        if done is not None or (current is not None and repeats(current, order)):
            self._store.recut(order)
            return []  # a repeated order; its update is already being offered
        if (refused := self._budget.order()) is not None:
            return self.declines.beyond_limits(order, refused, self._budget.tells())
        if (unable := unannounced(order, self._announced)) is not None:
            return [Note(logging.ERROR, str(unable)), self.declines.message(order, unable)]
        if (impossible := self.impossible(order)) is not None:
            return self.declines.decline(order, impossible)
        if state.attempts_exhausted(order):  # the coordinator has not received our decline
            return self.declines.exhausted(order)
        self._trust.learn(order)
        try:
            evicted = self._store.accept(order, self._trust.policy_of(order))
        except TooManyRuns as exc:
            return [Note(logging.ERROR, str(exc)), self.declines.message(order, exc)]
        effects: list[Effect] = []
        if evicted is not None:
            text = f"deleted run {evicted} and its model: none of the last {MAX_RUNS} orders was for it"
            effects.append(Note(logging.WARNING, text))
        text = f"run {order.run}, round {order.round}: {order.task}"
        return [*effects, Note(logging.INFO, text)]
